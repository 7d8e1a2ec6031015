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

from dataclasses import dataclass

import numpy as np

from verl_dots.difficulty.labels import Labels, label_weights, merge_labels, pearson
from verl_dots.difficulty.predictor import Prediction
from verl_dots.difficulty.stacking import fit_stack, logit, side_columns

BETAS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
SHRINKS = (0.1, 0.3, 1.0, 3.0, 10.0)
RIDGES = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
HALF_LIVES = (4.0, 16.0, np.inf)
"""Candidates. Half-lives are in training steps."""
RECENT = 16.0
"""Half-life of a label's weight in judging candidates: they are to predict for the policy of now."""
CHUNK = 16_384
"""Questions predicted at a time: (CHUNK, K) scores of 16 MB at K = 256."""
CONSTANT = 100.0
"""Variance of the free constant in units of the kernel's: large, so that ridge does not shrink the mean label to zero."""


@dataclass(frozen=True)
class _Fit:
    """One estimator with chosen parameters. `weights`: of the labels (attention), or dual coefficients (ridge), (Q,)."""

    ridge: bool
    beta: float
    strength: float
    half_life: float
    loss: float
    held_out: np.ndarray  # (Q,)
    weights: np.ndarray  # (Q,)


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
        fits = [fit(distance, labels) for fit in (_fit_attention, _fit_ridge)]
        best = min(fits, key=lambda fit: fit.loss)
        stack = fit_stack(
            logit(best.held_out)[:, None],
            labels.difficulty,
            label_weights(labels, RECENT),
            side=self._columns[labels.index],
        )
        difficulty = np.empty(len(self._vectors), dtype=np.float32)
        for start in range(0, len(difficulty), CHUNK):
            rows = slice(start, start + CHUNK)
            raw = _apply(best, _distances(self._rows(rows), reference), labels)
            difficulty[rows] = stack.difficulty(logit(raw)[:, None], self._columns[rows])
        report = {
            "ridge": float(best.ridge),
            "beta": best.beta,
            "strength": best.strength,
            "half_life": min(best.half_life, 1e9),
            "loss_attention": fits[0].loss,
            "loss_ridge": fits[1].loss,
            "slope": float(stack.base_weights[0]),
            "offset": stack.offset,
        }
        report |= {f"side_{number}": float(weight) for number, weight in enumerate(stack.side_weights)}
        expected = pearson(stack.held_out, labels.difficulty)
        if expected is not None:
            report["expected_pearson"] = expected
        return Prediction(difficulty, stack.held_out[labels.inverse], report)

    def _rows(self, rows: np.ndarray | slice) -> np.ndarray:
        """Centred and scaled vectors, float32 (rows, D)."""
        return (np.asarray(self._vectors[rows], dtype=np.float32) - self._centre) * np.float32(self._scale)


def _half_lives(labels: Labels) -> tuple[float, ...]:
    return HALF_LIVES if np.ptp(labels.age) > 0 else (np.inf,)


def _loss(held_out: np.ndarray, labels: Labels) -> float:
    """Mean squared error of held-out predictions; recent labels and those with more trials count more."""
    return float(np.average(np.square(np.clip(held_out, 0, 1) - labels.difficulty), weights=label_weights(labels, RECENT)))


def _fit_attention(distance: np.ndarray, labels: Labels) -> _Fit:
    best = None
    for half_life in _half_lives(labels):
        weights = label_weights(labels, half_life)  # (Q,)
        mean = _leave_one_out_mean(labels.difficulty, weights)  # (Q,)
        for beta in BETAS:
            scores = np.exp(-beta / 2 * distance) * weights  # (Q, Q)
            np.fill_diagonal(scores, 0)
            top, bottom = scores @ labels.difficulty, scores.sum(axis=1)
            for shrink in SHRINKS:
                held_out = (top + shrink * mean) / (bottom + shrink)
                loss = _loss(held_out, labels)
                if best is None or loss < best.loss:
                    best = _Fit(False, beta, shrink, half_life, loss, held_out, weights)
    return best


def _leave_one_out_mean(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weighted mean of the other values, (Q,); 0.5 when there is no other."""
    if len(values) == 1:
        return np.full(1, 0.5)
    return (weights @ values - weights * values) / (weights.sum() - weights)


def _fit_ridge(distance: np.ndarray, labels: Labels) -> _Fit:
    """Leave-one-out residuals of ridge in closed form: alpha_i / (K + R)^-1_ii, all ridges from one eigenbasis."""
    best = None
    for half_life in _half_lives(labels):
        weights = label_weights(labels, half_life)  # (Q,)
        root = np.sqrt(weights)
        for beta in BETAS:
            kernel = np.exp(-beta / 2 * distance) + CONSTANT
            values, basis = np.linalg.eigh(root[:, None] * kernel * root)
            target = basis.T @ (root * labels.difficulty)  # (Q,)
            for strength in RIDGES:
                inverse = 1 / (np.maximum(values, 0) + strength)
                dual = root * (basis @ (inverse * target))  # (Q,)
                held_out = labels.difficulty - dual / (weights * (np.square(basis) @ inverse))
                loss = _loss(held_out, labels)
                if best is None or loss < best.loss:
                    best = _Fit(True, beta, strength, half_life, loss, held_out, dual)
    return best


def _apply(fit: _Fit, distance: np.ndarray, labels: Labels) -> np.ndarray:
    """Predictions (n,) for questions at squared distances (n, Q) from the reference questions."""
    scores = np.exp(np.float32(-fit.beta / 2) * distance)
    if fit.ridge:
        return scores @ fit.weights.astype(np.float32) + CONSTANT * fit.weights.sum()
    mean = np.average(labels.difficulty, weights=fit.weights)
    columns = np.column_stack([fit.weights * labels.difficulty, fit.weights]).astype(np.float32)  # (Q, 2)
    top, bottom = (scores @ columns).T
    return (top + fit.strength * mean) / (bottom + fit.strength)


def _distances(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Squared Euclidean distances (n, Q) by one matrix product."""
    product = left @ right.T
    product *= -2
    product += np.square(left).sum(axis=1)[:, None]
    product += np.square(right).sum(axis=1)
    return np.maximum(product, 0, out=product)
