"""What can be known once the data sets are loaded, before anything is generated. Errors as in `check`."""

from __future__ import annotations

from collections.abc import Iterable

from omegaconf import DictConfig, OmegaConf

from verl_dots.config import DotsConfig
from verl_dots.integration import check


def check_data_sizes(config: DictConfig, dots: DotsConfig, train_rows: int, validation_rows: int) -> None:
    """What depends on the loaded data sets: a step for verl's epochs, and room in the store while verl validates.

    Args:
        config: verl's configuration.
        dots: the parsed `dots` block.
        train_rows, validation_rows: of the data sets, after verl's length filter.

    Raises:
        ValueError: no batch in an epoch (verl divides by their number); a validation that would overflow the store beside
            the replay, where its rollouts fail one by one and accuracy is that of the others.
    """
    data, limit = config.data, check.storage_limit(config)
    if train_rows < data.train_batch_size and not config.trainer.get("val_only"):
        raise ValueError(
            f"data.train_batch_size={data.train_batch_size}: the training data set has {train_rows} rows after verl's "
            f"length filter, less than one batch, set data.train_batch_size to {train_rows} or less"
        )
    if limit is None or not dots.replay.enable or int(config.trainer.get("test_freq") or -1) <= 0:
        return
    rollout = config.actor_rollout_ref.rollout
    validated = min(validation_rows, data.get("val_batch_size") or validation_rows) * int(rollout.val_kwargs.n)
    held = (dots.replay.capacity + int(data.train_batch_size)) * int(rollout.n)  # a step's rows stay until it is logged
    if held + validated > limit:
        raise ValueError(
            f"{check.STORAGE_KEY}={limit} rows, but a validation of {validated} beside a replay of {dots.replay.capacity} "
            f"groups and a step needs {held + validated}: raise it, or lower data.val_batch_size or dots.replay.capacity"
        )


def check_default_rewards(config: DictConfig, dots: DotsConfig, data_sources: Iterable[str]) -> None:
    """The rewards of verl's default function lie in `dots.reward_range`, as far as the data source tells.

    Args:
        config: verl's configuration.
        dots: the parsed `dots` block.
        data_sources: those of the training rows.

    Raises:
        ValueError: one of them gets -1 for a wrong answer (verl/utils/reward_score/__init__.py).
    """
    low, high = dots.reward_range
    own = any(
        OmegaConf.select(config, key)
        for place in ("reward.custom_reward_function.path", "reward.reward_model.enable")
        for key in (place, place.removeprefix("reward."))  # the second is verl's older place
    )
    if own or OmegaConf.select(config, "reward.reward_manager.source") == "importlib" or (low <= -1 and high >= 1):
        return
    for source in sorted(set(data_sources)):
        if source in ("math", "math_dapo", "math_dapo_reasoning") or source.startswith("aime"):
            raise ValueError(
                f"data source {source!r}: verl's default reward function gives -1 or 1 for it, outside dots.reward_range "
                f"[{low}, {high}]: set dots.reward_range=[-1,1], or reward.custom_reward_function.path=pkg://verl_dots.rewards"
            )
