"""Combining what is known about questions into one calibrated logit, fitted on the labels of the moment.

A predictor gives one or more **base** logits; the question file may give **side features** (another model's pass rate, a
level, the length). A penalised logistic regression on the reference set weighs them: base logits are believed until the
labels say otherwise, side features are ignored until the labels say they help (leave-one-out loss), so that a worthless
one does no harm.

Shapes: N questions, Q labelled questions, M base logits, S side features, C columns made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

SIDE_PRECISIONS = (1.0, 4.0, 16.0, 64.0)
"""Penalties tried for the side features, beside leaving them out."""
STANDARD_ERRORS = 2.0
"""Side features must lower the held-out loss by this many standard errors: chance alone seldom lets them in."""
OFFSET_PRECISION = 1.0
BASE_PRECISION = 4.0
CLIP_LOGIT = 12.0
NEWTON_STEPS = 25


def side_columns(side: np.ndarray) -> np.ndarray:
    """Normal scores of side features (N, S) with NaN where unknown, float32 (N, C); unknown values are 0.

    A feature's ranks are spread over a normal distribution, so its scale and any monotone transform of it do not matter. A
    feature that is unknown for some but not all questions gets a second column that says where.
    """
    columns = []
    for values in np.asarray(side, dtype=np.float64).T:
        known = np.isfinite(values)
        column = np.zeros(len(values), dtype=np.float32)
        if known.any():
            column[known] = ndtri((rankdata(values[known]) - 0.5) / known.sum())
        columns.append(column)
        if known.any() and not known.all():
            columns.append(known.astype(np.float32) - known.mean(dtype=np.float32))
    return np.stack(columns, axis=1) if columns else np.zeros((len(side), 0), dtype=np.float32)


@dataclass(frozen=True)
class Stack:
    """A fitted combination: logit = base @ base_weights + side @ side_weights + offset."""

    base_weights: np.ndarray  # (M,)
    side_weights: np.ndarray  # (C,)
    offset: float
    held_out: np.ndarray  # (Q,) leave-one-out difficulty of the labelled questions

    def difficulty(self, base: np.ndarray, side: np.ndarray | None = None) -> np.ndarray:
        """Difficulty (n,) of questions with base logits (n, M) and side columns (n, C)."""
        logit = base @ self.base_weights.astype(base.dtype) + self.offset
        if side is not None and side.shape[1]:
            logit = logit + side @ self.side_weights.astype(side.dtype)
        return logistic(logit)


def fit_stack(
    base: np.ndarray,
    difficulty: np.ndarray,
    weights: np.ndarray,
    *,
    side: np.ndarray | None = None,
    prior: Sequence[float] | None = None,
) -> Stack:
    """Fit on Q labelled questions.

    Args:
        base: (Q, M) logits that were made without each question's own label.
        difficulty: (Q,) observed failure rates.
        weights: (Q,) how much each label counts, mean about 1.
        side: (Q, C) columns of :func:`side_columns`.
        prior: (M,) weights of the base logits that are believed beforehand; 1 / M each by default.
    """
    bases = base.shape[1]
    prior = np.full(bases, 1 / bases) if prior is None else np.asarray(prior, dtype=float)
    side = np.zeros((len(base), 0)) if side is None else side
    inputs = np.column_stack([base, np.ones(len(base)), side]).astype(np.float64)  # (Q, M + 1 + C)
    mean = np.concatenate([prior, np.zeros(1 + side.shape[1])])
    fixed = np.concatenate([np.full(bases, BASE_PRECISION), [OFFSET_PRECISION]])

    def fitted(columns: int, precision: float) -> tuple[np.ndarray, np.ndarray]:
        used = bases + 1 + columns
        penalty = np.concatenate([fixed, np.full(columns, precision)])
        return _ridge_logistic(inputs[:, :used], difficulty, weights, mean[:used], penalty)

    parameters, held_out = fitted(0, 1.0)
    losses = _log_losses(held_out, difficulty)
    plain, lowest = losses, float(np.average(losses, weights=weights))
    for precision in SIDE_PRECISIONS if side.shape[1] else ():
        candidate, candidate_held_out = fitted(side.shape[1], precision)
        losses = _log_losses(candidate_held_out, difficulty)
        gain = weights * (plain - losses)
        error = gain.std() / np.sqrt(len(gain))
        mean_loss = float(np.average(losses, weights=weights))
        if mean_loss < lowest and gain.mean() > STANDARD_ERRORS * error:
            parameters, held_out, lowest = candidate, candidate_held_out, mean_loss
    side_weights = np.zeros(side.shape[1])
    side_weights[: len(parameters) - bases - 1] = parameters[bases + 1 :]
    return Stack(parameters[:bases], side_weights, float(parameters[bases]), held_out)


def logit(values: np.ndarray, clip: float = 0.01) -> np.ndarray:
    """Log odds of values kept `clip` away from 0 and 1."""
    clipped = np.clip(values, clip, 1 - clip)
    return np.log(clipped / (1 - clipped))


def logistic(values: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)), without overflow."""
    return 1 / (1 + np.exp(-np.clip(values, -CLIP_LOGIT, CLIP_LOGIT)))


def _log_losses(predicted: np.ndarray, difficulty: np.ndarray) -> np.ndarray:
    kept = np.clip(predicted, 1e-3, 1 - 1e-3)
    return -(difficulty * np.log(kept) + (1 - difficulty) * np.log(1 - kept))


def _ridge_logistic(
    inputs: np.ndarray, difficulty: np.ndarray, weights: np.ndarray, mean: np.ndarray, precision: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Penalised maximum likelihood by Newton's method with halved steps; parameters, and leave-one-out means (Q,).

    Leaving one label out is one Newton step away from the full fit: its logit moves by h / (1 - h) times the working
    residual, h its leverage.
    """

    def objective(parameters: np.ndarray) -> float:
        losses = _log_losses(logistic(inputs @ parameters), difficulty)
        return float(weights @ losses + 0.5 * precision @ np.square(parameters - mean))

    parameters = mean.copy()
    for _ in range(NEWTON_STEPS):
        chance = logistic(inputs @ parameters)
        gradient = inputs.T @ (weights * (chance - difficulty)) + precision * (parameters - mean)
        step = np.linalg.solve(_curvature(inputs, weights, chance, precision), gradient)
        while objective(parameters - step) > objective(parameters) + 1e-12 and np.abs(step).max() > 1e-9:
            step = step / 2
        parameters = parameters - step
        if np.abs(step).max() < 1e-8:
            break
    chance = logistic(inputs @ parameters)
    inverse = np.linalg.inv(_curvature(inputs, weights, chance, precision))
    spread = np.maximum(chance * (1 - chance), 1e-6)
    leverage = np.minimum(weights * spread * np.einsum("qi,ij,qj->q", inputs, inverse, inputs), 0.95)
    return parameters, logistic(inputs @ parameters + leverage / (1 - leverage) * (chance - difficulty) / spread)


def _curvature(inputs: np.ndarray, weights: np.ndarray, chance: np.ndarray, precision: np.ndarray) -> np.ndarray:
    return (inputs * (weights * chance * (1 - chance))[:, None]).T @ inputs + np.diag(precision)
