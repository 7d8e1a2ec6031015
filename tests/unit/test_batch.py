"""The batch trained on holds `train_batch_size` groups whenever the replay can make it so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_dots.batch import Batch, Plan, assemble, nominal_fresh, plan_step
from verl_dots.config import ReplayConfig
from verl_dots.replay import RolloutReplay
from verl_dots.types import Group

MIXED, EQUAL = (1.0, 0.0), (1.0, 1.0)


def group(uid: str, rewards=MIXED, complete=True, version=0) -> Group:
    return Group(uid, f"question {uid}", version, "selected", (f"{uid}_0_0", f"{uid}_1_0"), rewards, complete)


def replay_of(size: int) -> RolloutReplay:
    replay = RolloutReplay(capacity=100, seed=1)
    replay.admit([group(f"old{i}") for i in range(size)])
    return replay


FRACTIONS = [(0.5, 8), (0.25, 4), (1.0, 16), (0.01, 1), (0.53, 8), (0.54, 9), (2.0, 32)]


@pytest.mark.parametrize(("fraction", "expected"), FRACTIONS)
def test_fresh_groups_are_the_rounded_fraction_and_at_least_one(fraction, expected):
    assert nominal_fresh(16, ReplayConfig(fresh_fraction=fraction)) == expected


def test_without_replay_everything_is_generated():
    assert plan_step(16, ReplayConfig(enable=False), step=9, eligible=99) == Plan(16, fresh=16, replayed=0, fill=False)


def test_what_the_replay_cannot_give_is_generated():
    half = ReplayConfig(fresh_fraction=0.5)
    assert plan_step(16, half, step=3, eligible=5) == Plan(16, fresh=11, replayed=5)
    assert plan_step(16, half, step=3, eligible=50) == Plan(16, fresh=8, replayed=8)


def test_warmup_steps_are_generated_in_full_and_not_filled():
    config = ReplayConfig(fresh_fraction=0.5, warmup_steps=2)
    plans = [plan_step(3, config, step, 99) for step in (1, 2, 3)]
    assert [(plan.fresh, plan.replayed) for plan in plans] == [(3, 0), (3, 0), (2, 1)]
    fresh = [group("ok"), group("equal", EQUAL), group("partial", MIXED, complete=False)]
    warm, after = (assemble(plan, fresh[: plan.fresh], replay_of(9), config, policy_version=1) for plan in plans[1:])
    assert [g.uid for g in warm.displaced] == ["partial"] and len(warm.replayed) == 1
    assert [g.uid for g in after.displaced] == ["equal"] and len(after.replayed) == 2


@pytest.mark.parametrize("step", [1, 3])
def test_above_one_more_is_generated_than_there_are_places(step):
    config = ReplayConfig(fresh_fraction=1.5, warmup_steps=2)
    assert plan_step(16, config, step, eligible=50) == Plan(16, fresh=24, replayed=0, fill=step > 2)


def test_failed_groups_yield_before_uninformative_ones():
    fresh = [group("ok"), group("equal", EQUAL), group("partial", MIXED, complete=False)]
    batch = assemble(Plan(3, 3, 0), fresh, replay_of(1), ReplayConfig(), policy_version=1)
    assert [g.uid for g in batch.displaced] == ["partial"]
    assert batch.filled == 1


def test_a_group_that_vanished_is_replaced_first():
    batch = assemble(Plan(3, 3, 0), [group("ok"), group("equal", EQUAL)], replay_of(1), ReplayConfig(), policy_version=1)
    assert [g.uid for g in batch.fresh] == ["ok", "equal"]
    assert len(batch.replayed) == 1 and not batch.displaced


def test_fill_none_keeps_uninformative_groups():
    fresh = [group("a", EQUAL), group("b")]
    config = ReplayConfig(fresh_fraction=0.5, fill="none")
    batch = assemble(plan_step(3, config, 1, 9), fresh, replay_of(9), config, policy_version=1)
    assert [g.uid for g in batch.fresh] == ["a", "b"]
    assert len(batch.replayed) == 1


@given(
    kinds=st.lists(st.sampled_from(["mixed", "equal", "partial", "lost"]), min_size=1, max_size=12),
    held=st.integers(0, 12),
    planned=st.integers(0, 6),
    beyond=st.integers(0, 6),
    fill=st.sampled_from(["informative", "none"]),
)
def test_batch_is_as_full_as_the_replay_allows_and_never_repeats_a_group(
    kinds, held, planned, beyond, fill
):
    replay = replay_of(held)
    replayed = min(planned, held)
    beyond = 0 if replayed else min(beyond, len(kinds) - 1)  # more is generated, or something replayed
    plan = Plan(len(kinds) + replayed - beyond, len(kinds), replayed, fill == "informative")
    made = {"mixed": (MIXED, True), "equal": (EQUAL, True), "partial": (MIXED, False)}
    fresh = [group(f"new{i}", *made[kind]) for i, kind in enumerate(kinds) if kind != "lost"]
    batch = assemble(plan, fresh, replay, ReplayConfig(fill=fill), policy_version=1)

    together = [*batch.fresh, *batch.replayed]
    assert len({g.uid for g in together}) == len(together)
    apart = [g.uid for part in (batch.fresh, batch.displaced, batch.surplus) for g in part]
    assert sorted(apart) == sorted(g.uid for g in fresh)
    assert not any(g.informative for g in batch.displaced) and all(g.informative for g in batch.surplus)
    if batch.surplus:  # only where every place is taken by an informative fresh group; the first ones generated have them
        assert batch.fresh == [g for g in fresh if g.informative][: plan.places] and not batch.replayed
    lost = max(0, kinds.count("lost") - beyond)
    short = max(0, lost - (held - plan.replayed))
    assert len(together) == plan.places - short
    assert len(replay) == held  # drawn groups stay


def test_surplus_is_what_is_informative_beyond_the_places_and_the_rest_is_filled():
    fresh = [group("a", EQUAL), group("b"), group("c"), group("d", EQUAL), group("e"), group("f", complete=False)]
    few, many = (assemble(Plan(n, 6, 0), fresh, replay_of(9), ReplayConfig(), policy_version=1) for n in (2, 4))
    parts = (few.fresh, few.surplus, few.displaced)
    assert [[g.uid for g in part] for part in parts] == [["b", "c"], ["e"], ["f", "a", "d"]]
    assert ([g.uid for g in many.fresh], many.surplus, many.filled) == (["b", "c", "e"], [], 1)


def test_every_mini_batch_has_its_share_of_replayed_groups():
    """verl cuts mini-batches from consecutive rows."""
    batch = assemble(Plan(16, 8, 8), [group(f"new{i}") for i in range(8)], replay_of(20), ReplayConfig(), policy_version=1)
    order = batch.groups
    assert sorted(g.uid for g in order) == sorted(g.uid for g in (*batch.fresh, *batch.replayed))
    for part in (batch.fresh, batch.replayed):
        assert [g for g in order if g in part] == part
    for first in range(0, 16, 4):
        assert sum(g in batch.replayed for g in order[first : first + 4]) == 2


@given(fresh=st.integers(0, 20), replayed=st.integers(0, 20))
def test_replayed_groups_are_spread_evenly_and_a_fresh_one_leads(fresh, replayed):
    batch = Batch([group(f"new{i}") for i in range(fresh)], [group(f"old{i}") for i in range(replayed)])
    order = batch.groups
    assert len(order) == fresh + replayed
    assert not fresh or order[0] in batch.fresh
    for end in range(1, len(order) + 1):
        expected = replayed * end / len(order)
        assert abs(sum(g in batch.replayed for g in order[:end]) - expected) <= 1.5
