"""How the figures look: colours that colour-blind readers and grey printers can tell apart, and thinning of long series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from verl_dots.reporting.readers import Series
from verl_dots.reporting.runs import Run
from verl_dots.reporting.text import plot_text

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")  # Okabe and Ito
BASELINE_COLOUR = "#333333"
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "D", "^", "v", "P")
GREY = "#6b6b6b"
SEQUENTIAL = "cividis"  # even for readers who see no red or green, and monotone in grey
WIDTH = 7.4  # inches, the text width of a printed page
MOST_POINTS = 400

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.6,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
    "svg.fonttype": "path",  # the page looks the same without our fonts
    "svg.hashsalt": "verl-dots",  # the same run gives the same file
}


@dataclass(frozen=True)
class Look:
    """How one run is drawn."""

    label: str
    colour: str
    dash: Any
    marker: str

    def line(self, **more: Any) -> dict[str, Any]:
        """Arguments of `Axes.plot`."""
        return {"color": self.colour, "linestyle": self.dash, "label": self.label, **more}


@dataclass(frozen=True)
class Picture:
    """One figure of the page; without a `figure`, `missing` says why.

    Attributes:
        key: file name of the PNG.
        title: heading above it.
        caption: what it shows and how to read it.
    """

    key: str
    title: str
    caption: str
    figure: Figure | None = None
    missing: str = ""


def looks(runs: Sequence[Run], baseline: Run | None) -> dict[str, Look]:
    """By run name; the baseline is dark grey, the others take the colours in turn."""
    styles = cycle(zip(COLOURS, DASHES, MARKERS, strict=True))
    found = {}
    for run in runs:
        if run is baseline:
            found[run.name] = Look(plot_text(f"{run.name} (baseline)"), BASELINE_COLOUR, (0, (4, 1.5)), "X")
        else:
            colour, dash, marker = next(styles)
            found[run.name] = Look(plot_text(run.name), colour, dash, marker)
    return found


@contextmanager
def drawing() -> Iterator[None]:
    """Our settings of matplotlib, for the figures made inside."""
    with matplotlib.rc_context(_RC):
        yield


def axes_grid(rows: int, columns: int, height: float, **options: Any) -> tuple[Figure, np.ndarray]:
    """A page-wide figure of `rows x columns` axes, `height` inches per row."""
    figure = Figure(figsize=(WIDTH, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def thin(series: Series, most: int = MOST_POINTS) -> Series:
    """At most `most` points: the means of equal stretches of steps."""
    if len(series) <= most:
        return series
    edges = np.linspace(0, len(series), most + 1).astype(int)
    count = np.diff(edges)
    steps = np.add.reduceat(series.steps, edges[:-1]) / count
    return Series(steps.astype(np.int64), np.add.reduceat(series.values, edges[:-1]) / count)


def smooth(series: Series, stretches: int = 25) -> Series:
    """Centred moving average over a 25th of the series, shorter at both ends; short series stay as they are."""
    width = len(series) // stretches
    if width < 2:
        return series
    total = np.concatenate([[0.0], np.cumsum(series.values)])
    place = np.arange(len(series))
    low, high = np.maximum(place - width, 0), np.minimum(place + width + 1, len(series))
    return Series(series.steps, (total[high] - total[low]) / (high - low))


def draw_noisy(axes: Axes, series: Series, look: Look, **more: Any) -> None:
    """A per-step metric: its moving average, and the thing itself faintly behind."""
    if len(series) >= 50:
        raw = thin(series)
        axes.plot(raw.steps, raw.values, color=look.colour, alpha=0.25, linewidth=0.7)
    average = thin(smooth(series))
    axes.plot(average.steps, average.values, **look.line(**more))


def legend_above(figure: Figure, handles: Sequence[Any], most_columns: int = 4) -> None:
    """One legend for all axes, above them."""
    unique = {handle.get_label(): handle for handle in handles if not handle.get_label().startswith("_")}
    if unique:
        columns = min(most_columns, len(unique))
        figure.legend(handles=list(islice(unique.values(), 12)), loc="outside upper left", ncols=columns, handlelength=2.8)
