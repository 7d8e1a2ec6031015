"""verl_dots.replay compared with a plain list in random histories, saved and restored at any point."""

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.replay.conftest import group, uids
from verl_dots.replay import RolloutReplay
from verl_dots.types import Group


class AgainstAList(RuleBasedStateMachine):
    """Random histories; `model` is a plain list, `straight` a replay that is never saved and restored."""

    @initialize(
        capacity=st.integers(1, 8),
        max_age=st.none() | st.integers(1, 4),
        draw=st.sampled_from(["uniform", "informative"]),
        newest=st.booleans(),
    )
    def start(self, capacity, max_age, draw, newest):
        self.options = {"capacity": capacity, "max_age": max_age, "draw": draw, "newest_per_question": newest}
        self.replay, self.straight = RolloutReplay(**self.options, seed=5), RolloutReplay(**self.options, seed=5)
        self.model: list[Group] = []
        self.version, self.next_uid = 0, 0

    def young(self):
        limit = self.options["max_age"]
        return [g for g in self.model if limit is None or self.version - g.policy_version <= limit]

    @rule(
        new=st.lists(
            st.tuples(
                st.sampled_from("pqrst"),
                st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=3),
                st.booleans(),
            ),
            max_size=10,
        )
    )
    def admit(self, new):
        groups = []
        for question, rewards, complete in new:
            groups.append(
                group(f"u{self.next_uid}", question=question, version=self.version, rewards=rewards, complete=complete)
            )
            self.next_uid += 1
        before, model = set(uids(self.model)), list(self.model)
        for g in groups:
            if not g.complete or min(g.rewards) == max(g.rewards):
                continue
            if self.options["newest_per_question"]:
                model = [old for old in model if old.question_id != g.question_id]
            model.append(g)
            before.add(g.uid)
        self.model = model[-self.options["capacity"] :]
        evicted = self.replay.admit(groups)
        assert evicted == self.straight.admit(groups)
        assert len(evicted) == len(set(uids(evicted)))
        assert set(uids(evicted)) == before - set(uids(self.model))

    @rule(updates=st.integers(1, 3))
    def train(self, updates):
        self.version += updates

    @rule()
    def expire(self):
        young = self.young()
        expired = self.replay.expire(self.version)
        assert expired == self.straight.expire(self.version) == [g for g in self.model if g not in young]
        self.model = young

    @rule(size=st.integers(0, 10), data=st.data())
    def draw(self, size, data):
        exclude = data.draw(st.sets(st.sampled_from(uids(self.model) or ["none"])))
        allowed = [g for g in self.young() if g.uid not in exclude]
        assert self.replay.eligible(self.version, exclude) == len(allowed)
        drawn = self.replay.draw(size, self.version, exclude)
        assert drawn == self.straight.draw(size, self.version, exclude)
        assert len(drawn) == min(size, len(allowed)) == len(set(uids(drawn)))
        assert all(g in allowed for g in drawn)

    @rule()
    def save_and_restore(self):
        state = json.loads(json.dumps(self.replay.state_dict(), allow_nan=False))
        self.replay = RolloutReplay(**self.options, seed=77)
        assert self.replay.load_state_dict(state) == []

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def lose_a_question(self, data):
        lost = data.draw(st.sampled_from(sorted({g.question_id for g in self.model})))
        for name in ("replay", "straight"):
            state = getattr(self, name).state_dict()
            setattr(self, name, RolloutReplay(**self.options, seed=0))
            dropped = getattr(self, name).load_state_dict(state, keep=lambda g: g.question_id != lost)
            assert dropped == [g for g in self.model if g.question_id == lost]
        self.model = [g for g in self.model if g.question_id != lost]

    @invariant()
    def holds_what_the_list_holds(self):
        if hasattr(self, "model"):
            assert list(self.replay) == self.model
            assert len(self.replay) == len(self.model) <= self.options["capacity"]
            assert all(g.uid in self.replay for g in self.model)
            assert "never" not in self.replay


AgainstAList.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAgainstAList = AgainstAList.TestCase
