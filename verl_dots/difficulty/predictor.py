"""What a predictor of difficulty is, whichever way it works.

A predictor carries the labels of a small reference set over to the whole pool. The vectors of the pool are bound when it is
made, so that whatever depends on them alone (norms, projections) is computed once; a refresh then costs about one matrix
product of the pool with the reference set.

Shapes: N questions in the pool, K labelled groups in the reference set.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


@dataclass(frozen=True)
class Prediction:
    """Difficulty of every question of the pool, and what the predictor thinks of itself.

    Attributes:
        difficulty: (N,) float32, predicted failure rate in [0, 1].
        held_out: (K,) float64, what was predicted for each reference group without any label of its own question; NaN
            where the predictor cannot say.
        report: plain numbers for the log; `expected_pearson` where it is known.
    """

    difficulty: np.ndarray
    held_out: np.ndarray
    report: dict[str, float] = field(default_factory=dict)


class Predictor(Protocol):
    """Predicts the difficulty of every question of a pool from a labelled reference set."""

    def predict(
        self, reference_index: np.ndarray, successes: np.ndarray, trials: np.ndarray, age: np.ndarray
    ) -> Prediction:
        """Predict the pool's difficulty for the policy of now.

        Args:
            reference_index: (K,) int64, which question of the pool each group belongs to; may repeat. K >= 1.
            successes: (K,) float64 in [0, trials], sum of scaled rewards.
            trials: (K,) float64 >= 1, finished rollouts.
            age: (K,) float64 >= 0, training steps since the group was generated.
        """
        ...
