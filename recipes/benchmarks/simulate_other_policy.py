#!/usr/bin/env python
"""Give every question the success rate of an imaginary other policy: a side feature of known quality, and a worthless one.

    python recipes/benchmarks/simulate_other_policy.py --questions Q.parquet --labels labels.parquet --correlation 0.85 \\
        --output with_other.parquet

The other policy's log odds are the labelled policy's, shifted (weaker by 1) and scaled (0.8), with normal noise just strong
enough that the two success rates correlate as asked. Writes the question file with two more columns: `other_rate`, and
`permuted_rate`, the same numbers given to the wrong questions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from verl_dots.difficulty.evaluation import shifted
from verl_dots.difficulty.pass_rates import read_pass_rates
from verl_dots.files import Parser, atomic_path, read_parquet, run_cli
from verl_dots.manifests import check_output, write_manifest
from verl_dots.types import question_id

SHIFT, SCALE = 1.0, 0.8


def main(argv: Sequence[str] | None = None) -> None:
    """Read, simulate, write."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--questions", required=True, type=Path, help="parquet with a column question")
    parser.add_argument("--labels", required=True, type=Path, help="parquet of collect_pass_rates.py")
    parser.add_argument("--correlation", type=float, default=0.85, help="of the two success rates (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--output", required=True, type=Path, help="parquet to write")
    args = parser.parse_args(argv)
    if not 0 < args.correlation < 1:
        raise ValueError(f"--correlation {args.correlation:g}: must lie between 0 and 1")
    check_output(args.output)
    frame = read_parquet(args.questions, ["question"])
    rates = read_pass_rates([args.labels])
    generator = np.random.default_rng(args.seed)
    other, found = correlated(rates.failure_logits()[0], args.correlation, generator)
    by_id = dict(zip(rates.question_ids, 1 - other, strict=True))
    column = np.array([by_id.get(question_id(text), np.nan) for text in frame["question"]])
    with atomic_path(args.output) as temporary:
        frame.assign(other_rate=column, permuted_rate=generator.permutation(column)).to_parquet(temporary)
    write_manifest(args.output, stage="simulate_other_policy", correlation=found, seed=args.seed)
    print(f"{args.output}: {len(frame):,} questions, the two success rates correlate {found:.3f}")


def correlated(logits: np.ndarray, wanted: float, generator: np.random.Generator) -> tuple[np.ndarray, float]:
    """Failure rates (N,) of the other policy and their correlation; the noise is found by bisection."""
    truth, noise = shifted(logits), generator.normal(size=len(logits))

    def other(strength: float) -> np.ndarray:
        return shifted(SCALE * logits + strength * noise, SHIFT)

    low, high = 0.0, 50.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if np.corrcoef(truth, other(middle))[0, 1] > wanted else (low, middle)
    return other(low), float(np.corrcoef(truth, other(low))[0, 1])


if __name__ == "__main__":
    run_cli(main)
