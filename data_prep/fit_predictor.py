#!/usr/bin/env python
"""Fit the difficulty predictor on pass rates -> a checkpoint for `dots.predictor.checkpoint`.

    python data_prep/fit_predictor.py --labels labels/qwen7b.parquet labels/llama8b.parquet \\
        --embeddings data/math.safetensors --output data/predictor.safetensors
    python data_prep/fit_predictor.py --labels labels/all.parquet --embeddings data/math.safetensors \\
        --holdout-questions 0.2 --holdout-labels labels/unseen.parquet --holdout-policies qwen7b \\
        --output data/predictor.safetensors

LABELS: parquet with question_id, successes, trials and perhaps policy (collect_pass_rates.py), or the observations of
earlier runs. Questions and policies that are held out are not trained on; the report beside the checkpoint (X.json, X.png)
says how well it does on them, under the policies of the file and under weaker and stronger ones. 18,000
questions take about 80 s of CPU time.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common.options import check_at_least, flag

from verl_dots.embeddings import EmbeddingTable
from verl_dots.files import Parser, atomic_path, check_writable, run_cli
from verl_dots.manifests import check_output, describe_file


def main(argv: Sequence[str] | None = None) -> None:
    """Read, train, judge, write."""
    args = parser().parse_args(argv)
    check(args)
    from fitting.fit import fit_and_judge  # torch only after the options are right

    from verl_dots.difficulty.checkpoint import save_checkpoint
    from verl_dots.difficulty.pass_rates import read_pass_rates

    table = EmbeddingTable.open(args.embeddings)
    rates = read_pass_rates(args.labels)
    unknown = sorted(set(args.holdout_policies) - set(rates.policies))
    if unknown:
        raise ValueError(f"--holdout-policies {unknown[0]!r} is not in the labels: they have {', '.join(rates.policies)}")
    if set(args.holdout_policies) == set(rates.policies):
        raise ValueError("--holdout-policies names every policy of the labels: leave one to train on")
    rows = table.index(rates.question_ids)
    result = fit_and_judge(args, table.vectors[rows], table.side[rows], table.side_names, rates)
    if args.holdout_labels:
        write_labels(args.holdout_labels, rates.take(result.held_out))
    figure = args.output.with_suffix(".png")
    with atomic_path(figure) as temporary:
        result.figure.savefig(temporary, dpi=120)
    save_checkpoint(
        args.output,
        result.members,
        embedding_model=table.model,
        labels=[describe_file(path) for path in args.labels],
        policies=rates.policies,
        report=result.report,
    )
    show(args, figure, result.report)


def parser() -> argparse.ArgumentParser:
    """The command line; the defaults of the training are the paper's where it gives them."""
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--labels", required=True, nargs="+", type=Path, help="parquet files of pass rates")
    result.add_argument("--embeddings", required=True, type=Path, help="X.safetensors of embed_questions.py")
    result.add_argument("--output", required=True, type=Path, help="checkpoint X.safetensors to write")
    held = result.add_argument_group("held out")
    held.add_argument("--holdout-questions", type=float, default=0.1, help="share of the questions (default: %(default)s)")
    held.add_argument("--holdout-labels", type=Path, help="write their labels here, for evaluate_predictor.py")
    held.add_argument("--holdout-policies", nargs="+", default=[], metavar="POLICY", help="policies not to train on")
    how = result.add_argument_group("training")
    how.add_argument("--epochs", type=int, default=12, help="at most (default: %(default)s; the paper has 20)")
    how.add_argument("--members", type=int, default=3, help="networks averaged (default: %(default)s; the paper has 1)")
    how.add_argument("--patience", type=int, default=5, help="epochs without gain before it stops (default: %(default)s)")
    how.add_argument("--batch-size", type=int, default=256, help="default: %(default)s")
    how.add_argument("--learning-rate", type=float, default=1e-3, help="default: %(default)s")
    how.add_argument("--weight-decay", type=float, default=0.05, help="default: %(default)s; the paper has none")
    how.add_argument("--dropout", type=float, default=0.4, help="default: %(default)s; the paper has 0.1")
    how.add_argument("--width", type=int, default=256, help="of the projections (default: %(default)s; the paper has 896)")
    how.add_argument("--layers", type=int, default=3, help="of the projections (default: %(default)s)")
    how.add_argument("--reference-size", type=int, default=256, help="reference questions (default: %(default)s)")
    how.add_argument("--rollouts", type=int, default=8, help="rollouts behind their labels (default: %(default)s)")
    how.add_argument("--shift", type=float, default=2.0, help="policies weaker and stronger by up to this (log odds)")
    how.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    how.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    return result


def check(args: argparse.Namespace) -> None:
    """Refuse numbers out of range and outputs that could not be written, before anything is read.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    check_at_least(args, 1, "epochs", "members", "patience", "batch_size", "width", "layers", "rollouts", "threads")
    check_at_least(args, 2, "reference_size")
    if not 0 < args.holdout_questions < 1:
        raise ValueError(f"--holdout-questions {args.holdout_questions:g}: must be a share between 0 and 1")
    if not 0 <= args.dropout < 1:
        raise ValueError(f"--dropout {args.dropout:g}: must be at least 0 and below 1")
    for name in ("learning_rate", "weight_decay", "shift"):
        value = getattr(args, name)
        if not (np.isfinite(value) and value >= 0 and (value > 0 or name != "learning_rate")):
            raise ValueError(f"{flag(name)} {value:g}: must not be negative, nor the learning rate 0")
    if args.output.suffix != ".safetensors":
        raise ValueError(f"--output {str(args.output)!r} must end in .safetensors")
    check_output(args.output)
    if args.holdout_labels:
        check_writable(args.holdout_labels)


def write_labels(path: Path, rates: Any) -> None:
    """Pass rates as a label file again."""
    policy, question = np.nonzero(rates.trials)
    frame = pd.DataFrame(
        {
            "question_id": np.array(rates.question_ids)[question],
            "policy": np.array(rates.policies)[policy],
            "successes": rates.successes[policy, question],
            "trials": rates.trials[policy, question].astype(np.int32),
        }
    )
    with atomic_path(path) as temporary:
        frame.to_parquet(temporary)


def show(args: argparse.Namespace, figure: Path, report: dict[str, Any]) -> None:
    """The report as a table."""
    from rich.console import Console
    from rich.table import Table

    table = Table("held out", "policy", "shift", "Pearson", "calibration error", title=str(args.output))
    for row in report["held_out"]:
        cells = (row["questions"], row["policy"], f"{row['shift']:+.0f}", f"{row['pearson']:.3f}")
        table.add_row(*cells, f"{row['calibration_error']:.3f}")
    console = Console()
    console.print(table)
    console.print(f"best epochs {report['best_epochs']} of {args.epochs}, figure {figure}")


if __name__ == "__main__":
    run_cli(main)
