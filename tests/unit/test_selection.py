"""verl_dots.selection: the distribution is the paper's, draws are without replacement and follow it, extremes hold."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from verl_dots.selection import select_questions, selection_entropy, selection_order, selection_probabilities

TEMPERATURES = [1e-300, 1e-12, 1e-3, 0.1, 1.0, 1e12, 1e300]
rates = st.floats(0, 1, allow_subnormal=False)
pools = st.lists(rates, min_size=1, max_size=40).map(np.array)


def rng(seed=0):
    return np.random.default_rng(seed)


class TestProbabilities:
    @settings(deadline=None)
    @given(pools, rates, st.floats(0.05, 100))
    def test_they_are_the_formula(self, difficulty, target, temperature):
        weights = [math.exp(-abs(d - target) / temperature) for d in difficulty]
        expected = np.array(weights) / sum(weights)
        np.testing.assert_allclose(selection_probabilities(difficulty, target, temperature), expected, rtol=1e-9)

    @settings(deadline=None)
    @given(pools, rates, st.sampled_from(TEMPERATURES))
    def test_at_any_temperature_they_are_a_distribution_that_prefers_the_nearest(self, difficulty, target, temperature):
        p = selection_probabilities(difficulty, target, temperature)
        assert p.dtype == np.float64 and p.shape == difficulty.shape
        assert np.isfinite(p).all() and (p >= 0).all()
        assert p.sum() == pytest.approx(1, abs=1e-12)
        nearest_first = np.argsort(np.abs(difficulty - target), kind="stable")
        assert (np.diff(p[nearest_first]) <= 1e-15).all()

    def test_a_tiny_temperature_leaves_the_nearest_and_its_ties(self):
        p = selection_probabilities(np.array([0.0, 0.25, 0.75, 0.25, 1.0]), target=0.5, temperature=1e-12)
        np.testing.assert_allclose(p, [0, 1 / 3, 1 / 3, 1 / 3, 0])

    def test_even_when_nothing_is_near_the_target(self):
        p = selection_probabilities(np.array([0.99, 1.0]), target=0.0, temperature=1e-12)
        np.testing.assert_array_equal(p, [1, 0])

    def test_a_huge_temperature_is_uniform(self):
        p = selection_probabilities(np.linspace(0, 1, 7), target=0.5, temperature=1e12)
        np.testing.assert_allclose(p, 1 / 7, rtol=1e-9)

    def test_lists_are_fine(self):
        np.testing.assert_allclose(selection_probabilities([0.5, 0.5], 0.5, 0.1), [0.5, 0.5])

    @pytest.mark.parametrize(
        ("difficulty", "words"),
        [
            ([0.1, math.nan], "1 of 2 difficulty values .* nan at 1$"),
            ([1.5, 0.2, -0.1], r"2 of 3 .*failure rates in \[0, 1\]: 1.5 at 0, -0.1 at 2$"),
            ([2, 3, 4, 5, 0.5], r"4 of 5 .*2.0 at 0, 3.0 at 1, 4.0 at 2, \.\.\.$"),
            ([math.inf], "1 of 1"),
            ([], "empty"),
        ],
    )
    def test_bad_difficulties_are_counted_and_named(self, difficulty, words):
        for call in (
            lambda: selection_probabilities(np.array(difficulty), 0.5, 0.1),
            lambda: selection_order(np.array(difficulty), 0.5, 0.1, rng()),
        ):
            with pytest.raises(ValueError, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
    def test_a_temperature_must_be_above_0(self, temperature):
        with pytest.raises(ValueError, match="temperature"):
            selection_probabilities(np.array([0.5]), 0.5, temperature)

    @pytest.mark.parametrize("target", [-0.1, 1.1, math.nan])
    def test_a_target_is_a_failure_rate(self, target):
        with pytest.raises(ValueError, match="target"):
            selection_probabilities(np.array([0.5]), target, 0.1)


def sequential(p: np.ndarray, ordered: tuple[int, ...]) -> float:
    """Probability of this ordered draw, one by one from p renormalised over what is left."""
    probability, left = 1.0, 1.0
    for i in ordered:
        probability *= p[i] / left
        left -= p[i]
    return probability


def assert_follows(draw_two, p, repeats=20_000):
    """Chi-square of ordered pairs against the exact probabilities of sequential draws."""
    pairs = list(itertools.permutations(range(len(p)), 2))
    counts = dict.fromkeys(pairs, 0)
    for _ in range(repeats):
        counts[tuple(int(i) for i in draw_two())] += 1
    expected = [repeats * sequential(p, pair) for pair in pairs]
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-3


class TestSelect:
    @settings(deadline=None)
    @given(st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.7, 5.0]), min_size=1, max_size=30), st.data())
    def test_never_a_duplicate_never_outside_positive_ones_first(self, p, data):
        p = np.array(p)
        size = data.draw(st.integers(0, len(p)))
        chosen = select_questions(p, size, rng(data.draw(st.integers(0, 99))))
        assert chosen.dtype == np.int64 and chosen.shape == (size,)
        assert len(set(chosen.tolist())) == size
        assert ((chosen >= 0) & (chosen < len(p))).all()
        positive = int((p > 0).sum())
        assert (p[chosen[:positive]] > 0).all()

    def test_draws_follow_the_distribution(self):
        p, generator = np.array([0.5, 0.3, 0.15, 0.05]), rng(1)
        assert_follows(lambda: select_questions(p, 2, generator), p)

    def test_among_questions_of_probability_0_the_draw_is_uniform(self):
        p, generator = np.array([0.0, 1.0, 0.0, 0.0]), rng(2)
        counts = np.bincount([select_questions(p, 2, generator)[1] for _ in range(6000)], minlength=4)
        assert counts[1] == 0
        assert stats.chisquare(counts[[0, 2, 3]]).pvalue > 1e-3

    def test_a_smaller_draw_is_the_start_of_a_larger_one(self):
        p = rng().random(20)
        np.testing.assert_array_equal(select_questions(p, 5, rng(3)), select_questions(p, 20, rng(3))[:5])

    def test_only_the_generator_decides(self):
        p = np.full(50, 0.02)
        np.random.seed(0)
        first = select_questions(p, 50, rng(4))
        np.random.seed(1)
        np.testing.assert_array_equal(first, select_questions(p, 50, rng(4)))
        assert (first != select_questions(p, 50, rng(5))).any()

    @pytest.mark.parametrize("size", [-1, 4])
    def test_a_size_beyond_the_pool_is_refused(self, size):
        with pytest.raises(ValueError, match=f"{size} different questions: the pool has 3"):
            select_questions(np.ones(3) / 3, size, rng())

    @pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf])
    def test_bad_probabilities_are_named(self, bad):
        with pytest.raises(ValueError, match=f"1 of 2 probability values .*{bad} at 1"):
            select_questions(np.array([0.5, bad]), 1, rng())


class TestOrder:
    @settings(deadline=None)
    @given(pools, rates, st.sampled_from(TEMPERATURES), st.integers(0, 99))
    def test_it_is_a_permutation(self, difficulty, target, temperature, seed):
        order = selection_order(difficulty, target, temperature, rng(seed))
        assert order.dtype == np.int64
        assert sorted(order.tolist()) == list(range(len(difficulty)))

    @pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e-6])
    def test_at_a_small_temperature_it_ranks_by_distance_far_below_underflow(self, temperature):
        difficulty = rng(6).permutation(np.linspace(0, 1, 2001))
        distance = np.abs(difficulty - 0.3)
        assert (selection_probabilities(difficulty, 0.3, temperature) == 0).sum() > 1900
        order = selection_order(difficulty, 0.3, temperature, rng(7))
        assert (np.diff(distance[order]) >= -1e-9).all()

    def test_it_follows_the_distribution(self):
        difficulty, generator = np.array([0.5, 0.4, 0.75, 0.9]), rng(8)
        p = selection_probabilities(difficulty, 0.5, 0.2)
        assert_follows(lambda: selection_order(difficulty, 0.5, 0.2, generator)[:2], p)

    @pytest.mark.parametrize("temperature", [1e-300, 1e-12, 1e-3, 1e12])
    def test_ties_are_broken_uniformly(self, temperature):
        difficulty, generator = np.array([1.0, 0.2, 1.0, 1.0]), rng(9)
        ties = [[i for i in selection_order(difficulty, 0.2, temperature, generator) if i != 1] for _ in range(6000)]
        orders = sorted({tuple(t) for t in ties})
        assert len(orders) == 6
        assert stats.chisquare([sum(tuple(t) == order for t in ties) for order in orders]).pvalue > 1e-3


class TestEntropy:
    @settings(deadline=None)
    @given(pools, st.sampled_from(TEMPERATURES))
    def test_it_lies_in_0_1(self, difficulty, temperature):
        assert 0.0 <= selection_entropy(selection_probabilities(difficulty, 0.5, temperature)) <= 1.0

    @pytest.mark.parametrize(
        ("p", "expected"),
        [
            ([0.25] * 4, 1.0),
            ([1.0, 0.0, 0.0], 0.0),
            ([1.0], 1.0),
            ([0.5, 0.5, 0.0, 0.0], 0.5),
            ([0.75, 0.25], -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))),
        ],
    )
    def test_known_values(self, p, expected):
        assert selection_entropy(np.array(p)) == pytest.approx(expected)
