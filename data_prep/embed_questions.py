#!/usr/bin/env python
"""Embed questions: a question file -> vectors by question id, for `dots.predictor.embeddings`.

    python data_prep/embed_questions.py --questions data/math.parquet --model Qwen/Qwen2.5-Math-1.5B-Instruct \\
        --output data/math_qwen.safetensors
    python data_prep/embed_questions.py --questions data/math.parquet --features lexical --output data/lexical.safetensors
    python data_prep/embed_questions.py --questions data/math.parquet --features lexical --side extra_info.success_rate \\
        --embeddings data/math_qwen.safetensors --output data/math.safetensors

--model: any sentence-transformers model, or any language model by the mean of its hidden states. --features lexical: counts
and n-grams of question and answer, alone or beside the vectors of --model or --embeddings (a file written before). --side:
numeric columns that say something about difficulty, such as another model's success rate. A run that was stopped continues
where it was. Beside X.safetensors it writes X.json and, with lexical features, X.lexical.safetensors, what is needed to
describe other questions in the same way (--lexical-basis).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from common.options import check_at_least
from encoding.encoder import EncoderSettings, Shards, encode
from encoding.questions import Questions, read_questions

from verl_dots.difficulty.features import LEXICAL, LexicalBasis
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.files import Parser, run_cli
from verl_dots.manifests import check_output, describe_file

DTYPES = ("float32", "bfloat16", "float16")


def main(argv: Sequence[str] | None = None) -> None:
    """Read, encode, write."""
    args = parser().parse_args(argv)
    check(args)
    questions = read_questions(args.questions, args.side)
    if args.no_answers:
        questions = replace(questions, answers=None)
    blocks, names, shards = [], [], None
    if args.model:
        devices = args.devices or default_devices()
        dtype = args.dtype or ("float32" if devices[0] == "cpu" else "bfloat16")
        settings = EncoderSettings(args.model, args.max_length, dtype)
        shards = Shards(args.output, questions.ids, settings)
        blocks.append(encode(questions.texts, shards, settings, batch_size=args.batch_size, devices=devices))
        names.append(Path(args.model).name if Path(args.model).exists() else args.model)
    elif args.embeddings:
        table = EmbeddingTable.open(args.embeddings)
        blocks.append(table.vectors[table.index(questions.ids)])
        names.append(table.model)
    if LEXICAL in args.features:
        basis = lexical_basis(args, questions)
        blocks.append(basis.transform(questions.texts, questions.answers).astype(np.float16))
        names.append(f"{LEXICAL}:{basis.fingerprint()}")
    write_embeddings(
        args.output,
        questions.ids,
        np.hstack(blocks),
        model="+".join(names),
        side=questions.side,
        side_names=args.side,
        extra={
            "features": [name.split(":")[0] for name in names],
            "dims": [block.shape[1] for block in blocks],
            "questions": describe_file(args.questions),
        },
    )
    if shards is not None:
        shards.remove()
    dims = " + ".join(f"{block.shape[1]} {name}" for block, name in zip(blocks, names, strict=True))
    print(f"{args.output}: {len(questions.ids):,} questions, dimensions {dims}, side features {args.side or 'none'}")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--questions", required=True, type=Path, help="parquet file of questions")
    result.add_argument("--output", required=True, type=Path, help="X.safetensors to write")
    vectors = result.add_argument_group("vectors (at least one of --model, --embeddings, --features)")
    vectors.add_argument("--model", help="sentence-transformers or causal language model, a folder or a hub name")
    vectors.add_argument("--embeddings", type=Path, help="take the vectors of this file instead of a model's")
    vectors.add_argument("--features", nargs="+", choices=(LEXICAL,), default=[], help="features of the text")
    vectors.add_argument("--side", nargs="+", default=[], metavar="COLUMN", help="numeric columns: extra_info.level")
    vectors.add_argument("--no-answers", action="store_true", help="lexical features of the question alone")
    vectors.add_argument("--lexical-basis", type=Path, help="X.lexical.safetensors of the file to be like")
    how = result.add_argument_group("how --model encodes")
    how.add_argument("--max-length", type=int, help="tokens per question (default: the model's own limit)")
    how.add_argument("--batch-size", type=int, default=32, help="questions at once (default: %(default)s)")
    how.add_argument("--dtype", choices=DTYPES, help="weights (default: float32 on a CPU, bfloat16 on GPUs)")
    how.add_argument("--devices", nargs="+", help="for example cuda:0 cuda:1, one process each (default: all GPUs)")
    return result


def check(args: argparse.Namespace) -> None:
    """Refuse what does not go together before anything is read.

    Raises:
        ValueError: naming the option.
    """
    if not (args.model or args.embeddings or args.features):
        raise ValueError("nothing to embed with: give --model, --embeddings or --features lexical")
    if args.model and args.embeddings:
        raise ValueError("--model and --embeddings exclude each other: vectors come from one of them")
    if (args.lexical_basis or args.no_answers) and LEXICAL not in args.features:
        raise ValueError("--lexical-basis and --no-answers go with --features lexical")
    if len({*args.side}) != len(args.side):
        raise ValueError(f"--side {' '.join(args.side)}: name each column once")
    check_at_least(args, 1, "max_length", "batch_size")
    if args.output.suffix != ".safetensors":
        raise ValueError(f"--output {str(args.output)!r} must end in .safetensors")
    if args.embeddings and args.embeddings.resolve() == args.output.resolve():
        raise ValueError(f"--output {str(args.output)!r} is the file of --embeddings: give another name")
    check_output(args.output)


def lexical_basis(args: argparse.Namespace, questions: Questions) -> LexicalBasis:
    """The basis that was asked for, or one fitted on these questions and saved beside the output."""
    if args.lexical_basis:
        basis = LexicalBasis.load(args.lexical_basis)
        if basis.has_answers and questions.answers is None:
            raise ValueError(f"--lexical-basis {str(args.lexical_basis)!r} needs answers, but some questions have none")
        return basis
    basis = LexicalBasis.fit(questions.texts, questions.answers)
    basis.save(args.output.with_suffix(".lexical.safetensors"))
    return basis


def default_devices() -> list[str]:
    """All GPUs, otherwise the CPU."""
    import torch

    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] or ["cpu"]


if __name__ == "__main__":
    run_cli(main)
