"""The figure of a fit: predicted against true difficulty, calibration curve, training curve."""

from __future__ import annotations

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

BINS = 10


def draw(scatter: tuple[np.ndarray, np.ndarray], history: list[dict[str, float]]) -> Figure:
    """Three panels. `scatter`: predicted and true difficulties (n,) of held-out questions; `history`: one dict per epoch."""
    predicted, true = scatter
    figure = Figure(figsize=(12, 4), layout="constrained")
    FigureCanvasAgg(figure)
    points, calibration, curve = figure.subplots(1, 3)
    shown = np.random.default_rng(0).permutation(len(true))[:3000]
    points.scatter(predicted[shown], true[shown], s=4, alpha=0.3, linewidths=0)
    if len(true) > 2 and np.std(predicted) > 0 and np.std(true) > 0:
        points.set_title(f"held-out questions, Pearson {np.corrcoef(predicted, true)[0, 1]:.3f}")
    points.set(xlabel="predicted difficulty", ylabel="true difficulty", xlim=(0, 1), ylim=(-0.02, 1.02))
    place = np.minimum((predicted * BINS).astype(int), BINS - 1)
    used = [number for number in range(BINS) if (place == number).any()]
    means = [(predicted[place == number].mean(), true[place == number].mean()) for number in used]
    calibration.plot([0, 1], [0, 1], color="grey", linewidth=1)
    if means:
        calibration.plot(*zip(*means, strict=True), marker="o")
    calibration.set(xlabel="predicted difficulty", ylabel="mean true difficulty", title="calibration")
    epochs = [record["epoch"] for record in history]
    curve.plot(epochs, [record["pearson"] for record in history], marker="o", label="validation Pearson")
    curve.plot(epochs, [record["loss"] for record in history], marker=".", label="training loss")
    curve.set(xlabel="epoch", title="training")
    curve.legend()
    return figure
