"""verl_dots.replay: what is admitted, how long it stays, what is drawn, what is saved."""

import doctest
import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from tests.unit.replay.conftest import group, make, uids
from verl_dots import replay as module
from verl_dots.config import DotsConfig
from verl_dots.replay import AGE_SCALE, RolloutReplay


def test_the_example_holds():
    assert doctest.testmod(module) == (0, 5)


class TestAdmit:
    def test_first_in_first_out(self):
        replay = make(capacity=3)
        assert replay.admit(group(u) for u in "abc") == []
        assert uids(replay.admit([group("d"), group("e")])) == ["a", "b"]
        assert uids(replay) == ["c", "d", "e"]
        assert len(replay) == 3
        assert "c" in replay and "a" not in replay

    @pytest.mark.parametrize(
        ("rewards", "complete", "taken"),
        [
            ((0.0, 1.0), True, True),
            ((1.0, 1.0), True, False),
            ((0.0, 0.0), True, False),
            ((0.0, 1.0), False, False),  # a session failed
            ((0.5, 0.5, 0.5 + 1e-12), True, True),  # graded: not all exactly equal
            ((-3.0, -3.0), True, False),
            ((1.0,), True, False),  # a group of one
        ],
    )
    def test_only_complete_groups_whose_rewards_differ(self, rewards, complete, taken):
        replay = make()
        assert replay.admit([group("a", rewards=rewards, complete=complete)]) == []
        assert ("a" in replay) == taken

    def test_more_new_groups_than_capacity(self):
        replay = make(capacity=2)
        assert uids(replay.admit(group(u) for u in "abcd")) == ["a", "b"]
        assert uids(replay) == ["c", "d"]

    def test_shrink_evicts_whole_groups_oldest_first_until_their_rows_fit(self):
        replay = make(capacity=4)
        replay.admit(group(u, rewards=(0.0, 1.0, 1.0)) for u in "abcd")  # 12 rows
        assert replay.shrink(12) == []
        assert uids(replay.shrink(8)) == ["a", "b"]
        assert uids(replay) == ["c", "d"]
        assert uids(replay.shrink(-5)) == ["c", "d"]
        assert replay.shrink(-5) == [] and len(replay) == 0

    def test_newest_per_question(self):
        replay = make(capacity=3, newest_per_question=True)
        replay.admit([group("a", question="1"), group("b", question="2"), group("c", question="3")])
        assert uids(replay.admit([group("d", question="2"), group("e", question="2")])) == ["b", "d"]
        assert uids(replay) == ["a", "c", "e"]
        assert replay.admit([group("f", question="2", rewards=(1.0, 1.0))]) == []  # evicts nothing: it is not taken
        assert uids(replay.admit([group("g", question="4")])) == ["a"]

    def test_by_default_a_question_may_have_several_groups(self):
        replay = make()
        replay.admit([group("a"), group("b")])
        assert len(replay) == 2

    def test_a_uid_twice_is_a_bug(self):
        replay = make()
        replay.admit([group("a")])
        with pytest.raises(AssertionError, match="group a is in the replay already"):
            replay.admit([group("a")])


class TestAge:
    def test_a_group_is_drawn_up_to_max_age_and_expires_beyond(self):
        replay = make(max_age=2)
        replay.admit([group("a", version=0), group("b", version=1), group("c", version=3)])
        assert replay.eligible(3) == 2  # a is 3 versions old
        assert sorted(uids(replay.draw(5, 3))) == ["b", "c"]
        assert len(replay) == 3  # drawing removes nothing, not even what is too old
        assert uids(replay.expire(3)) == ["a"]
        assert replay.expire(3) == []
        assert uids(replay.expire(9)) == ["b", "c"]

    def test_without_a_limit_nothing_expires(self):
        replay = make()
        replay.admit([group("a")])
        assert replay.expire(10**9) == []
        assert uids(replay.draw(1, 10**9)) == ["a"]

    def test_a_group_from_the_future_is_a_bug(self):
        replay = make()
        replay.admit([group("a", version=5)])
        with pytest.raises(AssertionError, match="from the future"):
            replay.draw(1, policy_version=4)


class TestDraw:
    def test_without_replacement_fewer_if_fewer_are_there_and_they_stay(self):
        replay = make()
        replay.admit(group(u) for u in "abcd")
        assert sorted(uids(replay.draw(9, 1))) == ["a", "b", "c", "d"]
        assert sorted(uids(replay.draw(9, 1, exclude={"b", "c", "x"}))) == ["a", "d"]
        assert replay.draw(2, 1, exclude="abcd") == []
        assert replay.draw(0, 1) == []
        assert len(replay) == 4

    def test_an_empty_replay(self):
        for draw in ("uniform", "informative"):
            assert make(draw=draw).draw(3, 0) == []

    def test_it_is_uniform(self):
        replay = make()
        for version, uid in enumerate("abc"):
            replay.admit([group(uid, version=version)])
        replay.admit([group("d", version=3, rewards=(0, 0, 0, 1))])
        pairs = Counter(tuple(uids(replay.draw(2, 9))) for _ in range(12_000))
        assert len(pairs) == 12
        assert stats.chisquare(list(pairs.values())).pvalue > 1e-3

    def test_informative_follows_its_formula(self):
        rewards = {"a": (0, 1), "b": (0, 0, 0, 1), "c": (0.2, 0.9), "d": (0, 1)}
        versions = {"a": 20, "b": 20, "c": 18, "d": 10}
        replay = make(draw="informative")
        replay.admit(group(u, version=versions[u], rewards=rewards[u]) for u in "abcd")
        p = {u: np.mean(rewards[u]) for u in "abcd"}
        weight = {u: p[u] * (1 - p[u]) * math.exp(-(20 - versions[u]) / AGE_SCALE) for u in "abcd"}
        total = sum(weight.values())
        pairs = list(itertools.permutations("abcd", 2))
        expected = [weight[i] / total * weight[j] / (total - weight[i]) for i, j in pairs]
        counts = Counter(tuple(uids(replay.draw(2, 20))) for _ in range(20_000))
        assert stats.chisquare([counts[pair] for pair in pairs], np.array(expected) * 20_000).pvalue > 1e-3

    def test_informative_scales_rewards_and_survives_any_age(self):
        replay = make(draw="informative", reward_range=(-1.0, 1.0))
        replay.admit([group("a", rewards=(-1.0, 1.0)), group("b", rewards=(-1.0, 0.0))])
        assert sorted(uids(replay.draw(2, policy_version=100_000))) == ["a", "b"]
        first = Counter(replay.draw(1, policy_version=100_000)[0].uid for _ in range(8_000))
        share = 0.25 / (0.25 + 0.1875)  # p = .5 and .25
        assert stats.binomtest(first["a"], 8_000, share).pvalue > 1e-3

    def test_informative_names_a_reward_outside_the_range(self):
        replay = make(draw="informative")
        replay.admit([group("a", rewards=(0.0, 2.0))])
        with pytest.raises(ValueError, match="dots.reward_range"):
            replay.draw(1, 0)


class TestState:
    def test_from_config(self):
        block = {"seed": 3, "reward_range": [-1, 1], "replay": {"max_age": 5, "draw": "informative"}}
        replay = RolloutReplay.from_config(DotsConfig.from_mapping(block).resolve(train_batch_size=2))
        twin = RolloutReplay(capacity=16, max_age=5, draw="informative", reward_range=(-1.0, 1.0), seed=3)
        many = [group(str(i), version=i, rewards=(-1.0, i / 20)) for i in range(20)]
        assert replay.admit(many) == twin.admit(many) != []
        assert replay.draw(9, 20) == twin.draw(9, 20) != []
        assert replay.expire(20) == twin.expire(20) != []

    def test_groups_not_to_keep_are_returned(self):
        replay = make()
        replay.admit([group("a", question="1"), group("b", question="2"), group("c", question="3")])
        other = make(seed=9)
        state = json.loads(json.dumps(replay.state_dict()))
        assert uids(other.load_state_dict(state, keep=lambda g: g.question_id in {"1", "3"})) == ["b"]
        assert list(other) == [g for g in replay if g.uid != "b"]

    def test_a_smaller_capacity_returns_the_oldest(self):
        replay, smaller = make(), make(capacity=2)
        replay.admit(group(u) for u in "abcd")
        assert uids(smaller.load_state_dict(replay.state_dict())) == ["a", "b"]
        assert uids(smaller) == ["c", "d"]

    def test_loading_replaces_the_contents(self):
        replay, other = make(), make()
        replay.admit([group("a")])
        other.admit([group("b")])
        assert other.load_state_dict(replay.state_dict()) == []
        assert uids(other) == ["a"]

    def test_sampler_and_replay_of_one_seed_have_different_random_numbers(self):
        from verl_dots.sampler import DifficultySampler

        options = {"target": 0.5, "temperature": 0.1, "refresh_every": 1, "explore_fraction": 0.0}
        sampler = DifficultySampler(["a"], **options, seed=1)
        assert sampler.state_dict()["generator"] != make(seed=1).state_dict()["generator"]
