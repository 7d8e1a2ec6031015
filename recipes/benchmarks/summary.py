"""Medians, ranges and crossings, shared by the benchmarks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float | None]) -> dict[str, float | None]:
    """`median`, `min` and `max`. None stands for "never": worse than any number, so it can be the median or the maximum.

    Raises ValueError for no values.
    """
    if not values:
        raise ValueError("no values to summarise")
    ordered = sorted(float("inf") if value is None else float(value) for value in values)
    numbers = {"median": statistics.median(ordered), "min": ordered[0], "max": ordered[-1]}
    return {name: None if value == float("inf") else value for name, value in numbers.items()}


def crossing(steps: Sequence[float], accuracy: Sequence[float], target: float) -> tuple[float, int, float] | None:
    """Where a curve first reaches `target`, linear between its points; None where it never does.

    Returns:
        The step, the number of the point before it, and the share of the way to the next point.
    """
    for right, value in enumerate(accuracy):
        if value >= target:
            if right == 0:
                return float(steps[0]), 0, 0.0
            before = accuracy[right - 1]
            share = (target - before) / (value - before)
            return steps[right - 1] + share * (steps[right] - steps[right - 1]), right - 1, share
    return None
