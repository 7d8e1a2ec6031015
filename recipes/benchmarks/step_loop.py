"""One training step as `verl_dots.integration.trainer` orders it, over any world that can roll out and train.

Selection, estimate, replay and the composition of the batch are the package's own modules; a world is a policy in plain
PyTorch (`arithmetic_world`) or a simulated one (`simulate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from methods import Method

from verl_dots.batch import assemble, nominal_fresh, plan_step
from verl_dots.difficulty.estimate import DifficultyEstimator
from verl_dots.difficulty.predictor import Predictor
from verl_dots.replay import RolloutReplay
from verl_dots.sampler import DifficultySampler
from verl_dots.types import Draw, Group, Observation

PROBED = 512
"""Questions, drawn uniformly from the pool, on which estimates are compared with the truth."""
THOMPSON_TEMPERATURE = 1e-3
THOMPSON_DECAY = 0.5
"""MoPPS keeps this share of a question's evidence when the question is rolled out again."""


class World(Protocol):
    """What is trained."""

    question_ids: Sequence[str]

    def roll_out(self, uids: Sequence[str], questions: Sequence[int]) -> tuple[list[tuple[float, ...]], int]: ...

    def train(self, fresh: Sequence[Group], replayed: Sequence[Group]) -> int: ...

    def forget(self, uids: Iterable[str]) -> None: ...

    def true_difficulty(self, questions: np.ndarray) -> np.ndarray: ...


@dataclass
class Totals:
    """Sums over the steps so far. Groups and tokens are generated ones unless `trained_` is in the name."""

    groups: int = 0
    tokens: int = 0
    reference_groups: int = 0
    fresh_groups: int = 0
    fresh_informative: int = 0
    trained_groups: int = 0
    trained_informative: int = 0
    trained_tokens: int = 0
    filled: int = 0


@dataclass
class StepLoop:
    """The state of a run: sampler, estimator, replay, totals.

    Attributes:
        estimator: None where the method selects without a predictor.
        refreshes: (step, Pearson of the estimate and of the prediction alone with the true difficulty, share of
            questions within .25 of the target by truth), at the refreshes that `probe` names, on `PROBED` questions.
    """

    world: World
    method: Method
    predictor: Predictor | None
    probe: Sequence[int] = ()
    totals: Totals = field(default_factory=Totals)
    refreshes: list[tuple[int, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        dots, selection = self.method.dots, self.method.dots.selection
        thompson = self.method.name == "thompson"
        self.sampler = DifficultySampler(
            self.world.question_ids,
            target=selection.target,
            temperature=THOMPSON_TEMPERATURE if thompson else selection.temperature,
            refresh_every=1 if thompson else selection.refresh_every,
            explore_fraction=0.0 if thompson else selection.explore_fraction,
            seed=dots.seed,
        )
        self.estimator = DifficultyEstimator(self.predictor, self.sampler.pool, dots) if selection.enable else None
        self.replay = RolloutReplay.from_config(dots)
        self._position = {question: row for row, question in enumerate(self.sampler.pool)}
        self._difficulty: np.ndarray | None = None
        self._thompson = np.random.default_rng([dots.seed, 3])
        self._beta = np.ones((2, len(self.sampler.pool)))  # failures and successes, with a uniform prior

    def step(self, step: int) -> None:
        """Step `step`, from 1: generate, put the batch together, train, admit to the replay."""
        self._kept: list[Group] = []
        self._refresh(step)
        version = step - 1
        plan = plan_step(self.method.batch, self.method.dots.replay, step, self.replay.eligible(version))
        groups = self._generate(step, plan.fresh)
        if self.method.name == "dapo":
            groups = self._regenerate(step, groups)
        batch = assemble(plan, groups, self.replay, self.method.dots.replay, version)
        trained = [*batch.fresh, *batch.replayed]
        self.totals.filled += batch.filled
        self.totals.trained_groups += len(trained)
        self.totals.trained_informative += sum(group.informative for group in trained)
        self.totals.trained_tokens += self.world.train(batch.fresh, batch.replayed)
        evicted = []
        if self.method.dots.replay.enable:
            evicted = self.replay.admit([*self._kept, *batch.fresh, *batch.surplus]) + self.replay.expire(version + 1)
        done = {group.uid for group in (*groups, *trained, *self._kept, *evicted)}
        self.world.forget(done - {group.uid for group in self.replay})

    # ------------------------------------------------------------------------------------------------- selection

    def _refresh(self, step: int) -> None:
        """As `DotsTrainer.prepare_step`; a uniform method gets one endless uniform order, as verl's own sampler."""
        if self.method.name == "thompson":
            self.sampler.refresh(self._thompson.beta(*self._beta), self.method.batch)
        elif self.estimator is None:
            if step == 1:
                self.sampler.refresh(None, self.method.batch)
        elif self.sampler.needs_refresh(step):
            reference = self.method.dots.reference
            if reference.mode == "fresh":
                self._label(step, reference.size)
            estimate = self.estimator.refresh(step)
            self._difficulty = estimate.difficulty
            fresh = nominal_fresh(self.method.batch, self.method.dots.replay)
            self.sampler.refresh(estimate.difficulty, self.method.dots.selection.refresh_every * fresh)
            if step in self.probe and estimate.difficulty is not None:
                self._probe(step, estimate.difficulty, estimate.prior)
            if reference.mode == "overlap":
                self._label(step, reference.size)

    def _label(self, step: int, size: int) -> None:
        """Roll out a reference set; in mode `overlap` with the step's own, and its labels serve the next refresh."""
        groups = self._roll_out(step, self.sampler.draw_reference(size), "r")
        self.totals.reference_groups += len(groups)
        reuse = self.method.dots.reference.reuse and self.method.dots.replay.enable
        self._kept = [group for group in groups if reuse and group.informative]
        self.world.forget({group.uid for group in groups} - {group.uid for group in self._kept})

    def _probe(self, step: int, difficulty: np.ndarray, prior: np.ndarray) -> None:
        sample = np.random.default_rng(step).permutation(len(difficulty))[:PROBED]
        truth = self.world.true_difficulty(sample)
        near = float((np.abs(truth - self.method.dots.selection.target) <= 0.25).mean())
        with np.errstate(invalid="ignore"):
            pair = [float(np.corrcoef(values[sample], truth)[0, 1]) for values in (difficulty, prior)]
        self.refreshes.append((step, *pair, near))

    # ------------------------------------------------------------------------------------------------- generation

    def _generate(self, step: int, size: int, round_number: int = 0) -> list[Group]:
        groups = self._roll_out(step, self.sampler.request(size), f"f{round_number}")
        self.totals.fresh_groups += len(groups)
        self.totals.fresh_informative += sum(group.informative for group in groups)
        return groups

    def _regenerate(self, step: int, groups: list[Group]) -> list[Group]:
        """verl's filter in synchronous mode: k evicted groups allow 2k new ones, a batch at a time; surplus is lost."""
        size, round_number = self.method.batch, 0
        kept = [group for group in groups if group.informative]
        credits = 2 * (len(groups) - len(kept))
        while len(kept) < size and credits:
            round_number += 1
            new = self._generate(step, min(credits, size), round_number)
            useful = [group for group in new if group.informative]
            kept += useful
            credits += 2 * (len(new) - len(useful)) - len(new)
            self.world.forget(group.uid for group in new if not group.informative)
        self.world.forget(group.uid for group in kept[size:])
        return kept[:size]

    def _roll_out(self, step: int, draws: list[Draw], name: str) -> list[Group]:
        next(self.sampler.batches)  # what a dataloader would fetch
        uids = [f"{step}-{name}-{number}" for number in range(len(draws))]
        rewards, tokens = self.world.roll_out(uids, [draw.row for draw in draws])
        self.totals.groups += len(draws)
        self.totals.tokens += tokens
        groups = [
            Group(uid, draw.question_id, step - 1, draw.source, (uid,), reward, complete=True)
            for uid, draw, reward in zip(uids, draws, rewards, strict=True)
        ]
        self._observe(step, groups)
        return groups

    def _observe(self, step: int, groups: list[Group]) -> None:
        rows = [self._position[group.question_id] for group in groups]
        seen = [
            Observation.of(group, step, self.method.dots.reward_range, self._predicted(row))
            for group, row in zip(groups, rows, strict=True)
        ]
        if self.estimator is not None:
            self.estimator.observe(seen)
        if self.method.name == "thompson":
            for row, one in zip(rows, seen, strict=True):
                evidence = np.array([one.trials - one.successes, one.successes])
                self._beta[:, row] = THOMPSON_DECAY * self._beta[:, row] + (1 - THOMPSON_DECAY) + evidence

    def _predicted(self, row: int) -> float | None:
        return None if self._difficulty is None else float(self._difficulty[row])
