"""verl_dots.difficulty.stacking: what labels say about base logits and side features, and what chance may not."""

import numpy as np
import pytest

from verl_dots.difficulty.stacking import fit_stack, logistic, side_columns


def problem(count: int = 256, seed: int = 0):
    """A base logit that is right up to slope and offset, with labels of 8 rollouts."""
    rng = np.random.default_rng(seed)
    base = rng.normal(size=(count, 1)) * 1.5
    truth = logistic(1.6 * base[:, 0] - 0.8)
    return base, rng.binomial(8, truth) / 8, truth, rng


def test_slope_and_offset_are_recovered():
    base, labels, truth, _ = problem(2000)
    stack = fit_stack(base, labels, np.ones(2000))
    assert stack.base_weights[0] == pytest.approx(1.6, abs=0.15)
    assert stack.offset == pytest.approx(-0.8, abs=0.1)
    np.testing.assert_allclose(stack.difficulty(base), truth, atol=0.05)


def test_without_labels_to_speak_of_the_base_is_believed():
    base = np.array([[0.5], [-0.5]])
    stack = fit_stack(base, np.array([0.6, 0.4]), np.ones(2))
    np.testing.assert_allclose(stack.difficulty(base), logistic(base[:, 0]), atol=0.1)


def test_held_out_predictions_are_those_of_a_fit_without_the_label():
    base, labels, _, rng = problem(40)
    weights = rng.uniform(0.5, 1.5, 40)
    stack = fit_stack(base, labels, weights)
    for left_out in range(40):
        rest = np.delete(np.arange(40), left_out)
        without = fit_stack(base[rest], labels[rest], weights[rest]).difficulty(base[[left_out]])[0]
        assert stack.held_out[left_out] == pytest.approx(without, abs=0.01)


def test_weights_are_repeats():
    base, labels, _, _ = problem(30)
    weights = np.ones(30)
    weights[:10] = 2
    twice = fit_stack(np.concatenate([base, base[:10]]), np.concatenate([labels, labels[:10]]), np.ones(40))
    np.testing.assert_allclose(fit_stack(base, labels, weights).base_weights, twice.base_weights, rtol=1e-6)


def test_a_telling_side_feature_gets_weight():
    base, _, truth, rng = problem()
    side = side_columns(rng.normal(size=(256, 1)))
    truth = logistic(base[:, 0] + 1.5 * side[:, 0])
    stack = fit_stack(base, rng.binomial(8, truth) / 8, np.ones(256), side=side)
    assert stack.side_weights[0] == pytest.approx(1.5, abs=0.3)


def test_chance_seldom_lets_a_side_feature_in_and_then_it_is_small():
    let_in, weights = 0, []
    for seed in range(40):
        base, labels, _, rng = problem(seed=seed)
        stack = fit_stack(base, labels, np.ones(256), side=side_columns(rng.normal(size=(256, 1))))
        let_in += bool(stack.side_weights.any())
        weights.append(abs(stack.side_weights[0]))
    assert let_in <= 3
    assert max(weights) < 0.5


def test_side_columns_depend_on_ranks_only_and_mark_gaps():
    values = np.array([[3.0, 1.0], [1.0, np.nan], [2.0, 5.0], [10.0, 2.0]])
    columns = side_columns(values)
    assert columns.shape == (4, 3)  # the second feature has gaps
    np.testing.assert_allclose(columns, side_columns(np.column_stack([np.exp(values[:, 0]), values[:, 1] ** 3])))
    assert np.argsort(columns[:, 0]).tolist() == [1, 2, 0, 3]
    assert columns[1, 1] == 0
    assert columns[1, 2] != columns[0, 2]


@pytest.mark.parametrize("values", [np.zeros((5, 0)), np.full((5, 1), np.nan), np.full((5, 1), 2.0)])
def test_side_features_that_say_nothing_are_harmless(values):
    columns = side_columns(values)
    assert np.isfinite(columns).all()
    stack = fit_stack(np.linspace(-1, 1, 5)[:, None], np.linspace(0, 1, 5), np.ones(5), side=columns)
    assert np.isfinite(stack.difficulty(np.zeros((5, 1)), columns)).all()


@pytest.mark.parametrize("labels", [np.zeros(6), np.ones(6), np.array([0, 1, 0, 1, 0, 1.0])])
def test_extreme_labels_and_logits_stay_finite(labels):
    base = np.array([-12.0, 12, -12, 12, 0, 0])[:, None]
    stack = fit_stack(base, labels, np.ones(6))
    assert np.isfinite(stack.difficulty(base)).all()
    assert np.isfinite(stack.held_out).all()
