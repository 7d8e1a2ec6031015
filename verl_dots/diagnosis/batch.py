"""Does the arithmetic of a batch work out: ranks, mini-batches, fresh and replayed groups, the pool of questions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verl_dots.batch import nominal_fresh
from verl_dots.config import DotsConfig
from verl_dots.diagnosis.finding import Finding, fail, failed, ok, warn

_TOPIC = "batch"
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class BatchShape:
    """The sizes that verl multiplies and divides.

    Attributes:
        questions: `data.train_batch_size`.
        rollouts: `rollout.n`, the group size G.
        mini_batch: questions per update, `actor.ppo_mini_batch_size`.
        ranks: accelerators of the actor.
        data_parallel: ranks that get different rows.
        micro_batch: rows per rank at a time in an update; None with dynamic batch sizes.
        log_prob_micro_batch: the same when log-probs are computed; None with dynamic batch sizes.
        engine_ranks: accelerators of one rollout engine (tensor x data x pipeline parallel).
        steps: `trainer.total_training_steps`, None where epochs decide.
        epochs: `trainer.total_epochs`.
    """

    questions: int
    rollouts: int
    mini_batch: int
    ranks: int
    data_parallel: int
    micro_batch: int | None = None
    log_prob_micro_batch: int | None = None
    engine_ranks: int = 1
    steps: int | None = None
    epochs: int = 1


def check_batch(shape: BatchShape) -> list[Finding]:
    """verl's own divisions; the ones it only notices in the first update end a run after its first rollouts."""
    rows, mini_rows = shape.questions * shape.rollouts, shape.mini_batch * shape.rollouts
    multiple = math.lcm(mini_rows, shape.data_parallel)
    padded = math.ceil(rows / multiple) * multiple
    findings = [*(_check_update(shape) or _check_log_probs(shape, padded)), *_check_engines(shape)]
    if failed(findings):
        return findings
    if padded != rows:
        findings.append(
            warn(
                _TOPIC,
                f"{rows} rows are no multiple of {multiple}: verl fills each batch with {padded - rows} empty rows",
                f"make data.train_batch_size a multiple of {_ACTOR}.ppo_mini_batch_size={shape.mini_batch}",
            )
        )
    line = (
        f"{shape.questions} questions x {shape.rollouts} rollouts = {rows} rows, {padded // mini_rows} update(s) of "
        f"{mini_rows} on {shape.data_parallel} data-parallel rank(s)"
    )
    return [ok(_TOPIC, line), *findings]


def _check_update(shape: BatchShape) -> list[Finding]:
    """A mini-batch over the ranks, and its rows per rank over the micro-batches."""
    mini_rows = shape.mini_batch * shape.rollouts
    per_rank, rest = divmod(mini_rows, shape.data_parallel)
    if rest:
        divisor = shape.data_parallel // math.gcd(shape.data_parallel, shape.rollouts)
        return [
            fail(
                _TOPIC,
                f"a mini-batch of {shape.mini_batch} questions x {shape.rollouts} rollouts = {mini_rows} rows does not "
                f"divide by {shape.data_parallel} data-parallel ranks: verl stops in its first update",
                f"set {_ACTOR}.ppo_mini_batch_size to a multiple of {divisor}",
            )
        ]
    if shape.micro_batch is not None and per_rank % shape.micro_batch:
        return [
            fail(
                _TOPIC,
                f"{per_rank} rows of a mini-batch per rank do not divide by {_ACTOR}.ppo_micro_batch_size_per_gpu="
                f"{shape.micro_batch}: verl stops in its first update",
                f"set it to {math.gcd(per_rank, shape.micro_batch)}, or {_ACTOR}.use_dynamic_bsz=True",
            )
        ]
    return []


def _check_log_probs(shape: BatchShape, padded: int) -> list[Finding]:
    """The whole batch over the ranks, and its rows per rank over the micro-batches of log-probs."""
    per_rank = padded // shape.data_parallel
    if shape.log_prob_micro_batch is None or per_rank % shape.log_prob_micro_batch == 0:
        return []
    return [
        fail(
            _TOPIC,
            f"{per_rank} rows per rank do not divide by {_ROLLOUT}.log_prob_micro_batch_size_per_gpu="
            f"{shape.log_prob_micro_batch}: verl stops in the first step",
            f"set it to {math.gcd(per_rank, shape.log_prob_micro_batch)}, or log_prob_use_dynamic_bsz=True",
        )
    ]


def _check_engines(shape: BatchShape) -> list[Finding]:
    """Rollout engines over the ranks."""
    if shape.ranks % shape.engine_ranks == 0:
        return []
    return [
        fail(
            _TOPIC,
            f"{shape.ranks} ranks do not divide into rollout engines of {shape.engine_ranks} (tensor x data x pipeline "
            "parallel)",
            f"set {_ROLLOUT}.tensor_model_parallel_size to a divisor of {shape.ranks}",
        )
    ]


def check_shares(shape: BatchShape, dots: DotsConfig) -> list[Finding]:
    """What a step generates and what it replays."""
    replay = dots.replay
    if not replay.enable:
        return [ok("replay", f"off: all {shape.questions} groups of a step are generated")]
    fresh = nominal_fresh(shape.questions, replay)
    replayed = max(0, shape.questions - fresh)
    line = f"{fresh} groups generated and {replayed} replayed per step, when the replay (of {replay.capacity}) has them"
    if fresh > shape.questions:
        line = f"{fresh} groups generated for {shape.questions} places; informative ones left over enter the replay"
    elif replayed == 0 and replay.fill == "informative":
        line = f"all {fresh} groups generated; replayed ones (of {replay.capacity}) take the places of uninformative ones"
    findings = [ok("replay", line)]
    if replayed == 0 and replay.fill == "none":
        findings.append(
            warn(
                "replay",
                f"{fresh} groups generated for {shape.questions} places and dots.replay.fill=none: only failed groups are "
                "replaced by replayed ones",
                "set dots.replay.fill=informative, a dots.replay.fresh_fraction below 1, or dots.replay.enable=False",
            )
        )
    if replay.capacity < replayed:
        findings.append(
            warn(
                "replay",
                f"dots.replay.capacity={replay.capacity} is below the {replayed} groups a step replays",
                f"set it to {4 * shape.questions} or more",
            )
        )
    if replay.max_age is not None and replay.max_age * fresh < replayed:
        findings.append(
            warn(
                "replay",
                f"dots.replay.max_age={replay.max_age} x {fresh} fresh groups cannot fill {replayed} replayed places",
                f"set it to {math.ceil(2 * replayed / fresh)} or more",
            )
        )
    return findings


def check_epochs(shape: BatchShape, rows: int) -> list[Finding]:
    """verl counts steps of an epoch by the rows there are, whatever is drawn and replayed, and ends a run by its epochs."""
    if rows < shape.questions:
        return [
            fail(
                "questions",
                f"{rows} rows are fewer than data.train_batch_size={shape.questions}: an epoch has no step, and verl "
                "divides by their number",
                f"set data.train_batch_size to {rows} or less",
            )
        ]
    most = rows // shape.questions * shape.epochs
    if shape.steps is None or shape.steps <= most:
        return []
    return [
        warn(
            "questions",
            f"trainer.total_training_steps={shape.steps} is never reached: trainer.total_epochs={shape.epochs} ends the run "
            f"after {most} steps, without the validation and the checkpoint of a last step",
            f"set trainer.total_epochs={math.ceil(shape.steps / (rows // shape.questions))} or more",
        )
    ]


def check_pool(shape: BatchShape, dots: DotsConfig | None, pool: int) -> list[Finding]:
    """Is the pool of `pool` distinct questions large enough for what a step takes from it."""
    findings = []
    if dots is None or not dots.selection.enable:
        return findings
    selection, reference = dots.selection, dots.reference
    fresh = nominal_fresh(shape.questions, dots.replay)
    wanted = selection.refresh_every * fresh
    if pool < fresh:
        findings.append(
            warn(
                "questions",
                f"a step draws {fresh} questions from {pool}: {fresh - pool} are drawn again",
                "more questions, a smaller data.train_batch_size, or a smaller dots.replay.fresh_fraction",
            )
        )
    elif pool < 2 * wanted:
        findings.append(
            warn(
                "questions",
                f"{wanted} questions per prediction ({selection.refresh_every} steps x {fresh}) are more than half of the "
                f"{pool} there are: selection has little to choose from",
                "more questions, a smaller data.train_batch_size, or dots.selection.refresh_every=1",
            )
        )
    if selection.explore_fraction > 0 and int(selection.explore_fraction * wanted + 0.5) == 0:
        findings.append(
            warn(
                "questions",
                f"dots.selection.explore_fraction={selection.explore_fraction} of {wanted} questions rounds to none",
                f"set it to {1 / wanted:.2g} or more",
            )
        )
    if reference.mode == "window" and reference.window == "explored" and selection.explore_fraction == 0:
        findings.append(
            warn(
                "questions",
                "dots.reference.window=explored with explore_fraction=0: the labels of the first steps are never renewed",
                "set dots.reference.window=all, or explore",
            )
        )
    if reference.mode != "window" and reference.size > pool:
        findings.append(
            warn(
                "questions",
                f"dots.reference.size={reference.size} exceeds the {pool} questions: all of them are rolled out each time",
                "set dots.reference.mode=window, or a smaller size",
            )
        )
    return findings
