#!/usr/bin/env python
"""Which share of a training's time is this package's own, from a py-spy profile of verl's driver process.

    pip install py-spy
    bash recipes/quickstart_cpu.sh &                                     # or any run of yours
    py-spy record --idle --duration 60 --format raw --output driver.raw --pid "$(pgrep -f ray::TaskRunner)"
    python recipes/benchmarks/own_time.py driver.raw

Every sample of the thread that runs verl's `fit` belongs to the innermost frame of either this package or verl: what numpy,
TransferQueue or a worker does for a call of ours is ours, what verl's own method does inside a method that we override is
verl's. Waiting counts (`--idle`), since a step waits too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from verl_dots.files import Parser, run_cli

OURS, VERLS = "verl_dots", "verl"
FIT = "PPOTrainer.fit ("
"""In every stack of the training thread: verl's training loop (verl/trainer/ppo/v1/trainer_base.py)."""


def shares(lines: Iterable[str]) -> dict[str, float]:
    """Share of the training thread's samples by `module function` of ours, and `verl` for the rest; they sum to 1.

    Args:
        lines: stacks of py-spy's raw format, `outermost;...;innermost COUNT`, frames as `function (file:line)`.

    Raises:
        ValueError: no sample is of verl's `fit`, or a line is not a stack.
    """
    counts: Counter[str] = Counter()
    for line in lines:
        stack, _, count = line.rstrip("\n").rpartition(" ")
        if not count.isdigit():
            raise ValueError(f"{line.strip()[:60]!r} is not a stack: record with py-spy's --format raw")
        frames = stack.split(";")
        if any(frame.startswith(FIT) for frame in frames):
            counts[owner(frames)] += int(count)
    total = sum(counts.values())
    if not total:
        raise ValueError("no sample is of verl's training loop: profile the process ray::TaskRunner while it trains")
    return {name: count / total for name, count in counts.most_common()}


def owner(frames: Sequence[str]) -> str:
    """`verl`, or file and function of this package, by the innermost frame of either."""
    for frame in reversed(frames):
        function, _, place = frame.partition(" (")
        parts = place.partition(":")[0].split("/")
        package = next((part for part in reversed(parts[:-1]) if part in (OURS, VERLS)), None)
        if package == OURS:
            start = len(parts) - 1 - parts[::-1].index(OURS)
            return f"{'/'.join(parts[start:])} {function}"
        if package == VERLS:
            return "verl"
    return "verl"


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, help="py-spy's raw output")
    args = parser.parse_args(argv)
    try:
        with args.profile.open(encoding="utf-8") as stream:
            found = shares(stream)
    except ValueError as error:  # also what is not text
        raise ValueError(f"{args.profile}: {error}") from error
    ours = {name: share for name, share in found.items() if name != "verl"}
    for name, share in ours.items():
        print(f"{share:7.2%}  {name}")
    print(f"{sum(ours.values()):7.2%}  this package in all")


if __name__ == "__main__":
    run_cli(main)
