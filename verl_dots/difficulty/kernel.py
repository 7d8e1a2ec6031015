"""The predictor that needs no training: attention over the raw vectors, fitted on the reference set itself.

Two estimators share one kernel, `k(x, y) = exp(-beta |x - y|^2 / 2)` on vectors centred and scaled to unit mean square
norm (for unit vectors that is the paper's softmax attention with temperature 1/beta):

* **attention** (Nadaraya-Watson): a weighted mean of the labels, shrunk towards their plain mean;
* **ridge**: kernel ridge regression with a free constant, which also subtracts what neighbours share.

Bandwidth, shrinkage (or ridge) and the age at which a label has lost half of its weight are chosen at every refresh by
leave-one-out error on the reference set, separately for both; the better one predicts. A linear calibration in logit
space, fitted on the same held-out predictions, undoes what shrinkage does to the scale and weighs side features, if any.

Shapes: N questions, D dimensions, K labelled groups of Q <= K distinct questions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from verl_dots.difficulty.labels import RECENT, Labels, expected_pearson, label_weights, merge_labels
from verl_dots.difficulty.predictor import Prediction
from verl_dots.difficulty.stacking import fit_stack, logit, side_columns

BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
SHRINKS = (0.1, 0.3, 1.0, 3.0, 10.0)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
HALF_LIVES = (np.inf, 32.0, 8.0)
"""Candidates. Half-lives are in training steps; one is chosen at the middle bandwidth, then the bandwidth."""
FIT_LABELS = 256
"""Parameters are chosen on this many most recent labels; all labels enter the prediction."""
CHUNK = 16_384
"""Questions predicted at a time: (CHUNK, K) scores of 16 MB at K = 256."""
CONSTANT = 100.0
"""Variance of the free constant in units of the kernel's: large, so that ridge does not shrink the mean label to zero."""


@dataclass(frozen=True)
class _Choice:
    """An estimator and its parameters. `strength` is the shrinkage (attention) or the ridge."""

    ridge: bool
    beta: float
    strength: float
    half_life: float
    loss: float


class KernelPredictor:
    """Kernel attention or ridge over fixed vectors; a `verl_dots.difficulty.predictor.Predictor`.

    Never fails on odd reference sets: constant labels, one question only, repeated questions, zero vectors.
    """

    def __init__(self, vectors: np.ndarray, side: np.ndarray | None = None) -> None:
        """Bind the pool's vectors, (N, D) float16 or float32, memory-mapped or not.

        `side` (N, S): numeric side features, NaN where unknown.
        """
        assert vectors.ndim == 2 and len(vectors) >= 1, f"vectors must be (N, D), not {vectors.shape}"
        self._vectors = vectors
        self._columns = side_columns(np.zeros((len(vectors), 0)) if side is None else side)  # (N, C)
        sample = np.asarray(vectors[:: max(1, len(vectors) // 50_000)], dtype=np.float32)
        self._centre = sample.mean(axis=0)  # (D,)
        mean_square = float(np.square(sample - self._centre).sum(axis=1).mean())
        self._scale = 1 / np.sqrt(mean_square) if mean_square > 1e-12 else 0.0

    def predict(
        self, reference_index: np.ndarray, successes: np.ndarray, trials: np.ndarray, age: np.ndarray
    ) -> Prediction:
        """See :class:`verl_dots.difficulty.predictor.Predictor`. The report says which estimator won and its parameters."""
        labels = merge_labels(reference_index, successes, trials, age)
        reference = self._rows(labels.index)  # (Q, D)
        distance = _distances(reference, reference)  # (Q, Q)
        recent = np.argsort(labels.age, kind="stable")[:FIT_LABELS]
        choices = [_choose(solve, distance[np.ix_(recent, recent)], labels.take(recent)) for solve in (_attention, _ridge)]
        best = min(choices, key=lambda choice: choice.loss)
        weights = label_weights(labels, best.half_life)  # (Q,)
        solve = _ridge if best.ridge else _attention
        [(held_out, coefficients)] = solve(distance, labels.difficulty, weights, best.beta, (best.strength,))
        stack = fit_stack(
            logit(held_out)[:, None],
            labels.difficulty,
            label_weights(labels, RECENT),
            side=self._columns[labels.index],
        )
        difficulty = np.empty(len(self._vectors), dtype=np.float32)
        for start in range(0, len(difficulty), CHUNK):
            rows = slice(start, start + CHUNK)
            raw = _apply(best, _distances(self._rows(rows), reference), labels.difficulty, weights, coefficients)
            difficulty[rows] = stack.difficulty(logit(raw)[:, None], self._columns[rows])
        report = {
            "ridge": float(best.ridge),
            "beta": best.beta,
            "strength": best.strength,
            "half_life": min(best.half_life, 1e9),
            "loss_attention": choices[0].loss,
            "loss_ridge": choices[1].loss,
            "slope": float(stack.base_weights[0]),
            "offset": stack.offset,
        }
        report |= {f"side_{number}": float(weight) for number, weight in enumerate(stack.side_weights)}
        expected = expected_pearson(stack.held_out, labels.difficulty)
        if expected is not None:
            report["expected_pearson"] = expected
        return Prediction(difficulty, stack.held_out[labels.inverse], report)

    def _rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Centred and scaled vectors, float32 (rows, D)."""
        return (np.asarray(self._vectors[rows], dtype=np.float32) - self._centre) * np.float32(self._scale)


_Solutions = list[tuple[np.ndarray, np.ndarray]]
"""For every strength: predictions (Q,) without the question's own label, and coefficients (Q,) of the labels' kernels."""


def _choose(solve: Callable[..., _Solutions], distance: np.ndarray, labels: Labels) -> _Choice:
    """The parameters of one estimator with the lowest leave-one-out error: the half-life first, then the bandwidth."""
    judge = label_weights(labels, RECENT)  # (Q,)
    strengths = RIDGES if solve is _ridge else SHRINKS
    middle = BETAS[len(BETAS) // 2 - 1]
    best = _Choice(solve is _ridge, middle, strengths[-1], np.inf, np.inf)

    def consider(beta: float, half_life: float) -> _Choice:
        solutions = solve(distance, labels.difficulty, label_weights(labels, half_life), beta, strengths)
        errors = [np.square(np.clip(held_out, 0, 1) - labels.difficulty) @ judge / len(judge) for held_out, _ in solutions]
        lowest = int(np.argmin(errors))
        candidate = _Choice(best.ridge, beta, strengths[lowest], half_life, float(errors[lowest]))
        return min(best, candidate, key=lambda choice: choice.loss)

    for half_life in HALF_LIVES if np.ptp(labels.age) > 0 else (np.inf,):
        best = consider(middle, half_life)
    for beta in BETAS:
        if beta != middle:
            best = consider(beta, best.half_life)
    return best


def _attention(
    distance: np.ndarray, difficulty: np.ndarray, weights: np.ndarray, beta: float, strengths: Sequence[float]
) -> _Solutions:
    """Weighted means of the other labels, shrunk towards the plain mean of the others."""
    scores = np.exp(np.float64(-beta / 2) * distance) * weights  # (Q, Q)
    np.fill_diagonal(scores, 0)
    top, bottom = scores @ difficulty, scores.sum(axis=1)
    if len(difficulty) == 1:
        mean = np.full(1, 0.5)  # there is no other label
    else:
        mean = (weights @ difficulty - weights * difficulty) / (weights.sum() - weights)  # (Q,)
    return [((top + strength * mean) / (bottom + strength), weights) for strength in strengths]


def _ridge(
    distance: np.ndarray, difficulty: np.ndarray, weights: np.ndarray, beta: float, strengths: Sequence[float]
) -> _Solutions:
    """Kernel ridge, noise inverse to the weights; leaving one out in closed form, all strengths from one eigenbasis.

    With `M = (kernel + strength / weights)^-1` and dual coefficients `M y`, the residual of a label left out is
    `(M y)_i / M_ii`.
    """
    root = np.sqrt(weights)  # (Q,)
    kernel = np.exp(np.float64(-beta / 2) * distance) + CONSTANT
    values, basis = np.linalg.eigh(root[:, None] * kernel * root)
    target = basis.T @ (root * difficulty)  # (Q,)
    solutions = []
    for strength in strengths:
        inverse = 1 / (np.maximum(values, 0) + strength)
        dual = root * (basis @ (inverse * target))  # (Q,)
        solutions.append((difficulty - dual / (weights * (np.square(basis) @ inverse)), dual))
    return solutions


def _apply(
    choice: _Choice, distance: np.ndarray, difficulty: np.ndarray, weights: np.ndarray, coefficients: np.ndarray
) -> np.ndarray:
    """Predictions (n,) for questions at squared distances (n, Q) from the labelled ones."""
    scores = np.exp(np.float32(-choice.beta / 2) * distance)
    if choice.ridge:
        return scores @ coefficients.astype(np.float32) + CONSTANT * coefficients.sum()
    columns = np.column_stack([weights * difficulty, weights]).astype(np.float32)  # (Q, 2)
    top, bottom = (scores @ columns).T
    return (top + choice.strength * np.average(difficulty, weights=weights)) / (bottom + choice.strength)


def _distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (n, Q) by one matrix product."""
    product = left @ right.T
    product *= -2
    product += np.square(left).sum(axis=1)[:, None]
    product += np.square(right).sum(axis=1)
    return np.maximum(product, 0, out=product)
