"""How one training batch is put together: how many groups to generate, and which replayed groups take which place.

After generation nothing more can be generated, so every place that a fresh group leaves empty (all its sessions failed) or
wastes (its rewards are all equal, so its advantages are zero) is offered to the replay. Only whole groups move: advantages
are computed within a group and hold wherever it stands.

With `fresh_fraction` above 1 more groups are generated than a batch has places. Those that teach nothing leave first,
whether batches are filled or not; informative ones without a place enter the replay untrained, where verl's group filter
(DAPO) would throw them away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from verl_dots.config import ReplayConfig
from verl_dots.replay import RolloutReplay
from verl_dots.types import Group


@dataclass(frozen=True, slots=True)
class Plan:
    """Groups of one step before generation: `fresh` to generate, `replayed` of the `places` for the replay.

    `fill`: uninformative groups will give up their places.
    """

    places: int
    fresh: int
    replayed: int
    fill: bool = True


@dataclass(frozen=True, slots=True)
class Batch:
    """Groups of one step after generation, ready to train on.

    Attributes:
        fresh: fresh groups that stay, in submission order.
        replayed: distinct replayed groups, in draw order.
        displaced: fresh groups without a place that teach nothing; their rows are no longer needed.
        surplus: informative fresh groups without a place, in submission order: for the replay.
        filled: how many of `replayed` took the place of a failed or uninformative fresh group.
    """

    fresh: list[Group]
    replayed: list[Group]
    displaced: list[Group] = field(default_factory=list)
    surplus: list[Group] = field(default_factory=list)
    filled: int = 0

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
    nominal = nominal_fresh(train_batch_size, config)
    replaying = config.enable and step > config.warmup_steps
    replayed = min(max(0, train_batch_size - nominal), eligible) if replaying else 0
    fresh = max(nominal, train_batch_size - replayed)
    return Plan(train_batch_size, fresh, replayed, fill=replaying and config.fill == "informative")


def assemble(plan: Plan, fresh: Sequence[Group], replay: RolloutReplay, config: ReplayConfig, policy_version: int) -> Batch:
    """Draw the planned replayed groups and offer the replay the places of failed, then of uninformative fresh groups.

    Args:
        plan: the split decided before generation, and whether uninformative groups give up their place.
        fresh: groups that have at least one row, in submission order; fewer than planned when whole groups failed.
        replay: source of the replayed groups; drawn ones stay in it.
        config: of the replay.
        policy_version: current number of policy updates, for the age limit.

    Returns:
        The batch. Where the replay is short, uninformative groups stay, and failed ones leave the batch short (verl pads).
    """
    if not config.enable:
        return Batch(list(fresh), [])
    failed = [group for group in fresh if not group.complete]
    wasted = [group for group in fresh if group.complete and not group.informative]
    useful = [group for group in fresh if group.informative]
    excess = max(0, len(fresh) + plan.replayed - plan.places)
    missing = max(0, plan.places - plan.replayed - len(fresh))
    without_place = [*failed, *wasted, *reversed(useful)][:excess]
    offered = [*failed, *(wasted if plan.fill else [])][excess:]
    drawn = replay.draw(plan.replayed + missing + len(offered), policy_version)
    filled = max(0, len(drawn) - plan.replayed)
    gone = {group.uid for group in (*without_place, *offered[: max(0, filled - missing)])}
    return Batch(
        fresh=[group for group in fresh if group.uid not in gone],
        replayed=drawn,
        displaced=[group for group in (*failed, *wasted) if group.uid in gone],
        surplus=[group for group in useful if group.uid in gone],
        filled=filled,
    )
