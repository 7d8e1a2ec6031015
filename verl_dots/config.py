"""The `dots` block of verl's trainer YAML as frozen dataclasses.

Every wrong value is a `ValueError` of one line that names the key, the value and what is allowed. What depends on the rest
of verl's configuration (batch size, loss mode, ...) is checked in `verl_dots.integration.check`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

FEWEST_FRESH = 32
"""Groups that a step generates where the batch has them, unless `replay.fresh_fraction` says otherwise."""


def _require(ok: bool, key: str, value: Any, allowed: str) -> None:
    if not ok:
        raise ValueError(f"dots.{key}={value!r} is not allowed: use {allowed}")


@dataclass(frozen=True)
class SelectionConfig:
    """Which questions a step generates rollouts for (paper section 3.2)."""

    enable: bool = True
    target: float = 0.6
    """Difficulty (failure rate) to aim at, in [0, 1]; the paper's alpha, .5 there. A little harder leaves more to learn
    (recipes/benchmarks)."""
    temperature: float = 0.1
    """Spread around the target, > 0; the paper's tau."""
    refresh_every: int = 2
    """Steps served by one prediction, >= 1; the paper's mu."""
    explore_fraction: float = 0.125
    """Share of each fresh batch drawn uniformly, in [0, 1], so that no region of the pool goes without labels."""

    def __post_init__(self) -> None:
        _require(0.0 <= self.target <= 1.0, "selection.target", self.target, "a failure rate in [0, 1]")
        positive = self.temperature > 0 and math.isfinite(self.temperature)
        _require(positive, "selection.temperature", self.temperature, "a number above 0")
        _require(self.refresh_every >= 1, "selection.refresh_every", self.refresh_every, "a whole number >= 1")
        _require(
            0.0 <= self.explore_fraction <= 1.0,
            "selection.explore_fraction",
            self.explore_fraction,
            "a share of the fresh batch in [0, 1]",
        )


@dataclass(frozen=True)
class ReferenceConfig:
    """Where the labels of the predictor come from."""

    mode: Literal["window", "overlap", "fresh"] = "window"
    """`window`: the last groups of the training itself. `fresh`: extra questions rolled out before a refresh (the paper).
    `overlap`: extra questions rolled out together with the step's own; their labels serve the next refresh."""
    window: Literal["all", "explored"] = "all"
    """Which groups of the training count as labels in mode `window`."""
    size: int | None = None
    """Questions in the reference set, the paper's K; null: min(512, 32 x train_batch_size) in mode `window`, where labels
    are free, otherwise min(256, 8 x train_batch_size)."""
    min_size: int = 32
    """Selection is uniform until this many labels exist."""
    reuse: bool = True
    """Reference groups with mixed rewards enter the replay (modes `fresh` and `overlap`)."""
    timeout_s: float = 600.0
    """Seconds to wait for reference rollouts in mode `fresh`; then the finished ones are used."""

    def __post_init__(self) -> None:
        _require(self.size is None or self.size >= 2, "reference.size", self.size, "null or a whole number >= 2")
        _require(self.min_size >= 2, "reference.min_size", self.min_size, "a whole number >= 2")
        _require(
            self.size is None or self.min_size <= self.size,
            "reference.min_size",
            self.min_size,
            f"at most reference.size={self.size}",
        )
        _require(self.timeout_s > 0, "reference.timeout_s", self.timeout_s, "seconds above 0")


@dataclass(frozen=True)
class PredictorConfig:
    """How labels are carried over to the questions without one."""

    embeddings: str | None = None
    """File written by data_prep/embed_questions.py; null: lexical features, computed at start-up."""
    checkpoint: str | None = None
    """File written by data_prep/fit_predictor.py; null: kernel attention fitted on the reference set itself."""
    posterior: bool = True
    """Combine the prediction with what the question's own past groups showed, discounted by age."""

    def __post_init__(self) -> None:
        _require(
            self.checkpoint is None or self.embeddings is not None,
            "predictor.checkpoint",
            self.checkpoint,
            "it together with predictor.embeddings, the vectors it was fitted on",
        )


@dataclass(frozen=True)
class ReplayConfig:
    """Which part of a batch is replayed, and how (paper section 3.3)."""

    enable: bool = True
    fresh_fraction: float | None = None
    """Share of the batch that is generated, in (0, 2]; the paper's delta. Above 1 more is generated than the batch has
    places: uninformative groups give theirs to informative ones, and what is left of these enters the replay. null: .5, but
    no fewer than 32 groups a step, below which a run may end under plain GRPO (recipes/benchmarks)."""
    capacity: int | None = None
    """Groups held, the paper's C; null: 8 x train_batch_size."""
    max_age: int | None = None
    """A group older than this many policy versions is never drawn; null: no limit."""
    max_weight: float | None = 2.0
    """Per-token weights exp(old - behaviour) are cut to this; null: not cut."""
    behaviour: Literal["trainer", "rollout"] = "trainer"
    """Whose log-probs are the behaviour policy's: the trainer's at generation, or the rollout engine's."""
    draw: Literal["uniform", "informative"] = "uniform"
    """`informative` prefers groups with p(1-p) high and age low."""
    fill: Literal["informative", "none"] = "informative"
    """`informative`: the place of a fresh group whose rewards are all equal is taken by a replayed group."""
    warmup_steps: int = 0
    """Steps at the start that are generated in full and not filled, >= 0: only failed groups are replaced then."""
    newest_per_question: bool = False
    """Keep only the newest group of each question."""

    def __post_init__(self) -> None:
        fraction = self.fresh_fraction
        _require(fraction is None or 0.0 < fraction <= 2.0, "replay.fresh_fraction", fraction, "null or a share in (0, 2]")
        _require(
            self.capacity is None or self.capacity >= 1, "replay.capacity", self.capacity, "null or a whole number >= 1"
        )
        _require(self.max_age is None or self.max_age >= 1, "replay.max_age", self.max_age, "null or a whole number >= 1")
        _require(
            self.max_weight is None or self.max_weight >= 1.0,
            "replay.max_weight",
            self.max_weight,
            "null or a number >= 1 (below 1 every replayed token would be down-weighted)",
        )
        _require(self.warmup_steps >= 0, "replay.warmup_steps", self.warmup_steps, "a whole number >= 0")


@dataclass(frozen=True)
class DotsConfig:
    """The whole `dots` block.

    Example:
        >>> DotsConfig.from_mapping({"replay": {"fresh_fraction": 0.75}}).resolve(train_batch_size=64).replay.capacity
        512
    """

    seed: int = 1
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest reward of the reward function; rewards are scaled from it to a success rate in [0, 1]."""
    stall_timeout_s: float | None = 7200.0
    """Seconds in which no rollout finishes before the run ends with an error; null: verl's own behaviour, wait for ever."""
    selection: SelectionConfig = field(default_factory=SelectionConfig)
    reference: ReferenceConfig = field(default_factory=ReferenceConfig)
    predictor: PredictorConfig = field(default_factory=PredictorConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)

    def __post_init__(self) -> None:
        low, high = self.reward_range
        _require(
            math.isfinite(low) and math.isfinite(high) and low < high,
            "reward_range",
            list(self.reward_range),
            "[lowest, highest] reward with lowest < highest",
        )
        _require(self.seed >= 0, "seed", self.seed, "a whole number >= 0")
        stall = self.stall_timeout_s
        _require(stall is None or stall > 0, "stall_timeout_s", stall, "null or seconds above 0")

    @classmethod
    def from_mapping(cls, block: Mapping[str, Any] | None) -> DotsConfig:
        """Parse the `dots` block (plain dicts and lists).

        Raises:
            ValueError: unknown key (the nearest known one is named), wrong type, or a value out of range.
        """
        return _parse(cls, {} if block is None else block, prefix="")

    def resolve(self, train_batch_size: int) -> DotsConfig:
        """Fill in the sizes that `null` derives from verl's `data.train_batch_size`."""
        reference = self.reference
        if reference.size is None:
            most, batches = (512, 32) if reference.mode == "window" else (256, 8)
            size = max(2, min(most, batches * train_batch_size))
            reference = dataclasses.replace(reference, size=size, min_size=min(reference.min_size, size))
        replay = self.replay
        if replay.fresh_fraction is None:
            replay = dataclasses.replace(replay, fresh_fraction=max(0.5, min(1.0, FEWEST_FRESH / train_batch_size)))
        if replay.capacity is None:
            replay = dataclasses.replace(replay, capacity=8 * train_batch_size)
        return dataclasses.replace(self, reference=reference, replay=replay)


def _parse(cls: type, block: Mapping[str, Any], prefix: str) -> Any:
    """Build dataclass `cls` from a mapping, naming the full key in every error."""
    if not isinstance(block, Mapping):
        raise ValueError(f"{f'dots.{prefix}'.rstrip('.')}={block!r} is not allowed: use a block of keys")
    hints = typing.get_type_hints(cls)
    for key in block:
        if key not in hints:
            near = difflib.get_close_matches(str(key), hints, n=1)
            hint = f"did you mean dots.{prefix}{near[0]}?" if near else f"known keys: {', '.join(sorted(hints))}"
            raise ValueError(f"dots.{prefix}{key} does not exist: {hint}")
    values = {key: _convert(hints[key], value, f"{prefix}{key}") for key, value in block.items()}
    return cls(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    """Check one value against its type hint; whole numbers are accepted where floats are wanted, never the reverse."""
    if dataclasses.is_dataclass(hint):
        return _parse(hint, {} if value is None else value, f"{key}.")
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        _require(value in args, key, value, " or ".join(map(str, args)))
        return value
    if origin is tuple:
        pair = isinstance(value, (list, tuple)) and len(value) == len(args)
        _require(pair, key, value, f"a list of {len(args)} numbers")
        return tuple(_convert(arg, item, key) for arg, item in zip(args, value, strict=True))
    if type(None) in args:
        return None if value is None else _convert(args[0], value, key)
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    accepted = (int, float) if hint is float else (hint,)
    fits = isinstance(value, accepted) and (hint is bool or not isinstance(value, bool))
    _require(fits and value == value, key, value, names[hint])
    return hint(value)
