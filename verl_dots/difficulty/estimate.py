"""One difficulty per question: a prediction as prior, the question's own past groups as evidence.

The predictor says what questions *like* this one are like; the question's own groups say how this one differs, but they are
few, old and noisy. Both meet in a Beta posterior on the failure rate:

    prior      Beta with mean = prediction and strength s (in rollouts)
    evidence   failures and successes of the question's own groups, each halved every `half_life` steps
    estimate   (s * prediction + failures) / (s + failures + successes)

`s` comes from how far past predictions were off beyond what G rollouts explain (beta-binomial moments on held-out
predictions of the reference set), `half_life` from how well older groups of the same questions foretold newer ones. Nothing
is carried from refresh to refresh but the observation log: a resumed run estimates exactly what an uninterrupted one does.

Shapes: N questions in the pool, K labelled groups, O observations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl_dots.config import DotsConfig
from verl_dots.difficulty.observations import ObservationArrays, ObservationLog
from verl_dots.difficulty.predictor import Predictor
from verl_dots.types import Observation

STATE_VERSION = 1
HALF_LIVES = (4.0, 8.0, 16.0, 32.0)
DEFAULT_HALF_LIFE = 16.0
MIN_REPEATS = 32
"""Reference groups of questions with older groups of their own that it takes to choose the half-life."""
DEFAULT_STRENGTH = 8.0
STRENGTH_RANGE = (1.0, 256.0)
OWN_HALF_LIVES = 6
"""A group older than this many half-lives is no evidence any more."""


@dataclass(frozen=True)
class Estimate:
    """What a refresh believes.

    Attributes:
        difficulty: (N,) float32 in [0, 1]; None until `reference.min_size` labels exist.
        prior: (N,) float32, the prediction alone; None likewise.
        labels: groups in the reference set.
        metrics: values for the names of `verl_dots.types.METRICS` that a refresh knows.
        report: further numbers about the predictor and the posterior, for people.
    """

    difficulty: np.ndarray | None
    prior: np.ndarray | None
    labels: int
    metrics: dict[str, float]
    report: dict[str, float] = field(default_factory=dict)


class DifficultyEstimator:
    """Keeps the observations of a run and turns them into one difficulty per question.

    Attributes:
        log: every observation so far; save it with the checkpoint and assign the loaded one on resume.
    """

    def __init__(self, predictor: Predictor, pool: Sequence[str], config: DotsConfig) -> None:
        """Bind a predictor to the N distinct question ids of its vectors, in their order.

        `config` must be resolved (`reference.size` is a number); its `reference`, `predictor.posterior` and
        `selection.target` are used.
        """
        assert config.reference.size is not None, "call DotsConfig.resolve first"
        self._predictor = predictor
        self._row = {question_id: row for row, question_id in enumerate(pool)}
        assert len(self._row) == len(pool), "the pool's question ids must be distinct"
        self._config = config
        self.log = ObservationLog()

    def observe(self, observations: Iterable[Observation]) -> None:
        """Record what finished groups showed, oldest step first. Raises what `ObservationLog.append` raises."""
        self.log.append(observations)

    def reference_set(self) -> list[Observation]:
        """The groups that label the predictor now, oldest first (`reference.mode`, `.window`, `.size`)."""
        reference = self._config.reference
        which = reference.window if reference.mode == "window" else "reference"
        return [seen for seen in self.log.window(reference.size, which) if seen.question_id in self._row]

    def refresh(self, step: int) -> Estimate:
        """Estimate the difficulty of every question for the policy about to generate step `step`."""
        labels = self.reference_set()
        metrics = {"dots/labels": float(len(labels)), **self.log.tracking()}
        if len(labels) < self._config.reference.min_size:
            return Estimate(None, None, len(labels), metrics)
        index = np.array([self._row[seen.question_id] for seen in labels])  # (K,)
        successes = np.array([seen.successes for seen in labels])
        trials = np.array([seen.trials for seen in labels], dtype=float)
        label_step = np.array([seen.step for seen in labels])
        prediction = self._predictor.predict(index, successes, trials, np.maximum(step - label_step, 0.0))
        prior = prediction.difficulty
        difficulty, report = prior, dict(prediction.report)
        if self._config.predictor.posterior:
            evidence = _Evidence.of(self.log.arrays(), self._row)
            held_out = np.where(np.isnan(prediction.held_out), prior[index], prediction.held_out)  # (K,)
            strength = prior_strength(held_out, successes, trials)
            half_life = _choose_half_life(evidence, index, label_step, held_out, successes, trials, strength)
            failures, total = evidence.discounted(len(prior), step, half_life)
            difficulty = posterior_mean(prior, strength, failures, total).astype(np.float32)
            report |= {"prior_strength": strength, "own_half_life": half_life}
        metrics |= self._summary(difficulty)
        if "expected_pearson" in report:
            metrics["dots/expected_pearson"] = report["expected_pearson"]
        return Estimate(difficulty, prior, len(labels), metrics, report)

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable; the observations are not in it (`log.to_parquet`)."""
        return {"version": STATE_VERSION, "questions": len(self._row), "observations": len(self.log)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Check that `log`, already assigned, is the one the state was saved with.

        Raises:
            ValueError: a state of another version, or observations that do not belong to it.
        """
        if state.get("version") != STATE_VERSION:
            raise ValueError(f"difficulty state has version {state.get('version')!r}, this code reads {STATE_VERSION}")
        if state.get("observations") != len(self.log):
            raise ValueError(
                f"difficulty state was saved with {state.get('observations')} observations, {len(self.log)} were loaded: "
                "the checkpoint's state.json and observations.parquet do not belong together"
            )

    def _summary(self, difficulty: np.ndarray) -> dict[str, float]:
        near = np.abs(difficulty - self._config.selection.target) <= 0.25
        return {"dots/predicted_mean": float(difficulty.mean()), "dots/target_share": float(near.mean())}


@dataclass(frozen=True)
class _Evidence:
    """Observations of questions of the pool, in the order of arrival."""

    row: np.ndarray  # (O,) int64, row of the question in the pool
    step: np.ndarray  # (O,) int64
    failures: np.ndarray  # (O,)
    trials: np.ndarray  # (O,)

    @classmethod
    def of(cls, arrays: ObservationArrays, rows: dict[str, int]) -> _Evidence:
        row = np.array([rows.get(question_id, -1) for question_id in arrays.question_ids], dtype=np.int64)
        row = row[arrays.question] if len(row) else np.zeros(0, dtype=np.int64)
        inside = row >= 0
        failures = arrays.trials - arrays.successes
        return cls(row[inside], arrays.step[inside], failures[inside], arrays.trials[inside])

    def discounted(self, count: int, step: int, half_life: float) -> tuple[np.ndarray, np.ndarray]:
        """Failures and trials per question, (N,) each, halved every `half_life` steps before `step`."""
        recent = self.step > step - OWN_HALF_LIVES * half_life
        weight = 0.5 ** (np.maximum(step - self.step[recent], 0) / half_life)
        row = self.row[recent]
        failures = np.bincount(row, weights=weight * self.failures[recent], minlength=count)
        return failures, np.bincount(row, weights=weight * self.trials[recent], minlength=count)

    def before(self, index: np.ndarray, step: np.ndarray, half_life: float) -> tuple[np.ndarray, np.ndarray]:
        """Discounted failures and trials (K,) that question `index[k]` had shown before step `step[k]`."""
        steps, place = np.unique(step, return_inverse=True)
        failures, trials = np.zeros(len(index)), np.zeros(len(index))
        for number, now in enumerate(steps):
            ours = np.flatnonzero(place == number)
            older = (self.step < now) & (self.step > now - OWN_HALF_LIVES * half_life) & np.isin(self.row, index[ours])
            weight = 0.5 ** ((now - self.step[older]) / half_life)
            for sums, values in ((failures, self.failures), (trials, self.trials)):
                by_row = np.bincount(self.row[older], weights=weight * values[older], minlength=int(index.max()) + 1)
                sums[ours] = by_row[index[ours]]
        return failures, trials


def posterior_mean(prior: np.ndarray, strength: float, failures: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """Mean of the Beta posterior of the failure rate: (strength * prior + failures) / (strength + trials)."""
    return (strength * prior + failures) / (strength + trials)


def prior_strength(predicted: np.ndarray, successes: np.ndarray, trials: np.ndarray) -> float:
    """How many rollouts a prediction is worth, from its errors on labels it had not seen.

    In a beta-binomial model with mean p and strength s, a group of n rollouts has
    `E[(y - p)^2] = p (1 - p) (1 / n + (1 - 1 / n) / (s + 1))`: what binomial noise does not explain gives s, by moments over
    the (K,) labels. Clipped to [1, 256].
    """
    error = np.square(1 - successes / trials - predicted)
    spread = predicted * (1 - predicted)
    excess = float(np.sum(error - spread / trials))
    explainable = float(np.sum(spread * (1 - 1 / trials)))
    if explainable <= 1e-12:
        return DEFAULT_STRENGTH  # single rollouts, or predictions of 0 and 1 only: the errors do not tell
    share = np.clip(excess / explainable, 1 / (STRENGTH_RANGE[1] + 1), 1 / (STRENGTH_RANGE[0] + 1))
    return float(1 / share - 1)


def _choose_half_life(
    evidence: _Evidence,
    index: np.ndarray,
    step: np.ndarray,
    held_out: np.ndarray,
    successes: np.ndarray,
    trials: np.ndarray,
    strength: float,
) -> float:
    """The half-life under which older groups best foretell the reference groups of the same questions."""
    best, lowest = DEFAULT_HALF_LIFE, np.inf
    for half_life in HALF_LIVES:
        failures, total = evidence.before(index, step, half_life)
        repeated = total > 0
        if repeated.sum() < MIN_REPEATS:
            continue
        chance = posterior_mean(held_out, strength, failures, total)[repeated]
        chance = np.clip(chance, 1e-3, 1 - 1e-3)
        failed, solved = (trials - successes)[repeated], successes[repeated]
        loss = -float(np.sum(failed * np.log(chance) + solved * np.log(1 - chance)) / trials[repeated].sum())
        if loss < lowest:
            best, lowest = half_life, loss
    return best
