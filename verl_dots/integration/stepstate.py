"""What the trainer's hooks hand to each other within one step, and the step's metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from verl import DataProto

from verl_dots.batch import Batch, Plan
from verl_dots.integration.rows import Submission
from verl_dots.integration.store import Rows
from verl_dots.types import Draw, Group, scaled_reward


@dataclass
class StepState:
    """One step, filled in from `prepare_step` to `_compute_metrics`.

    Attributes:
        plan: groups to generate and to replay.
        submissions: by uid, every prompt submitted in this step.
        predictions: by uid, the difficulty predicted before the rollout.
        awaited: prompts that verl's `sample` has to wait for.
        fresh: groups generated to train on, in submission order.
        reference: groups generated only to label the predictor.
        kept_reference: of these, the informative ones, which enter the replay.
        batch: what is trained on.
        compared: tokens and log-probs of the fresh rows, for metrics that compare policies; None until one is asked for.
        trained_rows: handle of all rows trained on, padding included.
        generated_tokens: response tokens generated in this step.
        filtered: groups that verl's group filter threw away.
        save_metrics: what saving our part of the checkpoint cost, when this step did.
    """

    plan: Plan | None = None
    submissions: dict[str, Submission] = field(default_factory=dict)
    predictions: dict[str, float] = field(default_factory=dict)
    awaited: int = 0
    fresh: list[Group] = field(default_factory=list)
    reference: list[Group] = field(default_factory=list)
    kept_reference: list[Group] = field(default_factory=list)
    batch: Batch | None = None
    compared: DataProto | None = None
    trained_rows: Rows | None = None
    generated_tokens: int = 0
    filtered: int = 0
    save_metrics: dict[str, float] = field(default_factory=dict)

    def submitted(self, uids: Sequence[str], draws: Sequence[Draw], predictions: Sequence[float | None]) -> None:
        """Remember prompts in submission order; verl names them by uid, in the order they were fetched."""
        for uid, draw, predicted in zip(uids, draws, predictions, strict=True):
            self.submissions[uid] = Submission(draw.question_id, draw.source, len(self.submissions))
            if predicted is not None:
                self.predictions[uid] = predicted
        self.awaited += len(uids)

    def forget(self, uids: Sequence[str]) -> None:
        """These prompts were collected already: verl's `sample` must not wait for them."""
        self.awaited -= len(uids)

    def discarded(self, groups: int, tokens: int) -> None:
        """verl's group filter threw away groups of this step."""
        self.filtered += groups
        self.generated_tokens += tokens

    @property
    def rows_per_rollout(self) -> float:
        """Rows that a rollout of this step wrote, on average: one an output of the agent loop. 1 where none finished."""
        groups = (*self.fresh, *self.reference)
        rollouts = sum(len(group.rewards) for group in groups)
        return sum(len(group.keys) for group in groups) / rollouts if rollouts else 1.0

    @property
    def untrained(self) -> list[Group]:
        """Informative groups of this step that enter the replay without having been in its batch."""
        return [*self.kept_reference, *self.batch.surplus]

    @property
    def untrained_keys(self) -> list[str]:
        """Store keys of `untrained`."""
        return [key for group in self.untrained for key in group.keys]

    @property
    def replayed_keys(self) -> set[str]:
        """Store keys of the replayed rows in the batch."""
        return {key for group in self.batch.replayed for key in group.keys}


def batch_metrics(now: StepState, policy_version: int) -> dict[str, float]:
    """Metrics known once the batch is put together (names: `verl_dots.types.METRICS`)."""
    fresh, replayed, trained = now.fresh, now.batch.replayed, now.batch.groups
    rewards = [reward for group in fresh for reward in group.rewards]
    submitted = sum(submission.source != "reference" for submission in now.submissions.values())
    metrics = {
        "dots/fresh_groups": submitted,
        "dots/reference_groups": len(now.reference),
        "dots/reference_kept": len(now.kept_reference),
        "dots/generated_groups": len(now.submissions),
        "dots/generated_tokens": now.generated_tokens,
        "dots/failed_groups": submitted - now.filtered - sum(group.complete for group in fresh),
        "dots/informative_share": _share(group.informative for group in fresh),
        "dots/trained_informative_share": _share(group.informative for group in trained),
        "replay/drawn": len(replayed),
        "replay/filled": now.batch.filled,
        "replay/surplus": len(now.batch.surplus),
    }
    if rewards:
        metrics["dots/fresh_score_mean"] = float(np.mean(rewards))
    if replayed:
        ages = [policy_version - group.policy_version for group in replayed]
        metrics |= {"replay/age_mean": float(np.mean(ages)), "replay/age_max": max(ages)}
    return metrics


def generation_timing(now: StepState, metrics: Mapping[str, float]) -> dict[str, float]:
    """Milliseconds a generated token; verl divides by the tokens trained on, which replayed rows are among.

    Time and tokens of reference rollouts of their own (`dots/reference_seconds`) are in it.
    """
    if not now.generated_tokens or "timing_s/gen" not in metrics:
        return {}
    seconds = metrics["timing_s/gen"] + metrics.get("dots/reference_seconds", 0.0)
    return {"timing_per_token_ms/gen": seconds * 1000 / now.generated_tokens}


def success_histogram(groups: Sequence[Group], reward_range: tuple[float, float]) -> dict[str, float]:
    """Shares of fresh groups by success rate: 0, (0, 1/4], (1/4, 3/4), [3/4, 1), 1.

    Empty where a reward lies outside `reward_range`: with selection on that has ended the run before, without it nothing
    but these shares needs the range.
    """
    scaled = [[scaled_reward(reward, reward_range) for reward in group.rewards] for group in groups]
    if not groups or any(None in rewards for rewards in scaled):
        return {}
    rates = np.array([np.mean(rewards) for rewards in scaled])
    return {
        "dots/observed_0": float((rates == 0).mean()),
        "dots/observed_low": float(((rates > 0) & (rates <= 0.25)).mean()),
        "dots/observed_mid": float(((rates > 0.25) & (rates < 0.75)).mean()),
        "dots/observed_high": float(((rates >= 0.75) & (rates < 1)).mean()),
        "dots/observed_1": float((rates == 1).mean()),
    }


def _share(flags) -> float:
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0
