#!/usr/bin/env python
"""Evaluate a difficulty predictor on labelled questions, the way a run would use it.

    python data_prep/evaluate_predictor.py --labels labels/unseen.parquet --embeddings data/math.safetensors \\
        --checkpoint data/predictor.safetensors --reference-size 256 --rollouts 8 --repeats 10 --json

Draws a reference set from the labels, shows the predictor what a few rollouts of these questions would have given, and
compares its prediction for all others with their pass rates. Without --checkpoint it judges the predictor that needs no
training. With several policies in the labels, each is judged and the mean is printed. --shift and --scale (log odds)
imitate a weaker (+) or stronger (-) policy.

Prints pearson_mean, pearson_std, spearman_mean, calibration_error, precision_at_target (of --select questions drawn around
difficulty --target, the share whose true success rate is in [0.125, 0.875]) with precision_random beside it,
expected_pearson_mean (what the predictor expects of itself) and seconds_per_10k; --json: as one object.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from common.options import check_at_least

from verl_dots.difficulty.evaluation import TrialSettings, evaluate, shifted
from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.difficulty.pass_rates import PassRates, read_pass_rates
from verl_dots.difficulty.predictor import Predictor
from verl_dots.embeddings import EmbeddingTable
from verl_dots.files import Parser, run_cli

SIDES = ("given", "hidden", "permuted")


def main(argv: Sequence[str] | None = None) -> None:
    """Read, evaluate, print."""
    args = parser().parse_args(argv)
    check(args)
    table = EmbeddingTable.open(args.embeddings)
    rates = read_pass_rates([args.labels])
    unknown = sorted(set(args.policy) - set(rates.policies))
    if unknown:
        raise ValueError(f"--policy {unknown[0]!r} is not in {str(args.labels)!r}: it has {', '.join(rates.policies)}")
    members = None
    if args.checkpoint:
        from verl_dots.difficulty.checkpoint import load_checkpoint

        members = load_checkpoint(args.checkpoint, table)
    results = []
    for number, policy in enumerate(rates.policies):
        asked = np.flatnonzero(rates.trials[number] > 0)
        if args.policy and policy not in args.policy:
            continue
        if len(asked) <= args.reference_size:
            raise ValueError(
                f"{str(args.labels)!r} has {len(asked)} questions of policy {policy!r}: --reference-size "
                f"{args.reference_size} leaves none to predict"
            )
        results.append(evaluate_policy(args, table, members, rates, number, asked))
    quality = {name: float(np.mean([result[name] for result in results])) for name in results[0]}
    show(args, quality)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--labels", required=True, type=Path, help="parquet: question_id, successes, trials, perhaps policy")
    result.add_argument("--embeddings", required=True, type=Path, help="X.safetensors of embed_questions.py")
    result.add_argument("--checkpoint", type=Path, help="X.safetensors of fit_predictor.py")
    result.add_argument("--policy", nargs="+", default=[], help="policies of the labels to judge (default: all)")
    result.add_argument("--reference-size", type=int, default=256, help="labelled questions (default: %(default)s)")
    result.add_argument("--rollouts", type=int, default=8, help="rollouts behind a label (default: %(default)s)")
    result.add_argument("--repeats", type=int, default=10, help="reference sets drawn (default: %(default)s)")
    result.add_argument("--select", type=int, default=64, help="questions selected (default: %(default)s)")
    result.add_argument("--target", type=float, default=TrialSettings.target, help="failure rate (default: %(default)s)")
    result.add_argument("--shift", type=float, default=0.0, help="added to the log odds of failure (default: 0)")
    result.add_argument("--scale", type=float, default=1.0, help="multiplied to the log odds of failure (default: 1)")
    result.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    result.add_argument(
        "--side", choices=SIDES, default="given", help="hide side features or give them to the wrong questions"
    )
    result.add_argument("--threads", type=int, help="CPU threads of the trained predictor (default: torch's choice)")
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


def check(args: argparse.Namespace) -> None:
    """Refuse numbers out of range before anything is read.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    check_at_least(args, 2, "reference_size")
    check_at_least(args, 1, "rollouts", "repeats", "select", "threads")
    if not 0 <= args.target <= 1:
        raise ValueError(f"--target {args.target:g}: use a failure rate in [0, 1]")
    if not args.scale > 0:
        raise ValueError(f"--scale {args.scale:g}: must be above 0")


def evaluate_policy(
    args: argparse.Namespace, table: EmbeddingTable, members, rates: PassRates, number: int, asked: np.ndarray
) -> dict[str, float]:
    """Quality on the questions that one policy was asked."""
    rows = table.index([rates.question_ids[question] for question in asked])
    side = table.side[rows]
    if args.side == "hidden":
        side = np.full_like(side, np.nan)
    elif args.side == "permuted":
        side = np.random.default_rng(args.seed).permutation(side)
    predictor: Predictor
    if members is None:
        predictor = KernelPredictor(table.vectors[rows], side)
    else:
        import torch

        from verl_dots.difficulty.trained import TrainedPredictor

        if args.threads:
            torch.set_num_threads(args.threads)
        predictor = TrainedPredictor(members, table.vectors[rows], side)
    truth = rates.failure_rates()[number, asked]
    if args.shift or args.scale != 1:
        truth = shifted(rates.failure_logits()[number, asked], args.shift, args.scale)
    settings = TrialSettings(args.reference_size, args.rollouts, args.repeats, args.select, args.target, seed=args.seed)
    return {**evaluate(predictor, truth, settings), "questions": float(len(asked))}


def show(args: argparse.Namespace, quality: dict[str, float]) -> None:
    """One JSON object, or a table."""
    quality = {name: round(value, 5) if np.isfinite(value) else None for name, value in quality.items()}
    if args.json:
        print(json.dumps(quality))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("quantity", "value", title=f"{args.labels}, {args.checkpoint or 'kernel fitted on the reference set'}")
    for name, value in quality.items():
        table.add_row(name, "undefined" if value is None else f"{value:g}")
    Console().print(table)


if __name__ == "__main__":
    run_cli(main)
