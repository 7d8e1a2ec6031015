"""What a report measures in a run: accuracy, hours, generated tokens, seconds per part of a step."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from verl_dots.reporting.readers import EMPTY, WALL_SECONDS, Series
from verl_dots.reporting.runs import Run

_ACCURACY = re.compile(r"^val-core/(?P<source>.+)/(?:acc|reward|score)/mean(?:@|_at_)\d+$")

STEP_PARTS = {
    "timing_s/gen": "rollouts",
    "dots/reference_seconds": "reference rollouts",
    "dots/refresh_seconds": "prediction and selection",
    "timing_s/reward": "rewards",
    "timing_s/old_log_prob": "log-probs and weights",
    "timing_s/ref": "reference policy",
    "timing_s/values": "critic",
    "timing_s/adv": "advantages",
    "timing_s/update_critic": "critic update",
    "timing_s/update_actor": "policy update",
    "timing_s/update_weights": "weights to the rollout engine",
    "timing_s/save_checkpoint": "checkpoint",
}
"""Timers inside verl's `timing_s/step`, in the order of a step; validation is timed outside of it."""


def benchmarks(run: Run) -> dict[str, Series]:
    """verl's main validation metric by data source: `val-core/<source>/acc/mean@k`."""
    found = {}
    for name, series in run.series.items():
        match = _ACCURACY.match(name)
        if match:
            found[match["source"]] = series
    return dict(sorted(found.items()))


def common_benchmarks(runs: Sequence[Run]) -> list[str]:
    """Data sources that every run with a validation was validated on; the average of a run must mean the same."""
    measured = [set(benchmarks(run)) for run in runs if benchmarks(run)]
    return sorted(set.intersection(*measured)) if measured else []


def accuracy(run: Run, sources: Sequence[str]) -> Series:
    """Mean over the data sources at the steps at which all of them were measured."""
    by_source = benchmarks(run)
    chosen = [by_source[source] for source in sources if source in by_source]
    if not chosen or len(chosen) < len(sources):
        return EMPTY
    steps = chosen[0].steps
    for series in chosen[1:]:
        steps = np.intersect1d(steps, series.steps)
    values = [series.values[np.isin(series.steps, steps)] for series in chosen]
    return Series(steps, np.mean(values, axis=0) if len(steps) else np.zeros(0))


def cumulative(series: Series) -> Series:
    """Running total; a step that is missing from the log counts like the next one that is there."""
    if not len(series):
        return EMPTY
    weights = np.diff(series.steps, prepend=series.steps[0] - 1)
    return Series(series.steps, np.cumsum(series.values * weights))


def at(total: Series, step: int) -> float | None:
    """The value of a running total after `step`: 0 before its first record, None where nothing was logged."""
    if not len(total):
        return None
    place = np.searchsorted(total.steps, step, side="right")
    return float(total.values[place - 1]) if place else 0.0


def seconds(run: Run) -> tuple[Series, str]:
    """Seconds of training after each step, validation not counted, and how they were measured."""
    for name in ("timing_s/step", "perf/time_per_step"):
        if run.get(name):
            return cumulative(run.get(name)), "sum of verl's step timer, validation not counted"
    clock = run.get(WALL_SECONDS)
    if len(clock):
        return clock, "clock of the logger, from its first record and with validation, since the step timer is missing"
    return EMPTY, "not logged"


def tokens_per_step(run: Run) -> tuple[Series, str]:
    """Response tokens generated in each step, and how they were counted.

    verl does not log generated tokens. Without `dots/generated_tokens` they are derived as
    `perf/total_num_tokens * response / (prompt + response)` from the mean lengths; groups that verl's group filter threw
    away are added with the mean length where `rollout.n` is known.
    """
    counted = run.get("dots/generated_tokens")
    if len(counted):
        return counted, "counted where they were generated"
    total, response, prompt = (
        run.get(name) for name in ("perf/total_num_tokens", "response_length/mean", "prompt_length/mean")
    )
    steps = np.intersect1d(np.intersect1d(total.steps, response.steps), prompt.steps)
    if not len(steps):
        return EMPTY, "not logged"
    total_values, mean_response, mean_prompt = (s.values[np.isin(s.steps, steps)] for s in (total, response, prompt))
    tokens = total_values * mean_response / (mean_prompt + mean_response)
    filtered, how = _filtered_groups(run, steps)
    if filtered is not None and run.rollouts is not None:
        tokens = tokens + filtered * run.rollouts * mean_response
    return Series(steps, tokens), how


def _filtered_groups(run: Run, steps: np.ndarray) -> tuple[np.ndarray | None, str]:
    derived = "derived from the batch's total tokens and mean lengths"
    names = [f"training/filter_groups/{kind}_samples" for kind in ("evicted", "discarded_surplus")]
    if not any(run.get(name) for name in names):
        return None, derived
    if run.rollouts is None:
        return None, f"{derived}; a lower bound, since groups that verl's filter threw away are not among them"
    groups = np.zeros(len(steps))
    for name in names:
        series = run.get(name)
        here = np.isin(series.steps, steps)
        groups[np.searchsorted(steps, series.steps[here])] += series.values[here]
    return groups, f"{derived}; groups that verl's filter threw away are added with the mean length"


def step_seconds(run: Run) -> dict[str, float]:
    """Mean seconds of each part of a step, over all steps but the first (which starts the machinery).

    Keys are the labels of `STEP_PARTS`, then `other` for what no timer covers, then `validation`, spread over all steps.
    """
    step = run.get("timing_s/step")
    if len(step) < 2:
        return {}
    later, count = step.steps[1:], len(step) - 1
    parts: dict[str, float] = {}
    for name, label in STEP_PARTS.items():
        series = run.get(name)
        total = float(series.values[np.isin(series.steps, later)].sum())
        if total > 0:
            parts[label] = total / count
    parts["other"] = max(0.0, float(step.values[1:].mean()) - sum(parts.values()))
    testing = run.get("timing_s/testing")
    if len(testing):
        parts["validation"] = float(testing.values[np.isin(testing.steps, later)].sum()) / count
    return parts
