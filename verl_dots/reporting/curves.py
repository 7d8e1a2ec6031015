"""Figures of progress: accuracy against steps, tokens and hours; accuracy by benchmark; the informative share."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, PercentFormatter

from verl_dots.reporting.compare import Comparison, Cost, Progress
from verl_dots.reporting.quantities import at, benchmarks
from verl_dots.reporting.readers import Series
from verl_dots.reporting.style import GREY, Look, Picture, axes_grid, draw_noisy, legend_above, smooth
from verl_dots.reporting.text import plot_text

_COSTS = ("steps", "generated tokens", "time")
_FEW = 50
"""Validations up to which each one gets a mark; more are drawn as a moving average with the single ones behind."""


def accuracy_picture(comparison: Comparison, looks: dict[str, Look]) -> Picture:
    """Validation accuracy against three costs, with the way to the baseline's final accuracy marked."""
    key, title = "accuracy", "Accuracy against what it cost"
    shown = [item for item in comparison.runs if len(item.accuracy)]
    if not shown:
        return Picture(key, title, "", missing="no run logged a validation accuracy (val-core/.../mean@k)")
    longest = max((item.seconds.values[-1] for item in shown if len(item.seconds)), default=0.0)
    unit, label = (3600.0, "hours") if longest >= 2 * 3600 else (60.0, "minutes")
    figure, grid = axes_grid(1, 3, 2.7, sharey=True)
    for axes, cost in zip(grid[0], _COSTS, strict=True):
        for item in shown:
            _draw_progress(axes, item, cost, unit, looks[item.run.name])
        if axes.lines:
            _draw_target(axes, comparison, cost, unit, looks)
        axes.set_xlabel(label if cost == "time" else cost)
        if cost == "generated tokens":
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if not axes.lines:
            axes.text(0.5, 0.5, "not logged", transform=axes.transAxes, ha="center", color=GREY)
    grid[0, 0].set_ylabel("validation accuracy")
    legend_above(figure, grid[0, 0].get_lines())
    return Picture(key, title, _accuracy_caption(comparison), figure)


def _cost_of(item: Progress, step: int, cost: str, unit: float) -> float | None:
    """What `item` had spent after `step`, on the x-axis of its panel; `unit` is that of time in seconds."""
    if cost == "steps":
        return float(step)
    total = at(item.tokens if cost == "generated tokens" else item.seconds, step)
    return total / unit if total is not None and cost == "time" else total


def _draw_progress(axes: Axes, item: Progress, cost: str, unit: float, look: Look) -> None:
    places = [_cost_of(item, int(step), cost, unit) for step in item.accuracy.steps]
    if any(place is None for place in places):
        return
    if len(places) <= _FEW:
        axes.plot(places, item.accuracy.values, **look.line(marker=look.marker, markerfacecolor="white"))
        return
    axes.plot(places, item.accuracy.values, color=look.colour, alpha=0.3, linewidth=0.7)
    axes.plot(places, smooth(item.accuracy).values, **look.line())


def _draw_target(axes: Axes, comparison: Comparison, cost: str, unit: float, looks: dict[str, Look]) -> None:
    if comparison.end is None or comparison.baseline is None:
        return
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top)  # the vertical lines below must not stretch it
    axes.axhline(comparison.target, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)))
    marks: list[tuple[Progress, Cost]] = [(comparison.baseline, comparison.end)]
    marks += [(verdict.progress, verdict.reached) for verdict in comparison.verdicts if verdict.reached]
    for item, spent in marks:
        place = _cost_of(item, spent.step, cost, unit)
        if place is not None:
            look = looks[item.run.name]
            axes.vlines(place, bottom, spent.accuracy, color=look.colour, linewidth=0.9, linestyle=":")
            axes.plot([place], [spent.accuracy], marker=look.marker, color=look.colour, markersize=7, linestyle="none")


def _accuracy_caption(comparison: Comparison) -> str:
    what = "mean over " + ", ".join(comparison.sources) if len(comparison.sources) > 1 else comparison.sources[0]
    text = f"Accuracy is verl's val-core mean@k of {what}. Hours and tokens are those of training, without validation. "
    if comparison.end is None:
        return text
    return text + (
        "The dotted horizontal line is the baseline's final accuracy. Filled marks and vertical lines: the whole baseline, "
        "and the first validation at which another run is at or above that accuracy."
    )


def benchmarks_picture(comparison: Comparison, looks: dict[str, Look]) -> Picture | None:
    """One panel per data source; None where there is only one."""
    by_run = {item.run.name: benchmarks(item.run) for item in comparison.runs}
    sources = sorted({source for found in by_run.values() for source in found})
    if len(sources) < 2:
        return None
    columns = min(3, len(sources))
    figure, grid = axes_grid(math.ceil(len(sources) / columns), columns, 2.2)
    for axes, source in zip(grid.flat, sources, strict=False):
        for name, found in by_run.items():
            series = found.get(source, Series(np.zeros(0, np.int64), np.zeros(0)))
            axes.plot(series.steps, series.values, **looks[name].line())
        axes.set_title(plot_text(source))
        axes.set_xlabel("steps")
    for axes in grid.flat[len(sources) :]:
        axes.set_visible(False)
    legend_above(figure, grid.flat[0].get_lines())
    return Picture("benchmarks", "Accuracy by benchmark", "val-core mean@k of each data source.", figure)


def informative_picture(comparison: Comparison, looks: dict[str, Look]) -> Picture:
    """Share of groups that teach something, among the generated and among the trained ones."""
    key, title = "informative", "Informative groups"
    panels = (
        ("dots/informative_share", "of the groups generated for training"),
        ("dots/trained_informative_share", "of the groups trained on"),
    )
    runs = [item.run for item in comparison.runs if any(item.run.get(name) for name, _ in panels)]
    if not runs:
        return Picture(key, title, "", missing="verl's own trainer does not log how many groups have mixed rewards")
    figure, grid = axes_grid(1, 2, 2.4, sharey=True)
    for axes, (name, label) in zip(grid[0], panels, strict=True):
        for run in runs:
            if run.get(name):
                draw_noisy(axes, run.get(name), looks[run.name])
        axes.set(title=label, xlabel="steps", ylim=(0, 1.02))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    legend_above(figure, [line for axes in grid[0] for line in axes.get_lines()])
    caption = (
        "A group whose rewards are all equal has zero advantages and moves nothing. Left: how well the questions were "
        "chosen. Right: what was trained on, after replayed groups took the places of uninformative ones. Lines are moving "
        "averages, the faint ones single steps."
    )
    without = [item.run.name for item in comparison.runs if item.run not in runs]
    if without:
        caption += f" Not logged by verl's own trainer: {', '.join(without)}."
    return Picture(key, title, caption, figure)
