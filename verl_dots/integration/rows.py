"""verl's rows and tags <-> our records; the single place that knows verl's field names.

A row of verl's store is one output of one session (rollout) of one prompt, under the key `{uid}_{session}_{output}`
(verl/trainer/ppo/v1/agent_loop_tq.py). Only the last output of a session is scored; the others carry the same reward.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tqdm import tqdm

from verl_dots.questions import Questions
from verl_dots.types import Draw, Group, Source, question_id_of_row, question_text

PARTITION = "train"

MEDIA_KEYS = ("images", "videos", "audios")  # defaults of verl's data.image_key, video_key, audio_key
ARGUMENTS = ("tools_kwargs", "interaction_kwargs")  # in extra_info: what tools and simulated users are started with

REWARD = "rm_scores"  # per token, the reward on the last one
RESPONSE_MASK = "response_mask"
OLD_LOG_PROBS = "old_log_probs"  # of the policy at the start of the step that last computed them
ROLLOUT_LOG_PROBS = "rollout_log_probs"  # of the rollout engine
BEHAVIOUR_LOG_PROBS = "behaviour_log_probs"  # ours: old_log_probs of the step that generated the row
WEIGHTS = "rollout_is_weights"  # per token; verl's loss hands this field to the policy loss
WEIGHT_SUMS = "dots_weight_sums"  # ours: per row, see loss.weight_sums
OCCURRENCE = "__occurrence__"  # ours: how often the question was rolled out before; seeds the CPU path's rollouts

RESTORED_TENSORS = (
    "prompts",
    "responses",
    "input_ids",
    "position_ids",
    RESPONSE_MASK,
    "loss_mask",
    REWARD,
    OLD_LOG_PROBS,
    BEHAVIOUR_LOG_PROBS,
)
"""Per-token fields without which a replayed row cannot be trained on after a restart."""

OPTIONAL_TENSORS = (ROLLOUT_LOG_PROBS, "ref_log_prob")
"""Saved too when every replayed row has them."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A prompt handed to the rollout engine: its question, why it was drawn, and its place in submission order."""

    question_id: str
    source: Source
    order: int


def uid_of(key: str) -> str:
    """The prompt's uid in a row key; uids are UUIDs, which hold no underscore."""
    return key.split("_", 1)[0]


def row_order(key: str, submissions: Mapping[str, Submission]) -> tuple[int, int, int]:
    """Sort key of a row: submission order, session, output. TransferQueue's own order is that of completion."""
    uid, session, output = key.rsplit("_", 2)
    return submissions[uid].order, int(session), int(output)


def group_rows(
    keys: Sequence[str],
    rewards: Sequence[float],
    submissions: Mapping[str, Submission],
    sessions: int,
    policy_version: int,
) -> list[Group]:
    """Put rows together into groups, in submission order.

    Args:
        keys: row keys, any order.
        rewards: one unscaled reward per row.
        submissions: by uid, what was asked for.
        sessions: rollouts per question, verl's `rollout.n`; a group with fewer is incomplete.
        policy_version: number of policy updates when they were generated.
    """
    reward_of = dict(zip(keys, rewards, strict=True))
    by_uid: dict[str, list[str]] = {}
    for key in sorted(keys, key=lambda key: row_order(key, submissions)):
        by_uid.setdefault(uid_of(key), []).append(key)
    groups = []
    for uid, rows in by_uid.items():
        last_output = {key.rsplit("_", 2)[1]: key for key in rows}  # rows are sorted: the last output of a session wins
        scores = tuple(reward_of[key] for key in last_output.values())
        submission = submissions[uid]
        groups.append(
            Group(
                uid=uid,
                question_id=submission.question_id,
                policy_version=policy_version,
                source=submission.source,
                keys=tuple(rows),
                rewards=scores,
                complete=len(scores) == sessions,
            )
        )
    return groups


def identify(dataset, prompt_key: str, media_keys: Sequence[str] = MEDIA_KEYS) -> Questions:
    """Identity, text and ground truth of every row of a loaded verl data set (after its length filter).

    Args:
        dataset: verl's, or anything with its `dataframe`.
        prompt_key: column of the messages.
        media_keys: columns of images, videos and audio.
    """
    ids, texts, truths, sources, arguments = [], [], [], [], []
    for row in _light_rows(dataset, prompt_key):
        extra_info, messages = row.get("extra_info"), row[prompt_key]
        ids.append(question_id_of_row(extra_info, messages))
        texts.append(question_text(extra_info, messages))
        truths.append((row.get("reward_model") or {}).get("ground_truth"))
        sources.append(str(row.get("data_source")))
        arguments.append(fingerprint([(extra_info or {}).get(key) or None for key in ARGUMENTS]))
    repeated = {question for question, count in Counter(ids).items() if count > 1}
    media = _media(dataset, [row for row, question in enumerate(ids) if question in repeated], media_keys)
    variants = [arguments[row] + media.get(row, "") for row in range(len(ids))]
    return Questions(ids, texts, truths, variants, sources)


def fingerprint(value) -> str:
    """Equal for equal values: a short hash over JSON with sorted keys; of an image with bytes, over its bytes alone."""

    def plain(part):
        if isinstance(part, Mapping):
            return {"bytes": part["bytes"]} if part.get("bytes") else {str(key): plain(part[key]) for key in part}
        return [plain(each) for each in part] if isinstance(part, list | tuple) else part

    def digest(part):
        return hashlib.sha256(part).hexdigest() if isinstance(part, bytes) else repr(part)

    text = json.dumps(plain(value), sort_keys=True, default=digest)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _media(dataset, chosen: Sequence[int], keys: Sequence[str]) -> dict[int, str]:
    """Fingerprints of the images, videos and audio of the `chosen` rows, read without decoding them."""
    frame = getattr(dataset, "dataframe", None)
    columns = [key for key in keys if frame is not None and key in frame.column_names]
    if not columns or not chosen:
        return {}
    tables = frame.select_columns(columns).select(chosen).with_format("arrow").iter(batch_size=1)
    return {row: fingerprint(table.to_pylist()) for row, table in zip(chosen, tables, strict=True)}


def _light_rows(dataset, prompt_key: str):
    """Rows with the columns that identify them only; decoding images of a whole data set would take minutes."""
    frame = getattr(dataset, "dataframe", None)
    if frame is None:  # a user's own data set class
        for index in tqdm(range(len(dataset)), desc="question ids"):
            row = dataset[index]
            yield row if prompt_key in row else {**row, prompt_key: row["raw_prompt"]}
        return
    wanted = (prompt_key, "extra_info", "reward_model", "data_source")
    columns = [name for name in wanted if name in frame.column_names]
    yield from frame.select_columns(columns)


def draws_of_batch(extra_infos: Sequence, prompts: Sequence) -> list[Draw]:
    """What verl's own sampler fetched, as uniform draws (used when selection is off)."""
    return [
        Draw(row=-1, question_id=question_id_of_row(extra_info, prompt), source="explored")
        for extra_info, prompt in zip(extra_infos, prompts, strict=True)
    ]


def check_fetched(draws: Sequence[Draw], batch: Mapping, prompt_key: str) -> None:
    """The rows that the loader fetched are the questions that were drawn.

    Questions are identified in `dataset.dataframe`, rows fetched as `dataset[i]`, and a data set class of one's own may
    repeat or reorder rows. A prompt with images is left out where its messages are its identity: verl rewrites them.

    Raises:
        RuntimeError: they are not, one line with both ids.
    """
    prompts = list(batch[prompt_key if prompt_key in batch.keys() else "raw_prompt"])  # noqa: SIM118  a TensorDict
    for draw, extra_info, prompt in zip(draws, list(batch["extra_info"]), prompts, strict=True):
        named = (extra_info or {}).get("question_id") or (extra_info or {}).get("question")
        if not named and not all(isinstance(message["content"], str) for message in prompt):
            continue
        fetched = question_id_of_row(extra_info, prompt)
        if fetched != draw.question_id:
            raise RuntimeError(
                f"question {draw.question_id} was drawn, but row {draw.row} of the data set is question {fetched}: the data "
                "set class must return, as row i, row i of its dataframe; use verl's own class, or correct yours"
            )


def response_tokens(tags: Sequence[Mapping]) -> int:
    """Response tokens of rows, from their tags."""
    return sum(int(tag["response_len"]) for tag in tags)
