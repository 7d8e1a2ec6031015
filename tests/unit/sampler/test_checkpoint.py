"""verl_dots.sampler: a restored one goes on exactly, also over a file that was reordered, cut or extended."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.sampler.conftest import fetch, guesses, ids, make, names, saved


def act(sampler, action):
    """Do one thing as the trainer would, and return what it saw."""
    kind, argument = action
    if kind == "refresh":
        return sampler.refresh(guesses(sampler) if argument % 3 else None, argument)
    draws = sampler.request(argument) if kind == "request" else sampler.draw_reference(argument)
    return draws, fetch(sampler)


actions = st.lists(
    st.tuples(st.sampled_from(["refresh", "request", "reference", "restore"]), st.integers(1, 30)), max_size=15
)


@settings(deadline=None, max_examples=200)
@given(pool=st.integers(1, 25), script=actions, data=st.data())
def test_any_interleaving_with_restores_and_reordered_files_equals_the_uninterrupted_run(pool, script, data):
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


def test_a_reduced_file_drops_what_is_gone_and_keeps_the_rest_in_order():
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


def test_an_extended_file_continues_and_the_new_questions_join_at_the_next_refresh():
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


def test_another_file_altogether_starts_anew():
    sampler, other = make(["a", "b"]), make(["c", "d"])
    sampler.refresh(None, 2)
    other.load_state_dict(saved(sampler))
    assert other.dropped == ["a", "b"]
    assert other.needs_refresh(2)
    other.refresh(None, 2)
    assert sorted(ids(other.request(2))) == ["c", "d"]


def test_before_the_first_refresh():
    sampler, other = make(["a", "b"]), make(["a", "b"], seed=5)
    other.load_state_dict(saved(sampler))
    for each in (sampler, other):
        each.refresh(None, 2)
    assert sampler.request(2) == other.request(2)


def test_a_batch_in_flight_is_never_lost_silently():
    sampler = make(["a", "b"])
    sampler.refresh(None, 2)
    state = saved(sampler)
    sampler.request(1)
    with pytest.raises(AssertionError, match="not fetched"):
        sampler.state_dict()
    with pytest.raises(AssertionError, match="before anything is requested"):
        sampler.load_state_dict(state)
