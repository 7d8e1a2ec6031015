"""verl_dots.difficulty.estimate: when it estimates, what it believes, and that it needs nothing but the log."""

import json

import numpy as np
import pytest

from verl_dots.config import DotsConfig
from verl_dots.difficulty.estimate import DifficultyEstimator, _Evidence, posterior_mean, prior_strength
from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.difficulty.observations import ObservationLog
from verl_dots.difficulty.predictor import Prediction
from verl_dots.types import METRICS, Observation, question_id

N = 600
POOL = [question_id(str(i)) for i in range(N)]


class Recorder:
    """A predictor that answers 0.5 and remembers what it was asked."""

    def predict(self, reference_index, successes, trials, age):
        self.asked = (reference_index, successes, trials, age)
        return Prediction(np.full(N, 0.5, np.float32), np.full(len(age), 0.5), {"expected_pearson": 0.25})


def config(**reference) -> DotsConfig:
    return DotsConfig.from_mapping({"reference": {"size": 64, **reference}}).resolve(16)


def seen(row: int, step: int, successes: float, source: str = "selected", trials: int = 8, predicted=None):
    return Observation(POOL[row], step, source, successes, trials, predicted)


def test_uniform_until_enough_labels():
    estimator = DifficultyEstimator(Recorder(), POOL, config(min_size=32))
    estimator.observe(seen(i, 1, 4) for i in range(31))
    early = estimator.refresh(2)
    assert early.difficulty is None and early.prior is None
    assert early.labels == 31 and early.metrics == {"dots/labels": 31.0}
    estimator.observe([seen(31, 2, 4)])
    assert estimator.refresh(3).difficulty.shape == (N,)


def test_the_predictor_is_asked_about_the_window():
    recorder = Recorder()
    estimator = DifficultyEstimator(recorder, POOL, config(min_size=2))
    estimator.observe(seen(i, 1 + i // 10, i % 9) for i in range(100))
    estimator.observe([Observation("0" * 32, 10, "selected", 1.0, 8)])  # a question that has left the pool
    estimate = estimator.refresh(13)
    index, successes, trials, age = recorder.asked
    assert estimate.labels == 63
    np.testing.assert_array_equal(index, np.arange(37, 100))
    np.testing.assert_array_equal(successes, index % 9)
    np.testing.assert_array_equal(trials, 8)
    np.testing.assert_array_equal(age, 13 - (1 + index // 10))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ({"window": "all"}, {"selected", "explored"}),
        ({"window": "explored"}, {"explored"}),
        ({"mode": "fresh"}, {"reference"}),
        ({"mode": "overlap"}, {"reference"}),
    ],
)
def test_modes_choose_the_labels(reference, expected):
    estimator = DifficultyEstimator(Recorder(), POOL, config(min_size=2, **reference))
    names = ("selected", "explored") if reference.get("mode") is None else ("selected", "explored", "reference")
    estimator.observe(seen(i, 1, 4, names[i % len(names)]) for i in range(90))
    assert {o.source for o in estimator.reference_set()} == expected


def test_own_groups_pull_the_estimate_and_age_loosens_it():
    estimator = DifficultyEstimator(Recorder(), POOL, config(min_size=2, mode="fresh"))
    estimator.observe(seen(100 + i, 1, i % 9, "reference") for i in range(40))
    estimator.observe([seen(0, 1, 8), seen(1, 1, 0)])
    soon, late = estimator.refresh(2), estimator.refresh(20)
    assert soon.difficulty[0] < 0.4 and soon.difficulty[1] > 0.6
    assert soon.difficulty[0] < late.difficulty[0] < 0.5 < late.difficulty[1] < soon.difficulty[1]
    assert soon.difficulty[2] == soon.prior[2] == 0.5


def test_posterior_can_be_switched_off():
    off = DotsConfig.from_mapping({"reference": {"size": 64, "min_size": 2}, "predictor": {"posterior": False}})
    estimator = DifficultyEstimator(Recorder(), POOL, off)
    estimator.observe([seen(0, 1, 8), seen(1, 1, 0), seen(2, 1, 0)])
    np.testing.assert_array_equal(estimator.refresh(2).difficulty, 0.5)


def test_discounted_sums_equal_the_loop():
    rng = np.random.default_rng(0)
    log = ObservationLog()
    log.append(seen(int(rng.integers(20)), 1 + i // 5, float(rng.integers(9))) for i in range(200))
    rows = {question: row for row, question in enumerate(POOL)}
    evidence = _Evidence.of(log.arrays(), rows)
    failures, total = evidence.discounted(N, 41, half_life=8.0)
    for row in range(20):
        mine = [o for o in log.window(1000) if o.question_id == POOL[row] and 41 - o.step < 48]
        weights = [0.5 ** ((41 - o.step) / 8) for o in mine]
        assert total[row] == pytest.approx(sum(w * 8 for w in weights))
        assert failures[row] == pytest.approx(sum(w * (8 - o.successes) for w, o in zip(weights, mine, strict=True)))
    index, step = np.arange(20), rng.integers(10, 40, 20)
    failures, total = evidence.before(index, step, half_life=4.0)
    for row in range(20):
        mine = [o for o in log.window(1000) if o.question_id == POOL[row] and 0 < step[row] - o.step < 24]
        assert total[row] == pytest.approx(sum(8 * 0.5 ** ((step[row] - o.step) / 4) for o in mine))


@pytest.mark.parametrize("strength", [3.0, 12.0, 60.0])
def test_prior_strength_recovers_a_beta_binomial(strength):
    rng = np.random.default_rng(0)
    mean = rng.uniform(0.1, 0.9, 20_000)
    truth = rng.beta(strength * mean, strength * (1 - mean))
    successes = rng.binomial(8, 1 - truth)
    assert prior_strength(mean, successes, np.full(20_000, 8.0)) == pytest.approx(strength, rel=0.15)


def test_prior_strength_of_degenerate_labels_is_finite():
    for predicted, successes, trials in ((0.5, 1.0, 1.0), (0.0, 8.0, 8.0), (1.0, 8.0, 8.0), (0.5, 4.0, 8.0)):
        assert 1 <= prior_strength(np.full(5, predicted), np.full(5, successes), np.full(5, trials)) <= 256


def test_posterior_mean_is_the_beta_mean():
    assert posterior_mean(np.array([0.25]), 4.0, np.array([3.0]), np.array([4.0]))[0] == (0.25 * 4 + 3) / 8


def simulated(posterior: bool, seed: int = 0) -> tuple[DifficultyEstimator, np.ndarray]:
    """30 steps of a run in which half of the difficulty is in the vectors and half is each question's own."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(N, 6)).astype(np.float32)
    logit = 1.5 * vectors[:, 0] + 1.5 * rng.normal(size=N)
    block = {"reference": {"size": 128, "min_size": 32}, "predictor": {"posterior": posterior}}
    estimator = DifficultyEstimator(KernelPredictor(vectors), POOL, DotsConfig.from_mapping(block).resolve(16))
    for step in range(1, 31):
        logit = logit - 0.02
        truth = 1 / (1 + np.exp(-logit))
        rows = rng.choice(N, 16, replace=False)
        estimator.observe(seen(int(r), step, float(rng.binomial(8, 1 - truth[r])), "explored") for r in rows)
    return estimator, truth


def test_prior_and_evidence_together_beat_either_alone():
    estimator, truth = simulated(posterior=True)
    estimate = estimator.refresh(31)
    arrays = estimator.log.arrays()
    rows = np.unique([POOL.index(arrays.question_ids[q]) for q in arrays.question])
    evidence = _Evidence.of(arrays, {question: row for row, question in enumerate(POOL)})
    failures, total = evidence.discounted(N, 31, np.inf)
    alone = np.where(total > 0, failures / np.maximum(total, 1), truth.mean())

    def pearson(guess):
        return np.corrcoef(guess, truth)[0, 1]

    assert pearson(estimate.difficulty) > max(pearson(estimate.prior), pearson(alone)) + 0.03
    assert len(rows) < N


def test_metrics_have_their_documented_names():
    estimator, _ = simulated(posterior=True)
    metrics = estimator.refresh(31).metrics
    assert set(metrics) <= set(METRICS)
    assert {"dots/labels", "dots/predicted_mean", "dots/target_share", "dots/expected_pearson"} <= set(metrics)


def test_a_resumed_run_estimates_exactly_what_an_uninterrupted_one_does(tmp_path):
    estimator, _ = simulated(posterior=True)
    estimator.log.to_parquet(tmp_path / "o.parquet")
    state = json.loads(json.dumps(estimator.state_dict()))
    resumed = DifficultyEstimator(estimator._predictor, POOL, estimator._config)
    resumed.log = ObservationLog.from_parquet(tmp_path / "o.parquet")
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(resumed.refresh(31).difficulty, estimator.refresh(31).difficulty)


def test_a_state_of_another_run_is_refused():
    estimator, _ = simulated(posterior=True)
    state = estimator.state_dict()
    empty = DifficultyEstimator(Recorder(), POOL, config())
    with pytest.raises(ValueError, match="480 observations, 0 were loaded"):
        empty.load_state_dict(state)
    with pytest.raises(ValueError, match="version 99"):
        empty.load_state_dict(state | {"version": 99})
