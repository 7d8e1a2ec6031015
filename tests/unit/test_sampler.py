"""verl_dots.sampler: orders without repeats, exact continuation, and a real StatefulDataLoader that only fetches."""

import doctest
import hashlib
import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torchdata.stateful_dataloader import StatefulDataLoader

from verl_dots import sampler as module
from verl_dots.sampler import DifficultySampler


def test_the_example_holds():
    assert doctest.testmod(module) == (0, 3)


def make(ids, *, target=0.5, temperature=0.1, refresh_every=2, explore_fraction=0.25, seed=1):
    return DifficultySampler(
        ids,
        target=target,
        temperature=temperature,
        refresh_every=refresh_every,
        explore_fraction=explore_fraction,
        seed=seed,
    )


def names(count):
    return [hashlib.sha256(str(i).encode()).hexdigest()[:32] for i in range(count)]


def guess(question):
    """A fixed difficulty per question, whatever the order of the file."""
    return int(hashlib.sha256(question.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def guesses(sampler):
    return np.array([guess(question) for question in sampler.pool])


def ids(draws):
    return [draw.question_id for draw in draws]


def fetch(sampler):
    return next(sampler.batches)


class TestPool:
    def test_rows_with_one_id_are_one_question_fetched_by_its_first_row(self):
        sampler = make(["b", "a", "b", "c", "a"])
        assert sampler.pool == ["b", "a", "c"]
        assert len(sampler) == 3
        sampler.refresh(None, 3)
        assert {draw.question_id: draw.row for draw in sampler.request(3)} == {"b": 0, "a": 1, "c": 3}

    def test_no_questions(self):
        with pytest.raises(ValueError, match="no questions"):
            make([])

    def test_difficulties_are_read_in_the_order_of_the_pool(self):
        sampler = make(["b", "a", "b", "c"], explore_fraction=0.0, temperature=1e-9)
        sampler.refresh(np.array([1.0, 0.5, 0.7]), 3)  # b, a, c
        assert ids(sampler.request(3)) == ["a", "c", "b"]

    def test_as_many_difficulties_as_questions(self):
        with pytest.raises(AssertionError):
            make(["a", "b"]).refresh(np.array([0.5]), 1)

    def test_bad_difficulties_are_named(self):
        with pytest.raises(ValueError, match="1 of 2 difficulty values"):
            make(["a", "b"]).refresh(np.array([0.5, np.nan]), 1)


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


class TestOccurrences:
    def test_every_draw_is_counted_whatever_its_source(self):
        sampler = make(["a", "b"])
        assert sampler.occurrence("a") == 0
        sampler.refresh(None, 2)
        draws = sampler.request(5) + sampler.draw_reference(2)
        seen = Counter()
        for draw in draws:
            assert draw.occurrence == seen[draw.question_id]
            seen[draw.question_id] += 1
        assert {q: sampler.occurrence(q) for q in "ab"} == seen
        assert sum(seen.values()) == 7

    def test_one_question_twice_in_one_request_is_told_apart(self):
        sampler = make(["a"])
        sampler.refresh(None, 1)
        assert [draw.occurrence for draw in sampler.request(3)] == [0, 1, 2]


def act(sampler, action):
    """Do one thing as the trainer would, and return what it saw."""
    kind, argument = action
    if kind == "refresh":
        return sampler.refresh(guesses(sampler) if argument % 3 else None, argument)
    draws = sampler.request(argument) if kind == "request" else sampler.draw_reference(argument)
    return draws, fetch(sampler)


def saved(sampler):
    return json.loads(json.dumps(sampler.state_dict(), allow_nan=False))


actions = st.lists(
    st.tuples(st.sampled_from(["refresh", "request", "reference", "restore"]), st.integers(1, 30)), max_size=15
)


class TestCheckpoint:
    @settings(deadline=None, max_examples=200)
    @given(pool=st.integers(1, 25), script=actions, data=st.data())
    def test_any_interleaving_with_restores_and_reordered_files_equals_the_uninterrupted_run(self, pool, script, data):
        rows = names(pool)
        straight, stopped = make(rows), make(rows)
        for sampler in (straight, stopped):
            act(sampler, ("refresh", 7))
        for action in script:
            if action[0] == "restore":
                state = saved(stopped)
                stopped = make(data.draw(st.permutations(rows)), seed=999)
                stopped.load_state_dict(state)
                assert stopped.dropped == []
                assert saved(stopped) == saved(straight)
                continue
            expected, got = act(straight, action), act(stopped, action)
            if expected is not None:
                (expected_draws, _), (draws, fetched) = expected, got
                strip = [(d.question_id, d.source, d.occurrence) for d in expected_draws]
                assert [(d.question_id, d.source, d.occurrence) for d in draws] == strip
                assert [stopped.pool[row] for row in fetched] == ids(draws)

    def test_a_reduced_file_drops_what_is_gone_and_keeps_the_rest_in_order(self):
        rows = names(30)
        sampler = make(rows)
        sampler.refresh(guesses(sampler), 20)
        before = ids(sampler.request(5))
        fetch(sampler)
        state = saved(sampler)
        gone = {before[0], *ids(sampler.request(25))[::5]}
        fetch(sampler)
        expected = make(rows)
        expected.load_state_dict(state)
        left = [draw for draw in expected.request(25) if draw.question_id not in gone]
        reduced = make([q for q in rows if q not in gone])
        reduced.load_state_dict(state)
        assert reduced.dropped == sorted(gone)
        draws = reduced.request(len(left))
        assert [(d.question_id, d.source) for d in draws] == [(d.question_id, d.source) for d in left]
        # the lap after is over what is left of the pool, with the same difficulties
        assert sorted(ids(reduced.request(len(reduced)))) == sorted(reduced.pool)

    def test_an_extended_file_continues_and_the_new_questions_join_at_the_next_refresh(self):
        rows = names(30)
        sampler, extended = make(rows[:20]), make(rows[::-1])
        sampler.refresh(guesses(sampler), 16)
        sampler.request(4)
        fetch(sampler)
        extended.load_state_dict(saved(sampler))
        assert extended.dropped == []
        assert ids(extended.request(16)) == ids(sampler.request(16))
        assert ids(extended.request(20)) == ids(sampler.request(20))  # the next lap, too
        assert extended.needs_refresh(2)
        extended.refresh(guesses(extended), 30)
        assert sorted(ids(extended.request(30))) == sorted(rows)

    def test_another_file_altogether_starts_anew(self):
        sampler, other = make(["a", "b"]), make(["c", "d"])
        sampler.refresh(None, 2)
        other.load_state_dict(saved(sampler))
        assert other.dropped == ["a", "b"]
        assert other.needs_refresh(2)
        other.refresh(None, 2)
        assert sorted(ids(other.request(2))) == ["c", "d"]

    def test_before_the_first_refresh(self):
        sampler, other = make(["a", "b"]), make(["a", "b"], seed=5)
        other.load_state_dict(saved(sampler))
        for each in (sampler, other):
            each.refresh(None, 2)
        assert sampler.request(2) == other.request(2)

    def test_a_batch_in_flight_is_never_lost_silently(self):
        sampler = make(["a", "b"])
        sampler.refresh(None, 2)
        state = saved(sampler)
        sampler.request(1)
        with pytest.raises(AssertionError, match="not fetched"):
            sampler.state_dict()
        with pytest.raises(AssertionError, match="before anything is requested"):
            sampler.load_state_dict(state)


class Rows:
    """A data set that says which row was fetched."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return row


def loader_of(sampler, **options):
    return StatefulDataLoader(Rows(len(sampler.pool)), batch_sampler=sampler.batches, collate_fn=list, **options)


class TestInTheStatefulDataLoader:
    def test_a_request_is_one_batch_of_any_size(self):
        sampler = make(names(20))
        sampler.refresh(None, 20)
        batches = iter(loader_of(sampler))
        for size in (1, 7, 3):
            draws = sampler.request(size)
            assert next(batches) == [draw.row for draw in draws]
        first, second = sampler.request(2), sampler.draw_reference(4)
        assert [next(batches), next(batches)] == [[d.row for d in first], [d.row for d in second]]

    def test_drawing_before_a_request_names_the_key_and_does_not_end_the_iteration(self):
        sampler = make(names(5))
        sampler.refresh(None, 5)
        batches = iter(loader_of(sampler))
        for _ in range(2):
            with pytest.raises(RuntimeError, match="stale.*dataloader_num_workers=0"):
                next(batches)
            draws = sampler.request(2)
            assert next(batches) == [draw.row for draw in draws]

    def test_prefetching_workers_are_refused(self):
        sampler = make(names(5))
        sampler.refresh(None, 5)
        sampler.request(2)
        with pytest.raises(RuntimeError, match="stale"):
            iter(loader_of(sampler, num_workers=1))

    @pytest.mark.parametrize("iterate_first", [True, False])
    def test_the_loader_neither_saves_nor_restores_nor_wipes(self, iterate_first):
        """Save and restore as verl does: its data.pt and our state, then requests around the lazy first iter()."""
        sampler = make(names(40))
        sampler.refresh(guesses(sampler), 30)
        loader = loader_of(sampler)
        batches = iter(loader)
        for size in (8, 8, 4):
            sampler.request(size)
            next(batches)
        state, loader_state = saved(sampler), json.loads(json.dumps(loader.state_dict()))
        assert not any(question in json.dumps(loader_state) for question in sampler.pool)

        resumed = make(names(40), seed=7)
        resumed_loader = loader_of(resumed)
        resumed_loader.load_state_dict(loader_state)
        resumed.load_state_dict(state)
        if iterate_first:
            resumed_batches = iter(resumed_loader)
        expected = [sampler.request(6), sampler.draw_reference(3)]
        got = [resumed.request(6), resumed.draw_reference(3)]  # queued before the lazy restore happens
        if not iterate_first:
            resumed_batches = iter(resumed_loader)
        assert got == expected
        assert [next(resumed_batches) for _ in range(2)] == [next(batches) for _ in range(2)]
        assert resumed.request(5) == sampler.request(5)
        assert next(resumed_batches) == next(batches)
        with pytest.raises(RuntimeError):
            next(resumed_batches)

    def test_a_state_saved_under_verls_own_sampler_is_accepted(self):
        from torch.utils.data import SequentialSampler

        rows = Rows(20)
        plain = StatefulDataLoader(rows, batch_size=4, sampler=SequentialSampler(rows), collate_fn=list)
        assert next(iter(plain)) == [0, 1, 2, 3]
        sampler = make(names(20))
        loader = loader_of(sampler)
        loader.load_state_dict(plain.state_dict())
        sampler.refresh(None, 20)
        draws = sampler.request(3)
        assert next(iter(loader)) == [draw.row for draw in draws]

    def test_its_length_is_the_pool(self):
        assert len(loader_of(make(names(9)))) == 9
