"""Collect pass rates: how often a model solves each question -> labels for fit_predictor.py.

    python data_prep/collect_pass_rates.py --questions data/math.parquet --model Qwen/Qwen2.5-1.5B-Instruct \\
        --rollouts 8 --max-tokens 3072 --output labels/qwen1.5b.parquet

Resumable: finished chunks lie in X.parts/ beside the output X.parquet, and the same command continues. Several GPUs of one
machine: --data-parallel 8. A Slurm array: --shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT in every task; the task that
finishes last writes the output, and so does the command without --shard.

Published pass rates become the same format without a model:

    python data_prep/collect_pass_rates.py --import difficulty.parquet --question-column question \\
        --failures-column failures --attempts-column attempts --policy Qwen2.5-Math-7B --output labels/published.parquet
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pandas as pd
from common.options import check_at_least, flag
from common.tokens import load_tokenizer, prompt_ids
from rollouts import labels as labels_format
from rollouts import published
from rollouts.chunks import Chunks, Shard, seed_of
from rollouts.engines import ENGINES, Engine, Response, Sampling, check_lengths, chosen_engine, load_engine
from tqdm import tqdm

from verl_dots.files import Parser, atomic_path, read_parquet, run_cli
from verl_dots.manifests import check_output, describe_file, write_manifest
from verl_dots.types import question_id_of_row

SETTINGS = (
    *("model", "policy", "engine", "dtype", "batch_size"),
    *("rollouts", "temperature", "top_p", "max_tokens", "seed", "reward", "reward_range"),
)
"""Options that change the labels: chunks made with others are not mixed in."""


def main(argv: Sequence[str] | None = None) -> int | None:
    """Import a published file, or roll out, or share the rolling out among processes."""
    args = parser().parse_args(argv)
    check_options(args)
    check_output(args.output)
    if args.imported:
        return import_published(args)
    args.policy = args.policy or Path(args.model).name
    args.engine = chosen_engine(args.engine)
    args.shard = Shard.parse(args.shard)
    args.reward_function = load_reward(args.reward)
    questions = read_questions(args)
    settings = {name: getattr(args, name) for name in SETTINGS}
    plan = {"questions_sha256": describe_file(args.questions)["sha256"], **settings}
    chunks = Chunks(args.output, len(questions), args.chunk_size, plan)
    if args.data_parallel > 1:
        share(args, chunks)
    elif chunks.missing(args.shard):
        roll_out(args, questions, chunks)
    if missing := chunks.missing():
        print(f"{args.output}: shard {args.shard} is done, {len(missing)} of {chunks.count} chunks are still to come")
        return None
    finish(args, chunks.read(), settings=settings, question_file=describe_file(args.questions))
    return None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--output", required=True, type=Path, help="parquet file of labels to write")
    result.add_argument("--policy", help="name of the model in the labels (default: last part of --model)")
    result.add_argument("--questions", type=Path, help="question file, as build_questions.py writes it")
    model = result.add_argument_group("model")
    model.add_argument("--model", help="folder or hub name of the model")
    model.add_argument("--engine", choices=ENGINES, default="auto", help="auto: vLLM if installed, else transformers")
    model.add_argument("--dtype", default="auto", help="weights: auto, float32, bfloat16, ... (default: %(default)s)")
    model.add_argument("--batch-size", type=int, default=64, help="responses at once, transformers only (default: 64)")
    sampling = result.add_argument_group("rollouts (use what training will use)")
    sampling.add_argument("--rollouts", type=int, default=8, help="responses per question (default: %(default)s)")
    sampling.add_argument("--temperature", type=float, default=1.0, help="default: %(default)s; the paper uses 0.6")
    sampling.add_argument("--top-p", type=float, default=1.0, help="default: %(default)s; the paper uses 0.95")
    sampling.add_argument("--max-tokens", type=int, default=3072, help="longest response (default: %(default)s)")
    sampling.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    sampling.add_argument(
        "--reward", default="verl_dots.rewards:compute_score", metavar="MODULE:FUNCTION", help="default: %(default)s"
    )
    sampling.add_argument("--reward-range", nargs=2, type=float, default=[0.0, 1.0], metavar=("LOWEST", "HIGHEST"))
    work = result.add_argument_group("division of the work")
    work.add_argument("--chunk-size", type=int, default=64, help="questions per chunk (default: %(default)s)")
    work.add_argument("--shard", default="0/1", metavar="I/N", help="do the I-th of N parts only, counted from 0")
    work.add_argument("--data-parallel", type=int, default=1, help="processes, each with its own GPUs (default: 1)")
    work.add_argument("--tensor-parallel", type=int, default=1, help="GPUs per process, vLLM only (default: 1)")
    imported = result.add_argument_group("published pass rates")
    imported.add_argument("--import", dest="imported", nargs="+", metavar="FILE", help="parquet, jsonl or json")
    imported.add_argument("--question-column", default="question", help="default: %(default)s")
    imported.add_argument("--failures-column", help="how often the model failed, or")
    imported.add_argument("--successes-column", help="how often it succeeded")
    imported.add_argument("--attempts-column", help="how often it was asked, or")
    imported.add_argument("--attempts", type=int, help="that number, if it is the same for all")
    return result


def check_options(args: argparse.Namespace) -> None:
    """Refuse what does not go together before anything is read or loaded.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    if args.imported:
        if not args.policy:
            raise ValueError("--import needs --policy: the name of the model that was measured")
        if (args.failures_column is None) == (args.successes_column is None):
            raise ValueError("--import needs exactly one of --failures-column and --successes-column")
        if (args.attempts_column is None) == (args.attempts is None):
            raise ValueError("--import needs exactly one of --attempts-column and --attempts")
        return
    for name in ("questions", "model"):
        if not getattr(args, name):
            raise ValueError(f"--{name} is missing (or --import, to read published pass rates)")
    check_at_least(args, 1, "rollouts", "max_tokens", "chunk_size", "batch_size", "data_parallel", "tensor_parallel")
    if args.temperature < 0:
        raise ValueError(f"--temperature {args.temperature:g}: must not be negative")
    if not 0 < args.top_p <= 1:
        raise ValueError(f"--top-p {args.top_p:g}: must lie above 0 and be at most 1")
    if args.reward_range[0] >= args.reward_range[1]:
        raise ValueError(f"--reward-range {args.reward_range}: the first must be smaller")


def import_published(args: argparse.Namespace) -> None:
    """Published files -> labels."""
    parts = [
        published.import_file(
            path,
            question=args.question_column,
            policy=args.policy,
            failures=args.failures_column,
            successes=args.successes_column,
            attempts=args.attempts_column or args.attempts,
        )
        for path in args.imported
    ]
    finish(args, published.combine(parts), imported=[describe_file(path) for path in args.imported])


def load_reward(name: str) -> Callable[..., Any]:
    """The reward function ``module:function``.

    Raises:
        ValueError: there is none of that name.
    """
    module, colon, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        problem = error if colon else "no colon in it"
        raise ValueError(f"--reward {name!r} is not a function of an importable module ({problem})") from error


def read_questions(args: argparse.Namespace) -> pd.DataFrame:
    """The distinct questions of the file, in its order, with a column ``question_id``."""
    frame = read_parquet(args.questions, ["prompt", "data_source", "reward_model", "extra_info"])
    ids = [question_id_of_row(row.extra_info, row.prompt) for row in frame.itertuples()]
    return frame.assign(question_id=ids).drop_duplicates("question_id", ignore_index=True)


def roll_out(args: argparse.Namespace, questions: pd.DataFrame, chunks: Chunks) -> None:
    """Do the missing chunks of this process's shard."""
    sampling = Sampling(args.rollouts, args.temperature, args.top_p, args.max_tokens)
    tokenizer = load_tokenizer(args.model)
    prompts = [prompt_ids(tokenizer, prompt) for prompt in questions["prompt"]]
    check_lengths(args.model, prompts, sampling)
    options = {"tensor_parallel": args.tensor_parallel, "batch_size": args.batch_size, "dtype": args.dtype}
    engine = load_engine(args.engine, args.model, sampling, **options)
    missing = chunks.missing(args.shard)
    total = sum(len(prompts[chunks.rows(number)]) for number in missing)
    started, tokens = time.monotonic(), 0
    with tqdm(total=total, desc=f"questions x {args.rollouts}", disable=None) as bar:
        for number in missing:
            rows = chunks.rows(number)
            labels, written = label(args, engine, questions[rows], prompts[rows], seed_of(args.seed, number))
            chunks.write(number, labels)
            tokens += written
            bar.update(len(labels))
            bar.set_postfix_str(f"{tokens / (time.monotonic() - started):,.0f} tokens/s")
    seconds = time.monotonic() - started
    rate = tokens / max(seconds, 1e-9)
    print(f"{total} questions x {args.rollouts} rollouts in {seconds:.0f} s, {rate:,.0f} tokens/s", flush=True)


def label(
    args: argparse.Namespace, engine: Engine, questions: pd.DataFrame, prompts: list[list[int]], seed: int
) -> tuple[pd.DataFrame, int]:
    """The labels of some questions, and how many tokens were written for them."""
    responses = engine.generate(prompts, seed)
    with ThreadPoolExecutor() as executor:
        jobs = [(row, group) for row, group in zip(questions.itertuples(), responses, strict=True)]
        successes = list(executor.map(lambda job: group_reward(args, *job), jobs))
    lengths = [sum(response.tokens for response in group) for group in responses]
    table = pd.DataFrame(
        {
            "question_id": questions["question_id"].to_numpy(),
            "policy": args.policy,
            "successes": successes,
            "trials": args.rollouts,
            "mean_length": [length / args.rollouts for length in lengths],
        }
    )
    return table, sum(lengths)


def group_reward(args: argparse.Namespace, row: Any, group: list[Response]) -> float:
    """The sum of a group's rewards, each scaled to [0, 1].

    Raises:
        ValueError: a reward lies outside ``--reward-range``.
    """
    lowest, highest = args.reward_range
    total = 0.0
    for response in group:
        reward = args.reward_function(
            data_source=row.data_source,
            solution_str=response.text,
            ground_truth=row.reward_model["ground_truth"],
            extra_info=dict(row.extra_info),
        )
        score = float(reward["score"] if isinstance(reward, dict) else reward)
        if not lowest <= score <= highest:
            raise ValueError(f"{args.reward} gave {score:g}, outside --reward-range {lowest:g} {highest:g}")
        total += (score - lowest) / (highest - lowest)
    return total


def share(args: argparse.Namespace, chunks: Chunks) -> None:
    """Run one process per part of this shard, each with its own GPUs, and wait for all of them.

    Raises:
        ValueError: a process failed; its own message is above.
    """
    shards = [shard for shard in args.shard.split(args.data_parallel) if chunks.missing(shard)]
    devices = visible_devices()
    if devices and len(devices) < args.data_parallel * args.tensor_parallel:
        wanted = args.data_parallel * args.tensor_parallel
        raise ValueError(f"--data-parallel x --tensor-parallel wants {wanted} GPUs, {len(devices)} are visible")
    processes = []
    for position, shard in enumerate(shards):
        environment = dict(os.environ)
        if devices:
            own = devices[position * args.tensor_parallel : (position + 1) * args.tensor_parallel]
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        processes.append(subprocess.Popen([sys.executable, __file__, *arguments_of(args, shard)], env=environment))
    try:
        codes = [process.wait() for process in processes]
    finally:
        for process in processes:
            process.terminate()  # only those still running, after Ctrl-C
    if any(codes):
        raise ValueError(f"{sum(map(bool, codes))} of {len(codes)} processes failed, see above: run again to continue")


def arguments_of(args: argparse.Namespace, shard: Shard) -> list[str]:
    """The command line of a process that does ``shard``."""
    names = [*SETTINGS, "questions", "output", "chunk_size", "tensor_parallel"]
    words = []
    for name in names:
        value = getattr(args, name)
        words += [flag(name), *map(str, value if isinstance(value, list) else [value])]
    return [*words, "--shard", str(shard)]


def visible_devices() -> list[str]:
    """The GPUs this process may use, by the names CUDA gives them; none on a machine without."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def finish(args: argparse.Namespace, labels: pd.DataFrame, **source: Any) -> None:
    """Write the labels and their manifest."""
    summary = labels_format.summary(labels)
    with atomic_path(args.output) as temporary:
        labels_format.write(temporary, labels)
    write_manifest(args.output, stage="collect_pass_rates", policy=args.policy, **source, **summary)
    print(
        f"{args.output}: {summary['questions']} questions, {args.policy} solves {summary['mean_success_rate']:.1%}; "
        f"{summary['never_solved']:.1%} never, {summary['always_solved']:.1%} always"
    )


if __name__ == "__main__":
    run_cli(main)
