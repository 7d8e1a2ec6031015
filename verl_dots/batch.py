"""How one training batch is put together: how many groups to generate, and which replayed groups take which place.

After generation nothing more can be generated, so every place that a fresh group leaves empty (all its sessions failed) or
wastes (its rewards are all equal, so its advantages are zero) is offered to the replay. Only whole groups move: advantages
are computed within a group and hold wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_dots.config import ReplayConfig
from verl_dots.replay import RolloutReplay
from verl_dots.types import Group


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of one step before generation; `fresh + replayed` is the train batch size."""

    fresh: int
    replayed: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups of one step after generation, ready to train on.

    Attributes:
        fresh: fresh groups that stay, in submission order.
        replayed: distinct replayed groups, in draw order.
        displaced: fresh groups whose place a replayed one took; their rows are no longer needed.
        filled: how many of `replayed` took the place of a failed or uninformative fresh group.
    """

    fresh: list[Group]
    replayed: list[Group]
    displaced: list[Group]
    filled: int

    @property
    def groups(self) -> list[Group]:
        """All groups in the order to train on: replayed ones spread evenly among the fresh ones, a fresh one first.

        verl cuts mini-batches from consecutive rows, so fresh rows before replayed ones would mean updates on fresh
        rollouts only, then updates on replayed ones only (verl/workers/engine_workers.py, train_mini_batch).
        """
        fresh = [(place / len(self.fresh), 0, group) for place, group in enumerate(self.fresh)]
        replayed = [((place + 0.5) / len(self.replayed), 1, group) for place, group in enumerate(self.replayed)]
        return [group for *_, group in sorted(fresh + replayed, key=lambda entry: entry[:2])]


def nominal_fresh(train_batch_size: int, config: ReplayConfig) -> int:
    """Fresh groups of a step whose replayed share is full: `max(1, floor(fresh_fraction * B + 0.5))`."""
    if not config.enable:
        return train_batch_size
    return max(1, math.floor(config.fresh_fraction * train_batch_size + 0.5))


def plan_step(train_batch_size: int, config: ReplayConfig, step: int, eligible: int) -> Plan:
    """Split the batch of `step` (from 1) before generation; what the replay cannot give yet is generated."""
    if not config.enable or step <= config.warmup_steps:
        return Plan(train_batch_size, 0)
    replayed = min(train_batch_size - nominal_fresh(train_batch_size, config), eligible)
    return Plan(train_batch_size - replayed, replayed)


def assemble(plan: Plan, fresh: Sequence[Group], replay: RolloutReplay, config: ReplayConfig, policy_version: int) -> Batch:
    """Draw the planned replayed groups and offer the replay the places of failed, then of uninformative fresh groups.

    Args:
        plan: the split decided before generation.
        fresh: groups that have at least one row, in submission order; fewer than planned when whole groups failed.
        replay: source of the replayed groups; drawn ones stay in it.
        config: `fill` decides whether uninformative groups give up their place.
        policy_version: current number of policy updates, for the age limit.

    Returns:
        The batch. Where the replay is short, uninformative groups stay, and failed ones leave the batch short (verl pads).
    """
    if not config.enable:
        return Batch(list(fresh), [], [], 0)
    failed = [group for group in fresh if not group.complete]
    wasted = [group for group in fresh if group.complete and not group.informative]
    yielding = failed + (wasted if config.fill == "informative" else [])
    missing = max(0, plan.fresh - len(fresh))
    drawn = replay.draw(plan.replayed + missing + len(yielding), policy_version)
    filled = max(0, len(drawn) - plan.replayed)
    displaced = yielding[: max(0, filled - missing)]
    gone = {group.uid for group in displaced}
    return Batch([group for group in fresh if group.uid not in gone], drawn, displaced, filled)
