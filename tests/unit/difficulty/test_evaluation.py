"""Label files and the numbers a predictor is judged by, on cases with a known answer."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import spearmanr

from verl_dots.difficulty.evaluation import TrialSettings, evaluate, shifted
from verl_dots.difficulty.pass_rates import read_pass_rates
from verl_dots.difficulty.predictor import Prediction


class Fixed:
    """A predictor that always gives the same answer and remembers the labels it saw."""

    def __init__(self, difficulty):
        self.difficulty, self.seen = np.asarray(difficulty, np.float32), []

    def predict(self, reference_index, successes, trials, age):
        self.seen.append((reference_index, successes, trials))
        return Prediction(self.difficulty, np.full(len(age), np.nan), {"expected_pearson": 0.5})


def test_numbers_of_a_fixed_prediction():
    rng = np.random.default_rng(0)
    truth = rng.random(400)
    predictor = Fixed(np.clip(truth + rng.normal(scale=0.2, size=400), 0, 1))
    found = evaluate(predictor, truth, TrialSettings(100, 8, repeats=3, select=20, temperature=1e-4))
    expected = []
    for index, successes, trials in predictor.seen:
        assert len(set(index)) == 100 and (trials == 8).all()
        others = np.setdiff1d(np.arange(400), index)
        p, t = predictor.difficulty[others], truth[others]
        nearest = np.argsort(np.abs(p - 0.5))[:20]
        informative = np.mean((1 - t[nearest] >= 0.125) & (1 - t[nearest] <= 0.875))
        expected.append((np.corrcoef(p, t)[0, 1], spearmanr(p, t)[0], informative))
        assert np.corrcoef(1 - successes / 8, truth[index])[0, 1] > 0.8  # labels of 8 rollouts, not the truth itself
        assert not np.allclose(1 - successes / 8, truth[index])
    pearson, spearman, precision = np.mean(expected, axis=0)
    assert found["pearson_mean"] == pytest.approx(pearson)
    assert found["pearson_std"] == pytest.approx(np.std([row[0] for row in expected]))
    assert found["spearman_mean"] == pytest.approx(spearman)
    assert found["precision_at_target"] == pytest.approx(precision, abs=0.05)
    assert found["precision_random"] == pytest.approx(np.mean((truth >= 0.125) & (truth <= 0.875)))
    assert found["expected_pearson_mean"] == 0.5 and found["seconds_per_10k"] >= 0


def test_a_constant_prediction_has_no_correlation():
    found = evaluate(Fixed(np.full(50, 0.5)), np.linspace(0, 1, 50), TrialSettings(10, 8, 2))
    assert np.isnan(found["pearson_mean"]) and np.isnan(found["spearman_mean"])


def test_a_weaker_policy_fails_more_and_orders_alike():
    logits = np.linspace(-3, 3, 7)
    weaker = shifted(logits, 1.0, 0.7)
    assert (np.diff(weaker) > 0).all() and weaker.mean() > shifted(logits).mean()
    assert shifted(np.array([0.5]), 1.0, 2.0)[0] == pytest.approx(1 / (1 + np.exp(-2.0)))


def test_label_files_add_up_per_question_and_policy(tmp_path):
    pd.DataFrame(
        {
            "question_id": ["a", "b", "a", "a"],
            "policy": ["p", "p", "p", "q"],
            "successes": [1.0, 2.0, 3.0, 0.5],
            "trials": [4, 4, 4, 1],
        }
    ).to_parquet(tmp_path / "one.parquet")
    pd.DataFrame({"question_id": ["b", "c"], "successes": [0, 8], "trials": [8, 8]}).to_parquet(tmp_path / "two.parquet")
    rates = read_pass_rates([tmp_path / "one.parquet", tmp_path / "two.parquet"])
    assert rates.policies == ("p", "q", "two") and rates.question_ids == ("a", "b", "c")
    np.testing.assert_array_equal(rates.trials, [[8, 4, 0], [1, 0, 0], [0, 8, 8]])
    np.testing.assert_array_equal(rates.successes, [[4, 2, 0], [0.5, 0, 0], [0, 0, 8]])
    np.testing.assert_allclose(rates.failure_rates(), [[0.5, 0.5, np.nan], [0.5, np.nan, np.nan], [np.nan, 1, 0]])
    assert rates.failure_logits()[2, 2] == pytest.approx(np.log(0.5 / 8.5))
    np.testing.assert_array_equal(rates.take(np.array([2, 0])).trials, [[0, 8], [0, 1], [8, 0]])


def test_observations_of_a_run_are_labels(tmp_path):
    from verl_dots.difficulty.observations import ObservationLog
    from verl_dots.types import Observation

    log = ObservationLog()
    log.append([Observation("a", 1, "explored", 3.0, 8), Observation("a", 2, "selected", 5.0, 8)])
    log.to_parquet(tmp_path / "o.parquet")
    rates = read_pass_rates([tmp_path / "o.parquet"])
    assert rates.policies == ("0", "1")
    np.testing.assert_array_equal(rates.successes, [[3], [5]])
