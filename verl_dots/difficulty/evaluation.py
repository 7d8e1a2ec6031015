"""How good a predictor is: the numbers that `data_prep/evaluate_predictor.py` prints.

A trial draws K reference questions from labelled ones, lets the predictor see what a few rollouts of each would have shown,
and compares its prediction for all others with their true failure rate. Other policies than the labelled one are imitated by
a shift and a scale of the true log odds.

Shapes: N labelled questions, K reference questions.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from verl_dots.difficulty.labels import pearson
from verl_dots.difficulty.observations import calibration_error
from verl_dots.difficulty.predictor import Predictor
from verl_dots.selection import select_questions, selection_probabilities

INFORMATIVE = (0.125, 0.875)
"""Success rates between which a group of 8 most likely has mixed rewards."""


@dataclass(frozen=True)
class TrialSettings:
    """One experiment, repeated `repeats` times with other draws."""

    reference_size: int = 256
    rollouts: int = 8
    repeats: int = 10
    select: int = 64
    target: float = 0.5
    temperature: float = 0.1
    seed: int = 1


def shifted(failure_logit: np.ndarray, shift: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """Failure rates of another policy that orders the questions alike: sigmoid(scale * logit + shift)."""
    return 1 / (1 + np.exp(-(scale * failure_logit + shift)))


def evaluate(predictor: Predictor, truth: np.ndarray, settings: TrialSettings) -> dict[str, float]:
    """Mean quality over the repeats.

    Args:
        predictor: bound to the N questions of `truth`.
        truth: (N,) true failure rates.

    Returns:
        `pearson_mean`, `pearson_std` (between repeats), `spearman_mean`, `calibration_error` (10 bins),
        `precision_at_target` (share of the selected questions whose true success rate is in [0.125, 0.875]) beside
        `precision_random`, `expected_pearson_mean` (what the predictor said of itself) and `seconds_per_10k`. A correlation
        is NaN where a constant leaves it undefined.
    """
    rows = [_trial(predictor, truth, settings, repeat) for repeat in range(settings.repeats)]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    informative = (1 - truth >= INFORMATIVE[0]) & (1 - truth <= INFORMATIVE[1])
    return {
        "pearson_mean": float(table["pearson"].mean()),
        "pearson_std": float(table["pearson"].std()),
        "spearman_mean": float(table["spearman"].mean()),
        "calibration_error": float(table["calibration_error"].mean()),
        "precision_at_target": float(table["precision"].mean()),
        "precision_random": float(informative.mean()),
        "expected_pearson_mean": float(table["expected_pearson"].mean()),
        "seconds_per_10k": float(np.median(table["seconds"]) / len(truth) * 10_000),
    }


def _trial(predictor: Predictor, truth: np.ndarray, settings: TrialSettings, repeat: int) -> dict[str, float]:
    generator = np.random.default_rng([settings.seed, repeat])
    reference = generator.choice(len(truth), settings.reference_size, replace=False)
    successes = generator.binomial(settings.rollouts, 1 - truth[reference]).astype(float)
    trials = np.full(len(reference), float(settings.rollouts))
    start = time.perf_counter()
    prediction = predictor.predict(reference, successes, trials, np.zeros(len(reference)))
    seconds = time.perf_counter() - start
    others = np.setdiff1d(np.arange(len(truth)), reference)
    predicted, true = prediction.difficulty[others].astype(float), truth[others]
    probabilities = selection_probabilities(predicted, settings.target, settings.temperature)
    chosen = select_questions(probabilities, min(settings.select, len(others)), generator)
    success = 1 - true[chosen]
    correlation = pearson(predicted, true)
    return {
        "pearson": np.nan if correlation is None else correlation,
        "spearman": np.nan if correlation is None else float(spearmanr(predicted, true)[0]),
        "calibration_error": calibration_error(predicted, true),
        "precision": float(np.mean((success >= INFORMATIVE[0]) & (success <= INFORMATIVE[1]))),
        "expected_pearson": prediction.report.get("expected_pearson", np.nan),
        "seconds": seconds,
    }
