"""verl_dots.sampler: the order of questions. No repeats, the near-target ones first, an exact share of uniform draws."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tests.unit.sampler.conftest import fetch, guesses, ids, make, names


class TestOrder:
    @settings(deadline=None, max_examples=150)
    @given(
        pool=st.integers(1, 40),
        size=st.integers(1, 60),
        requests=st.lists(st.integers(1, 25), min_size=1, max_size=8),
        fraction=st.sampled_from([0.0, 0.125, 0.5, 1.0]),
        uniform=st.booleans(),
    )
    def test_nothing_repeats_before_the_pool_is_used_up(self, pool, size, requests, fraction, uniform):
        sampler = make(names(pool), explore_fraction=fraction)
        sampler.refresh(None if uniform else guesses(sampler), size)
        drawn = []
        for wanted in requests:
            draws = sampler.request(wanted)
            assert len(draws) == wanted
            assert fetch(sampler) == [draw.row for draw in draws]
            assert all(sampler.pool[draw.row] == draw.question_id for draw in draws)
            if wanted <= pool:
                assert len(set(ids(draws))) == wanted
            drawn += ids(draws)
        for lap in range(0, len(drawn), pool):
            assert len(set(drawn[lap : lap + pool])) == len(drawn[lap : lap + pool])

    @settings(deadline=None, max_examples=100)
    @given(pool=st.integers(1, 200), size=st.integers(1, 250), fraction=st.floats(0, 1))
    def test_the_explored_share_is_exact_and_spread_evenly(self, pool, size, fraction):
        sampler = make(names(pool), explore_fraction=fraction)
        sampler.refresh(guesses(sampler), size)
        lap = min(size, pool)
        explored = np.array([draw.source == "explored" for draw in sampler.request(pool)])
        assert explored.sum() == explored[:lap].sum() == int(fraction * lap + 0.5)
        running = np.cumsum(explored[:lap])
        even = np.arange(1, lap + 1) * running[-1] / lap
        assert (np.abs(running - even) <= 1).all()

    def test_every_step_gets_its_share(self):
        sampler = make(names(100), explore_fraction=0.125, refresh_every=4)
        sampler.refresh(guesses(sampler), 4 * 16)
        for _ in range(4):
            assert Counter(draw.source for draw in sampler.request(16)) == {"explored": 2, "selected": 14}

    def test_selected_ones_are_those_near_the_target_and_the_shortfall_follows_in_the_same_order(self):
        sampler = make(names(101), explore_fraction=0.1, temperature=1e-9, target=0.5)
        difficulty = np.random.default_rng(0).permutation(np.linspace(0, 1, 101))
        of = dict(zip(sampler.pool, difficulty, strict=True))
        sampler.refresh(difficulty, 20)
        draws = sampler.request(20) + sampler.request(30)
        explored = {draw.question_id for draw in draws if draw.source == "explored"}
        assert len(explored) == 2
        selected = [draw.question_id for draw in draws if draw.source == "selected"]
        by_distance = sorted((abs(of[q] - 0.5), q) for q in sampler.pool if q not in explored)
        assert [abs(of[q] - 0.5) for q in selected] == pytest.approx([distance for distance, _ in by_distance[:48]])

    def test_explored_ones_are_a_uniform_sample_of_the_pool(self):
        sampler = make(names(10), explore_fraction=0.4, temperature=1e-3)
        counts = Counter()
        for _ in range(3000):
            sampler.refresh(guesses(sampler), 5)
            counts.update(draw.question_id for draw in sampler.request(5) if draw.source == "explored")
        assert sum(counts.values()) == 6000
        # 2 of 10 without replacement: variances are (1 - 2/10) / (1 - 1/10) of the multinomial ones
        assert stats.chi2.sf(sum((counts[q] - 600) ** 2 / 600 for q in sampler.pool) * 0.9 / 0.8, df=9) > 1e-3

    def test_without_difficulties_everything_is_explored_and_uniform(self):
        sampler = make(names(6), explore_fraction=0.125)
        first = Counter()
        for _ in range(3000):
            sampler.refresh(None, 4)
            draws = sampler.request(6)
            assert {draw.source for draw in draws} == {"explored"}
            first[draws[0].question_id] += 1
        assert stats.chisquare([first[q] for q in sampler.pool]).pvalue > 1e-3

    def test_a_refresh_replaces_what_is_left(self):
        sampler = make(["a", "b", "c"], explore_fraction=0.0, temperature=1e-9)
        sampler.refresh(np.array([0.5, 0.7, 0.9]), 3)
        assert ids(sampler.request(1)) == ["a"]
        sampler.refresh(np.array([0.9, 0.7, 0.5]), 3)
        assert ids(sampler.request(3)) == ["c", "b", "a"]

    def test_a_used_up_pool_starts_over_by_difficulty_and_holds_back_what_the_request_has(self):
        sampler = make(["a", "b", "c", "d"], explore_fraction=0.0, temperature=1e-9)
        sampler.refresh(np.array([0.5, 0.6, 0.8, 1.0]), 10)
        assert ids(sampler.request(3)) == ["a", "b", "c"]
        assert ids(sampler.request(3)) == ["d", "a", "b"]
        assert ids(sampler.request(2)) == ["c", "d"]
        assert ids(sampler.request(6)) == ["a", "b", "c", "d", "a", "b"]
        sampler.refresh(np.array([0.5, 0.6, 0.8, 1.0]), 10)
        sampler.request(3)
        sampler.refresh(np.array([1.0, 0.8, 0.6, 0.5]), 4)
        assert ids(sampler.request(4)) == ["d", "c", "b", "a"]

    def test_needs_refresh(self):
        sampler = make(["a", "b", "c"], refresh_every=3)
        assert [sampler.needs_refresh(step) for step in (1, 2, 3)] == [True, True, True]  # never refreshed
        sampler.refresh(None, 9)
        assert [sampler.needs_refresh(step) for step in range(1, 8)] == [True, False, False, True, False, False, True]
        sampler.request(3)
        assert sampler.needs_refresh(2)  # nothing left

    def test_a_request_needs_a_refresh_first(self):
        with pytest.raises(AssertionError, match="before the first refresh"):
            make(["a"]).request(1)


class TestReference:
    def test_it_is_distinct_uniform_and_capped_at_the_pool(self):
        sampler = make(names(8))
        counts = Counter()
        for _ in range(2000):
            draws = sampler.draw_reference(3)
            assert fetch(sampler) == [draw.row for draw in draws]
            assert len(set(ids(draws))) == 3
            assert {draw.source for draw in draws} == {"reference"}
            counts.update(ids(draws))
        assert stats.chi2.sf(sum((counts[q] - 750) ** 2 / 750 for q in sampler.pool) * (7 / 8) / (5 / 8), df=7) > 1e-3
        assert sorted(ids(sampler.draw_reference(99))) == sorted(sampler.pool)

    def test_it_leaves_the_order_alone(self):
        one, two = make(names(20)), make(names(20))
        for sampler in (one, two):
            sampler.refresh(guesses(sampler), 20)
        two.draw_reference(7)
        assert ids(one.request(20)) == ids(two.request(20))
