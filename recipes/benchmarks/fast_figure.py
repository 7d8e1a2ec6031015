"""The figure of the fast loop: accuracy against what was generated, a panel for each task and batch size."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fast_tables import setting
from matplotlib.figure import Figure

from verl_dots.files import atomic_path
from verl_dots.reporting.style import BASELINE_COLOUR, COLOURS, DASHES, drawing

DRAWN = ("grpo", "dots", "dots_rr fresh .5", "dots_rr fresh .75", "dots_rr fresh 1", "dots_rr fresh 1.5", "dapo")
"""Rows of the tables that are drawn, the others would hide them."""
PANEL = (3.4, 3.0)
"""Inches."""


def draw(runs: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the figure; a line is the mean over seeds, the band reaches from the worst to the best seed."""
    panels: dict[tuple[str, str], dict[str, list[dict]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        if run["label"] in DRAWN:
            panels[setting(run)][run["label"]].append(run["curve"])
    with drawing():
        figure = Figure(figsize=(PANEL[0] * len(panels), PANEL[1]))
        axes = figure.subplots(1, len(panels), squeeze=False)
        for axis, ((task, batch), curves) in zip(axes[0], sorted(panels.items()), strict=True):
            for label in filter(curves.__contains__, DRAWN):
                _line(axis, curves[label], label)
            if "grpo" in curves:
                axis.set_xlim(0, 1.1 * max(curve["groups"][-1] for curve in curves["grpo"]))
            axis.set(title=f"{task}, batch {batch}", xlabel="groups generated")
        axes[0][0].set_ylabel("accuracy at temperature 1")
        axes[0][0].legend(loc="lower right")
        with atomic_path(path) as temporary:
            figure.savefig(temporary, dpi=110, format="png")


def _line(axis, curves: Sequence[dict], label: str) -> None:
    place = DRAWN.index(label)  # GRPO is the first
    colour, dash = (COLOURS[place - 1], DASHES[place - 1]) if place else (BASELINE_COLOUR, ":")
    groups, accuracy = (np.array([curve[name] for curve in curves]) for name in ("groups", "accuracy"))
    mean = groups.mean(0)
    axis.plot(mean, accuracy.mean(0), label=f"{label} ({len(curves)} seeds)", color=colour, linestyle=dash)
    axis.fill_between(mean, accuracy.min(0), accuracy.max(0), color=colour, alpha=0.12, linewidth=0)
