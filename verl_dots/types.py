"""The records that flow between the parts of verl-dots. Read this first.

A **question** is one prompt of the training set. Its identity is its text (`question_id`), never its row number: files are
reordered, subset and concatenated. One **rollout** is one sampled response; the `G` rollouts of one question, sampled from
one policy, are a **group**. The **success rate** of a group is its mean reward scaled to [0, 1]; **difficulty** is
1 - success rate, the failure rate, everywhere in this package.

    >>> group = Group(uid="u1", question_id=question_id("1+1=?"), policy_version=3, source="selected",
    ...               keys=("u1_0_0", "u1_1_0"), rewards=(1.0, 0.0), complete=True)
    >>> group.informative      # its rewards differ, so its advantages are not all zero
    True
    >>> seen = Observation.of(group, step=4, reward_range=(0.0, 1.0), predicted=0.4)
    >>> seen.successes, seen.trials, seen.difficulty
    (1.0, 2, 0.5)
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Source = Literal["selected", "explored", "reference"]
"""Why a question was rolled out: chosen by difficulty, drawn uniformly, or only to label the predictor."""

QUESTION_ID_HEX_DIGITS = 32


def question_id(text: str) -> str:
    """The identity of a question: the first 32 hex digits of SHA-256 over its NFC-normalised, stripped text."""
    normalised = unicodedata.normalize("NFC", text).strip()
    return hashlib.sha256(normalised.encode("utf-8")).hexdigest()[:QUESTION_ID_HEX_DIGITS]


def question_id_of_row(extra_info: Mapping | None, messages: Sequence[Mapping] | str) -> str:
    """The identity of a data set row.

    `extra_info.question_id` wins, then the text in `extra_info.question`, then the canonical JSON of the chat messages.
    """
    extra_info = extra_info or {}
    if extra_info.get("question_id"):
        return str(extra_info["question_id"])
    return question_id(question_text(extra_info, messages))


def question_text(extra_info: Mapping | None, messages: Sequence[Mapping] | str) -> str:
    """The text that identifies a row: `extra_info.question`, otherwise its messages as canonical JSON."""
    question = (extra_info or {}).get("question")
    if question:
        return str(question)
    if isinstance(messages, str):
        return messages
    return json.dumps([dict(m) for m in messages], sort_keys=True, ensure_ascii=False, default=str)


def scaled_reward(reward: float, reward_range: tuple[float, float]) -> float | None:
    """`reward` scaled from `reward_range` to [0, 1]; None where it lies outside, or is not a number.

    Rewards have been float32 on their way (1.1 arrives as 1.10000002), so one next to a bound counts as the bound. Float32
    is exact to 6e-8 of the value; we allow 1e-6.
    """
    low, high = reward_range
    tolerance = 1e-6 * (abs(low) + abs(high))
    for bound, value in ((low, 0.0), (high, 1.0)):
        if abs(reward - bound) <= min(tolerance, (high - low) / 4):
            return value
    return (reward - low) / (high - low) if low < reward < high else None  # NaN is in no interval


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts of one question under one policy: what selection and replay know of them. Tokens stay in verl's store.

    Attributes:
        uid: verl's id of the prompt submission; verl groups advantages by it, so a replayed group keeps it.
        question_id: identity of the question (32 hex digits).
        policy_version: number of policy updates when the group's generation was scheduled, >= 0.
        source: why the question was rolled out.
        keys: the store keys of its rows, `{uid}_{session}_{output}`; a session may have several outputs.
        rewards: one unscaled reward per finished session, in session order.
        complete: every one of the G sessions finished.
    """

    uid: str
    question_id: str
    policy_version: int
    source: Source
    keys: tuple[str, ...]
    rewards: tuple[float, ...]
    complete: bool

    @property
    def informative(self) -> bool:
        """All sessions finished and their rewards are not all exactly equal: only then is any advantage not zero."""
        return self.complete and len(set(self.rewards)) > 1


@dataclass(frozen=True, slots=True)
class Observation:
    """What one group showed about one question.

    Attributes:
        question_id: identity of the question (32 hex digits).
        step: training step (from 1) in which the group was generated.
        source: why the question was rolled out. Only `explored` ones are an unbiased sample of the pool.
        successes: sum of the scaled rewards, in [0, trials]; not an integer when rewards are graded.
        trials: finished rollouts, >= 1.
        predicted: difficulty in [0, 1] predicted before the rollout, None before the first prediction.
    """

    question_id: str
    step: int
    source: Source
    successes: float
    trials: int
    predicted: float | None = None

    @property
    def difficulty(self) -> float:
        """Observed failure rate in [0, 1]."""
        return 1.0 - self.successes / self.trials

    @classmethod
    def of(
        cls, group: Group, step: int, reward_range: tuple[float, float], predicted: float | None = None
    ) -> Observation:
        """Scale a group's rewards from `reward_range` to [0, 1].

        Raises:
            ValueError: a reward is outside `reward_range` (or not a number), which would make difficulties meaningless.
        """
        successes = 0.0
        for reward in group.rewards:
            scaled = scaled_reward(reward, reward_range)
            if scaled is None:
                low, high = reward_range
                raise ValueError(
                    f"reward {reward} of question {group.question_id} is outside dots.reward_range [{low}, {high}]: "
                    "set dots.reward_range to the range of your reward function"
                )
            successes += scaled
        return cls(group.question_id, step, group.source, successes, len(group.rewards), predicted)


@dataclass(frozen=True, slots=True)
class Draw:
    """One question taken from the sampler.

    Attributes:
        row: its first row in the loaded data set.
        question_id: identity of the question (32 hex digits).
        source: why it was taken.
        occurrence: how many times it had been taken before, >= 0. Part of the seed of its rollouts: a small pool may give
            one question twice to one request, and the two groups must not be copies of each other.
    """

    row: int
    question_id: str
    source: Source
    occurrence: int = 0


METRICS: dict[str, str] = {
    # --- selection and prediction; Pearson and calibration over explored groups only, predicted before their rollout
    "dots/pearson": "correlation of predicted and observed difficulty, last 256 explored groups; absent below 32",
    "dots/calibration_error": "expected calibration error over 10 bins of predicted difficulty, the same groups",
    "dots/expected_pearson": "correlation that the predictor expects of itself (leave-one-out on the reference set)",
    "dots/labels": "groups in the reference set of the last refresh",
    "dots/selection_entropy": "entropy of the selection distribution divided by that of the uniform one, in [0, 1]",
    "dots/refresh_seconds": "time of the last refresh: prediction, posterior, selection",
    "dots/predicted_mean": "mean predicted difficulty of the pool",
    "dots/target_share": "share of the pool predicted within 0.25 of the target",
    "dots/informative_share": "share of the fresh groups whose rewards are not all equal",
    "dots/trained_informative_share": "share of the groups trained on whose rewards are not all equal",
    "dots/fresh_score_mean": "mean unscaled reward of the fresh rollouts (critic/score describes the mixed batch)",
    "dots/fresh_groups": "groups generated for training in this step, refills included",
    "dots/reference_groups": "groups generated only to label the predictor",
    "dots/reference_kept": "reference groups with mixed rewards that entered the replay",
    "dots/reference_seconds": "time spent waiting for reference rollouts alone",
    "dots/generated_tokens": "response tokens generated in this step; reference, displaced and filtered groups are in it",
    "dots/generated_groups": "groups generated in this step, all of them",
    "dots/failed_groups": "groups with a failed session",
    "dots/observed_0": "share of fresh groups with success rate 0; all five absent when rewards leave dots.reward_range",
    "dots/observed_low": "share in (0, 0.25]",
    "dots/observed_mid": "share in (0.25, 0.75)",
    "dots/observed_high": "share in [0.75, 1)",
    "dots/observed_1": "share with success rate 1",
    # --- rollout replay
    "replay/size": "groups held after the step",
    "replay/drawn": "replayed groups in the batch",
    "replay/filled": "of these, those that took the place of an uninformative or failed fresh group",
    "replay/surplus": "informative fresh groups that the batch had no place for and that entered the replay",
    "replay/age_mean": "mean age of the drawn groups, in policy versions",
    "replay/age_max": "largest age of the drawn groups",
    "replay/weight_mean": "mean weight over the tokens of replayed rows, after truncation",
    "replay/weight_max": "largest weight before truncation",
    "replay/truncated_share": "share of replayed tokens whose weight was cut to replay.max_weight",
    "replay/effective_sample_size": "(sum w)^2 / (n sum w^2) over replayed tokens, in (0, 1]",
    "replay/evicted_age": "groups evicted because they were older than replay.max_age",
    "replay/evicted_capacity": "groups evicted because the replay or the store was full, or for a newer one of the question",
    "replay/save_seconds": "time to save the replay's rows with the checkpoint",
    "replay/save_bytes": "size of the saved rows",
}
"""Every metric we log and what it means; verl's Tracking receives these names."""
