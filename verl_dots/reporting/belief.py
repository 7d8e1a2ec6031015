"""Figures of difficulty: predicted against observed, observed over time, and which questions were chosen."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from verl_dots.reporting.questions import QuestionTable, calibration
from verl_dots.reporting.readers import Series
from verl_dots.reporting.runs import Run
from verl_dots.reporting.style import (
    GREY,
    SEQUENTIAL,
    WIDTH,
    Look,
    Picture,
    axes_grid,
    draw_noisy,
    legend_above,
    thin,
)
from verl_dots.reporting.text import number

_CLASSES = {
    "dots/observed_0": "never solved",
    "dots/observed_low": "solved up to 1/4",
    "dots/observed_mid": "in between",
    "dots/observed_high": "solved from 3/4",
    "dots/observed_1": "always solved",
}


def prediction_picture(runs: Sequence[Run], looks: dict[str, Look]) -> Picture:
    """Reliability diagram over the run, and how correlation and calibration developed."""
    key, title = "prediction", "Predicted against observed difficulty"
    measured = {run.name: calibration(run.questions, ["explored"]) for run in runs if run.questions is not None}
    tracked = [run for run in runs if run.get("dots/pearson") or run.get("dots/calibration_error")]
    if not tracked and not any(measured.values()):
        return Picture(key, title, "", missing="no difficulty was predicted, or too few explored groups to judge it by")
    figure, (row,) = axes_grid(1, 3, 2.6)
    row[0].plot([0, 1], [0, 1], color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    sentences = []
    for run in runs:
        found = measured.get(run.name)
        if found is not None:
            look = looks[run.name]
            row[0].errorbar(found.predicted, found.observed, yerr=found.error, capsize=2, elinewidth=0.8,
                            marker=look.marker, **look.line(linewidth=1.2))  # fmt: skip
            sentences.append(
                f"{run.name}: {int(found.count.sum())} explored groups, Pearson {number(found.pearson, 2)}, "
                f"calibration error {number(found.expected_error, 2)}"
            )
    row[0].set(title="whole run", xlabel="predicted difficulty", ylabel="observed difficulty", xlim=(0, 1), ylim=(0, 1))
    panels = (("dots/pearson", "Pearson correlation"), ("dots/calibration_error", "calibration error"))
    for axes, (name, label) in zip(row[1:], panels, strict=True):
        for run in tracked:
            if run.get(name):
                draw_noisy(axes, run.get(name), looks[run.name])
        axes.set(title=label, xlabel="steps")
        low, high = axes.get_ylim()
        axes.set_ylim(min(0.0, low), 1.02 if name == "dots/pearson" else 1.1 * high)
        if not axes.lines:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=GREY)
    legend_above(figure, [line for axes in row[1:] for line in axes.get_lines()] or row[0].get_lines())
    caption = (
        "Explored groups only: they are an unbiased sample of the questions, and were predicted before they were rolled "
        "out. Left: mean observed against mean predicted difficulty in ten bins, with standard errors; on the diagonal a "
        "prediction is right on average. Right: over the last 256 explored groups at each step. One group is a noisy "
        "label, so even a perfect predictor stays below a correlation of 1. "
    )
    return Picture(key, title, caption + "; ".join(sentences) + ("." if sentences else ""), figure)


def difficulty_picture(runs: Sequence[Run], looks: dict[str, Look]) -> Picture:
    """Observed difficulty of what was rolled out, over time."""
    key, title = "difficulty", "Difficulty over time"
    with_log = [run for run in runs if run.questions is not None]
    with_shares = [run for run in runs if run.questions is None and all(run.get(name) for name in _CLASSES)]
    rows = len(with_log) + len(with_shares)
    if not rows:
        return Picture(key, title, "", missing="verl's own trainer does not log success rates of groups")
    figure = Figure(figsize=(WIDTH, 2.2 * rows))
    parts = np.atleast_1d(figure.subfigures(rows, 1, squeeze=True))
    for part, run in zip(parts, [*with_log, *with_shares], strict=True):
        part.suptitle(looks[run.name].label, x=0.01, ha="left", fontsize=9, fontweight="bold")
        if run.questions is not None:
            _draw_heat_maps(part, run.questions)
        else:
            _draw_shares(part.subplots(), run)
    caption = "Groups at difficulty 0 or 1, always or never solved, teach nothing."
    if with_log:
        caption += (
            " Each column is a stretch of steps, each cell the share of its groups with that failure rate; the white line "
            "is their mean. Left: chosen by predicted difficulty. Right: drawn uniformly, which is what the pool looks like "
            "to the policy (before the first prediction, everything is)."
        )
    if with_shares:
        names = ", ".join(run.name for run in with_shares)
        caption += f" {names}: shares of the fresh groups; no log of questions, since difficulty selection was off."
    return Picture(key, title, caption, figure)


def _draw_heat_maps(part: Figure, table: QuestionTable) -> None:
    trials = int(np.median(table.trials))
    levels = trials + 1 if trials <= 16 else 11
    row = part.subplots(1, 2, sharey=True)
    meshes = []
    for axes, source in zip(row, ("selected", "explored"), strict=True):
        chosen = table.of_source(source)
        axes.set(title=source, xlabel="steps", ylim=(-0.5 / (levels - 1), 1 + 0.5 / (levels - 1)))
        axes.grid(False)
        if not chosen.any():
            axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center", color=GREY)
            continue
        meshes.append(_draw_heat_map(axes, table.step[chosen], table.difficulty[chosen], levels))
    row[0].set_ylabel("observed difficulty")
    if meshes:
        most = max(np.percentile(np.asarray(mesh.get_array()), 99) for mesh in meshes)
        for mesh in meshes:
            mesh.set_clim(0, max(0.05, most))
        bar = part.colorbar(meshes[0], ax=list(row), pad=0.01, aspect=25)
        bar.ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        bar.outline.set_visible(False)


def _draw_heat_map(axes: Axes, step: np.ndarray, difficulty: np.ndarray, levels: int):
    """Histogram of difficulty, (levels, columns): columns wide enough for about 20 groups each."""
    first, last = int(step.min()), int(step.max())
    columns = int(np.clip(len(step) // 20, 1, min(80, last - first + 1)))
    edges = np.linspace(first - 0.5, last + 0.5, columns + 1)
    centres = np.arange(levels) / (levels - 1)
    column = np.clip(np.searchsorted(edges, step, side="right") - 1, 0, columns - 1)
    level = np.rint(difficulty * (levels - 1)).astype(int)
    groups = np.zeros((levels, columns))
    np.add.at(groups, (level, column), 1)
    total = groups.sum(axis=0)
    share = groups / np.maximum(total, 1)
    half = 0.5 / (levels - 1)
    rows = np.append(centres - half, 1 + half)
    mesh = axes.pcolormesh(edges, rows, share, cmap=SEQUENTIAL, rasterized=True)
    mean = np.bincount(column, weights=difficulty, minlength=columns) / np.maximum(total, 1)
    middle = (edges[1:] + edges[:-1]) / 2
    axes.plot(middle[total > 0], mean[total > 0], color="white", linewidth=1.4)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return mesh


def _draw_shares(axes: Axes, run: Run) -> None:
    steps = thin(run.get("dots/observed_0"), 80).steps
    values = [thin(run.get(name), 80).values for name in _CLASSES]
    axes.stackplot(steps, values, labels=list(_CLASSES.values()), colors=_shades(), edgecolor="white", linewidth=0.3)
    axes.set(xlabel="steps", ylim=(0, 1))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _shades() -> list[str]:
    return [matplotlib.colors.to_hex(shade) for shade in matplotlib.colormaps[SEQUENTIAL](np.linspace(0.05, 0.95, 5))]


def questions_picture(runs: Sequence[Run], looks: dict[str, Look]) -> Picture:
    """How often each question was chosen, and how many different ones."""
    key, title = "questions", "Which questions were chosen"
    shown = [run for run in runs if run.questions is not None and run.questions.of_source("selected", "explored").any()]
    if not shown:
        return Picture(key, title, "", missing="no run kept a question log (dots/questions/part-*.parquet)")
    figure, (row,) = axes_grid(1, 2, 2.4)
    for run in shown:
        table, look = run.questions, looks[run.name]
        training = table.of_source("selected", "explored")
        times = np.sort(np.bincount(table.question[training]))[::-1]
        times = times[times > 0]
        row[0].step(np.arange(1, len(times) + 1), times, where="mid", **look.line())
        new = thin(_first_appearances(table, training))
        row[1].plot(new.steps, new.values, **look.line())
        groups = thin(_groups_so_far(table, training))
        row[1].plot(groups.steps, groups.values, color=look.colour, linewidth=0.7, alpha=0.7, label="_groups")
    row[0].set(xlabel="question, most often chosen first", ylabel="times chosen", xscale="log")
    row[0].yaxis.set_major_locator(MaxNLocator(integer=True))
    row[1].set(xlabel="steps", ylabel="different questions so far", ylim=(0, None))
    row[1].yaxis.set_major_formatter(EngFormatter(sep=""))
    legend_above(figure, row[0].get_lines())
    caption = (
        "Left: how often each question was rolled out for training. Right: how many different questions were; the thin line "
        "is the number of groups, where it would be if no question ever came twice."
    )
    return Picture(key, title, caption, figure)


def _first_appearances(table: QuestionTable, rows: np.ndarray) -> Series:
    """Distinct questions so far, at each step."""
    _, first = np.unique(table.question[rows], return_index=True)
    steps = np.unique(table.step[rows])
    new = np.bincount(np.searchsorted(steps, table.step[rows][first]), minlength=len(steps))
    return Series(steps.astype(np.int64), np.cumsum(new).astype(float))


def _groups_so_far(table: QuestionTable, rows: np.ndarray) -> Series:
    steps, groups = np.unique(table.step[rows], return_counts=True)
    return Series(steps.astype(np.int64), np.cumsum(groups).astype(float))
