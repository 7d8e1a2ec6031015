"""RolloutReplay: which groups of the last steps are still worth training on. It knows ids, rewards and ages, never tokens.

First in, first out; only complete groups whose rewards differ; a group stays when it is drawn (arXiv 2506.05316, section
3.3). The rows of its groups lie in verl's store, so whoever removes a group is told which: every method that drops groups
returns them, and the caller clears their rows.

The age of a group is the number of policy updates since its generation was scheduled.

    >>> from verl_dots.types import Group
    >>> group = Group("u1", "q1", policy_version=3, source="selected", keys=("u1_0_0", "u1_1_0"), rewards=(1.0, 0.0),
    ...               complete=True)
    >>> replay = RolloutReplay(capacity=512, max_age=10, seed=1)
    >>> replay.admit([group])
    []
    >>> replay.eligible(policy_version=13), replay.eligible(policy_version=14)
    (1, 0)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Literal

import numpy as np

from verl_dots.config import DotsConfig
from verl_dots.selection import select_questions
from verl_dots.types import Group, Observation

AGE_SCALE = 8.0
"""Policy versions after which `draw="informative"` prefers a group e times less."""

_STREAM = 2
"""Second word of the seed: sampler and replay share `dots.seed` and must not share their random numbers."""


class RolloutReplay:
    """A FIFO of informative groups, each uid once."""

    def __init__(
        self,
        *,
        capacity: int,
        max_age: int | None = None,
        draw: Literal["uniform", "informative"] = "uniform",
        newest_per_question: bool = False,
        reward_range: tuple[float, float] = (0.0, 1.0),
        seed: int,
    ) -> None:
        """Args are those of `ReplayConfig` and `DotsConfig`.

        Args:
            capacity: groups held at most, >= 1.
            max_age: a group older than this is never drawn; None: no limit.
            draw: `uniform`, or `informative`: without replacement with probabilities in proportion to
                `p (1 - p) exp(-age / AGE_SCALE)`, where `p` is the group's success rate.
            newest_per_question: admitting a group evicts the older one of the same question.
            reward_range: lowest and highest reward, for `p`; only `draw="informative"` uses it.
            seed: of the draws.
        """
        assert capacity >= 1, capacity
        assert draw in ("uniform", "informative"), draw
        self._capacity, self._max_age = capacity, math.inf if max_age is None else max_age
        self._draw, self._newest_per_question, self._reward_range = draw, newest_per_question, reward_range
        self._generator = np.random.default_rng([seed, _STREAM])
        self._groups: dict[str, Group] = {}  # by uid, oldest admission first

    @classmethod
    def from_config(cls, config: DotsConfig) -> RolloutReplay:
        """The replay of a resolved `dots` block."""
        replay = config.replay
        assert replay.capacity is not None, "resolve() the configuration first"
        return cls(
            capacity=replay.capacity,
            max_age=replay.max_age,
            draw=replay.draw,
            newest_per_question=replay.newest_per_question,
            reward_range=config.reward_range,
            seed=config.seed,
        )

    # ------------------------------------------------------------------------------------------------ in and out

    def admit(self, groups: Iterable[Group]) -> list[Group]:
        """Take the informative groups, in the given order; the others are passed over (their rows stay the caller's).

        Returns:
            The groups evicted for it: older ones of the same question with `newest_per_question`, then the oldest beyond
            capacity. With more new groups than capacity, some of the new ones are among them.
        """
        evicted: list[Group] = []
        held = {group.question_id: group.uid for group in self._groups.values()}
        for group in groups:
            if not group.informative:
                continue
            assert group.uid not in self._groups, f"group {group.uid} is in the replay already"
            if self._newest_per_question and group.question_id in held:
                evicted.append(self._groups.pop(held[group.question_id]))
            held[group.question_id] = group.uid
            self._groups[group.uid] = group
        while len(self._groups) > self._capacity:
            evicted.append(self._groups.pop(next(iter(self._groups))))
        return evicted

    def expire(self, policy_version: int) -> list[Group]:
        """Remove and return the groups older than `max_age`, oldest admission first."""
        old = [group for group in self._groups.values() if _age(group, policy_version) > self._max_age]
        return [self._groups.pop(group.uid) for group in old]

    def shrink(self, rows: int) -> list[Group]:
        """Evict the oldest groups until those left have at most `rows` rows; returns the evicted ones."""
        held = sum(len(group.keys) for group in self._groups.values())
        evicted: list[Group] = []
        while held > rows and self._groups:
            evicted.append(self._groups.pop(next(iter(self._groups))))
            held -= len(evicted[-1].keys)
        return evicted

    # ------------------------------------------------------------------------------------------------ drawing

    def eligible(self, policy_version: int, exclude: Container[str] = ()) -> int:
        """How many groups `draw` could return: not older than `max_age`, uid not in `exclude`."""
        return len(self._candidates(policy_version, exclude))

    def draw(self, size: int, policy_version: int, exclude: Container[str] = ()) -> list[Group]:
        """Draw `size` different eligible groups, in draw order; all of them where fewer are there. Drawn groups stay.

        Raises:
            ValueError: `draw="informative"` met a reward outside `reward_range`.
        """
        candidates = self._candidates(policy_version, exclude)
        if self._draw == "uniform":
            weights = np.ones(len(candidates))
        else:
            weights = self._informative_weights(candidates, policy_version)
        chosen = select_questions(weights, min(size, len(candidates)), self._generator)
        return [candidates[index] for index in chosen]

    def _candidates(self, policy_version: int, exclude: Container[str]) -> list[Group]:
        return [
            group
            for group in self._groups.values()
            if _age(group, policy_version) <= self._max_age and group.uid not in exclude
        ]

    def _informative_weights(self, groups: list[Group], policy_version: int) -> np.ndarray:
        """`p (1 - p) exp(-age / AGE_SCALE)`, ages counted from the youngest: the same distribution, no underflow for all."""
        if not groups:
            return np.empty(0)
        difficulty = np.array([Observation.of(group, 0, self._reward_range).difficulty for group in groups])
        age = np.array([_age(group, policy_version) for group in groups])
        return difficulty * (1 - difficulty) * np.exp(-(age - age.min()) / AGE_SCALE)

    # ------------------------------------------------------------------------------------------------ contents

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[Group]:
        """Groups, oldest admission first."""
        return iter(list(self._groups.values()))

    def __contains__(self, uid: object) -> bool:
        return uid in self._groups

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact continuation needs, as plain JSON values."""
        groups = [{**dataclasses.asdict(group), "keys": list(group.keys), "rewards": list(group.rewards)} for group in self]
        return {"groups": groups, "generator": self._generator.bit_generator.state}

    def load_state_dict(self, state: dict[str, Any], keep: Callable[[Group], bool] = lambda group: True) -> list[Group]:
        """Replace the contents by a saved state.

        Args:
            state: what `state_dict` returned.
            keep: whether a saved group can still be trained on.

        Returns:
            The saved groups that were not taken over: those not to keep, then those beyond a capacity that is smaller now.
        """
        saved = [
            Group(**{**group, "keys": tuple(group["keys"]), "rewards": tuple(group["rewards"])}) for group in state["groups"]
        ]
        self._generator.bit_generator.state = state["generator"]
        self._groups.clear()
        kept = [group for group in saved if keep(group)]
        return [group for group in saved if not keep(group)] + self.admit(kept)


def _age(group: Group, policy_version: int) -> int:
    age = policy_version - group.policy_version
    assert age >= 0, f"group {group.uid} of policy version {group.policy_version} is from the future of {policy_version}"
    return age
