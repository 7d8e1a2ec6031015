"""The reference set as every predictor reads it: one row per distinct question, with weights for age and trials.

Shapes: K labelled groups of Q <= K distinct questions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

HALF_TRIALS = 4.0
"""A label from this many rollouts counts half as much as one from infinitely many: beyond, it is questions that differ."""

MERGE_HALF_LIFE = 16.0
RECENT = 16.0
"""Half-life in steps of a label's weight in judging candidates and in calibration: they serve the policy of now."""


@dataclass(frozen=True)
class Labels:
    """The reference set, one row per distinct question, ordered by pool row."""

    index: np.ndarray  # (Q,) int64, row in the pool
    difficulty: np.ndarray  # (Q,) observed failure rate
    trials: np.ndarray  # (Q,) rollouts
    age: np.ndarray  # (Q,) mean age of the rollouts in steps
    inverse: np.ndarray  # (K,) which row each group went to

    def take(self, rows: np.ndarray) -> Labels:
        """Only some of the questions; `inverse` no longer says anything."""
        return Labels(self.index[rows], self.difficulty[rows], self.trials[rows], self.age[rows], self.inverse[:0])


def merge_labels(index: np.ndarray, successes: np.ndarray, trials: np.ndarray, age: np.ndarray) -> Labels:
    """Put the groups of one question together, so that leaving one out leaves the whole question out.

    A question's older groups count less than its latest one, by half every `MERGE_HALF_LIFE` steps.
    """
    assert len(index) >= 1, "a reference set needs at least one group"
    unique, inverse = np.unique(index, return_inverse=True)
    age = np.asarray(age, dtype=float)
    latest = np.full(len(unique), np.inf)
    np.minimum.at(latest, inverse, age)
    share = 0.5 ** ((age - latest[inverse]) / MERGE_HALF_LIFE)  # (K,)
    total = np.bincount(inverse, weights=share * trials)
    solved = np.bincount(inverse, weights=share * successes)
    mean_age = np.bincount(inverse, weights=share * trials * age) / total
    return Labels(unique, 1 - solved / total, total, mean_age, inverse)


def label_weights(labels: Labels, half_life: float) -> np.ndarray:
    """How much each label counts, (Q,), mean 1: trials with diminishing returns, halved every `half_life` steps."""
    weights = labels.trials / (labels.trials + HALF_TRIALS) * 0.5 ** ((labels.age - labels.age.min()) / half_life)
    return weights / weights.mean()


def expected_pearson(held_out: np.ndarray, difficulty: np.ndarray) -> float | None:
    """The correlation that predictions (Q,) promise which were made without the question's own label.

    `sqrt(1 - e / m)` with their squared error e and that of the mean of the other labels m, and 0 where they are no better:
    for calibrated predictions this is the correlation. The correlation itself misleads at small Q: without skill a held-out
    prediction is such a mean, and moves against the label it has not seen (-1). None where all labels are equal.
    """
    if len(difficulty) < 3 or difficulty.std() < 1e-9:
        return None
    others = (difficulty.sum() - difficulty) / (len(difficulty) - 1)
    share = np.mean(np.square(held_out - difficulty)) / np.mean(np.square(others - difficulty))
    return float(np.sqrt(max(0.0, 1.0 - share)))


def pearson(left: np.ndarray, right: np.ndarray) -> float | None:
    """Correlation, or None where one side is constant or there are fewer than three values."""
    if len(left) < 3 or left.std() < 1e-9 or right.std() < 1e-9:
        return None
    return float(np.corrcoef(left, right)[0, 1])
