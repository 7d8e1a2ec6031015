"""verl_dots.difficulty.labels: what held-out predictions promise."""

import numpy as np
import pytest

from verl_dots.difficulty.labels import expected_pearson


@pytest.mark.parametrize("noise", [0.1, 0.3, 1.0])
def test_for_calibrated_predictions_it_is_the_correlation(noise):
    generator = np.random.default_rng(0)
    predicted = generator.normal(size=20_000)
    seen = predicted + noise * generator.normal(size=20_000)
    assert expected_pearson(predicted, seen) == pytest.approx(np.corrcoef(predicted, seen)[0, 1], abs=0.02)


def test_without_skill_it_is_nothing_where_the_correlation_would_be_minus_one():
    seen = np.random.default_rng(0).random(12)
    means = (seen.sum() - seen) / 11
    assert np.corrcoef(means, seen)[0, 1] < -0.99
    assert expected_pearson(means, seen) == 0.0


def test_constant_labels_promise_nothing():
    assert expected_pearson(np.linspace(0, 1, 9), np.ones(9)) is None
