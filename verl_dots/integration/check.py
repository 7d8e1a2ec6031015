"""What can be known from verl's configuration alone: checked before Ray starts (hydra callback), by doctor, by the trainer.

Each finding is a `ValueError` of one line that names the key, its value and the remedy.
"""

from __future__ import annotations

import math
import os
import sys
import traceback
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_dots.batch import nominal_fresh
from verl_dots.config import DotsConfig
from verl_dots.embeddings import EmbeddingTable
from verl_dots.files import one_line
from verl_dots.integration import compat

TRAINER_MODE = "dots"
DECOUPLED, BEHAVIOUR = "dots_decoupled", "dots_behaviour"
LOSS_KEY = "actor_rollout_ref.actor.policy_loss.loss_mode"
SAMPLER_KEY = "trainer.v1.sampler.custom_sampler"
STRATEGY_KEY, STRATEGIES = "actor_rollout_ref.actor.strategy", ("fsdp", "fsdp2")
STORAGE_KEY = "transfer_queue.backend.SimpleStorage.total_storage_size"


def check(config: DictConfig) -> DotsConfig:
    """Validate a composed verl configuration and set what must be set (see `normalise`).

    Returns:
        The parsed `dots` block with every size filled in.

    Raises:
        ValueError: a user's mistake, one line.
        RuntimeError: an unsupported verl or TransferQueue.
    """
    compat.check_versions()
    _check_numbers(config)
    _check_trainer(config)
    dots = parse(config)
    if dots.replay.enable or dots.selection.enable:
        _check_sampler(config)
    if dots.replay.enable:
        _check_advantages(config)
        _check_replay(config, dots)
    if dots.selection.enable:
        _check_selection(config, dots)
    normalise(config, dots)
    return dots


def doubts(config: DictConfig, dots: DotsConfig) -> list[str]:
    """What a checked configuration may do and seldom means to: one line each, with a remedy."""
    found = []
    if dots.replay.enable and config.algorithm.get("use_kl_in_reward"):
        found.append(
            "algorithm.use_kl_in_reward=True with dots.replay.enable=True: a group counts as informative by its rewards "
            "before the KL penalty, so that some that would teach are left out; use "
            "actor_rollout_ref.actor.use_kl_loss=True instead"
        )
    fraction, filters = dots.replay.fresh_fraction, "algorithm.filter_groups.enable"
    if dots.replay.enable and fraction > 1 and OmegaConf.select(config, filters, default=False):
        found.append(
            f"{filters}=True with dots.replay.fresh_fraction={fraction}: verl generates until {fraction} batches are "
            "informative; use one of the two"
        )
    return found


def parse(config: DictConfig) -> DotsConfig:
    """The `dots` block alone, sizes filled in from `data.train_batch_size`."""
    block = config.get("dots")
    plain = None if block is None else OmegaConf.to_container(block, resolve=True)
    size = config.data.get("train_batch_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ValueError(f"data.train_batch_size={size} is not allowed: use a whole number >= 1")
    return DotsConfig.from_mapping(plain).resolve(size)


def loss_mode(config: DictConfig) -> str:
    """verl's name of the policy loss."""
    return str(OmegaConf.select(config, LOSS_KEY, default="vanilla"))


def normalise(config: DictConfig, dots: DotsConfig) -> None:
    """Set, in place, what follows from the `dots` block: without replay our losses are verl's own `vanilla`."""
    if not dots.replay.enable and loss_mode(config) in (DECOUPLED, BEHAVIOUR):
        with open_dict(config):
            OmegaConf.update(config, LOSS_KEY, "vanilla")


def _check_numbers(config: DictConfig) -> None:
    """Numbers that are used here and that verl takes as they come."""
    rollouts = config.actor_rollout_ref.rollout.get("n")
    if not isinstance(rollouts, int) or isinstance(rollouts, bool) or rollouts < 1:
        raise ValueError(f"actor_rollout_ref.rollout.n={rollouts} is not allowed: use a whole number >= 1")
    key = "trainer.v1.sync.poll_interval"
    poll = OmegaConf.select(config, key, default=1.0)
    if not isinstance(poll, int | float) or isinstance(poll, bool) or not 0 < poll < math.inf:
        raise ValueError(f"{key}={poll} is not allowed: use seconds above 0")


def _check_trainer(config: DictConfig) -> None:
    mode, loss = OmegaConf.select(config, "trainer.v1.trainer_mode"), loss_mode(config)
    if config.trainer.get("use_v1") is not True:
        raise ValueError(f"trainer.use_v1={config.trainer.get('use_v1')}: verl-dots needs verl's V1 trainer, set it to True")
    if mode != TRAINER_MODE:
        wrong = f"{LOSS_KEY}={loss}" if loss in (DECOUPLED, BEHAVIOUR) else "the dots block"
        raise ValueError(f"trainer.v1.trainer_mode={mode} with {wrong}: set trainer.v1.trainer_mode=dots")
    if OmegaConf.select(config, "trainer.v1.dots") is not None:
        raise ValueError("trainer.v1.dots does not exist: trainer mode dots reads trainer.v1.sync, ours is the block dots")
    strategy = OmegaConf.select(config, STRATEGY_KEY, default=STRATEGIES[0])
    if strategy not in STRATEGIES:
        raise ValueError(
            f"{STRATEGY_KEY}={strategy}: verl-dots works with verl's FSDP workers, set it to {' or '.join(STRATEGIES)}"
        )
    updates = OmegaConf.select(config, "trainer.v1.sync.parameter_sync_step", default=1)
    if updates != 1:
        raise ValueError(
            f"trainer.v1.sync.parameter_sync_step={updates}: one batch is put together a step, "
            "set trainer.v1.sync.parameter_sync_step=1"
        )
    workers = config.data.get("dataloader_num_workers")
    if workers != 0:
        raise ValueError(
            f"data.dataloader_num_workers={workers}: a prefetched selection would be stale, "
            "set data.dataloader_num_workers=0"
        )


def _check_sampler(config: DictConfig) -> None:
    """A step trains on what it submitted; a sampler of one's own may keep prompts back for a later step."""
    custom = OmegaConf.select(config, SAMPLER_KEY) or {}
    if custom.get("path") and custom.get("name"):  # as verl asks, PPOTrainer._build_replay_buffer
        raise ValueError(
            f"{SAMPLER_KEY}.path={custom.get('path')}: it may hand out prompts in another step than the one that submitted "
            f"them, set {SAMPLER_KEY}.path=null"
        )


def _check_advantages(config: DictConfig) -> None:
    """The replay holds, and batches are filled with, groups whose rewards differ: others must have advantage 0.

    Not so where advantages are whitened over the batch (verl/trainer/ppo/core_algos.py, `masked_whiten`). That
    reinforce_plus_plus_baseline and gdpo do so too matters little: within a group they subtract its mean before.
    """
    estimator = str(config.algorithm.get("adv_estimator"))
    if estimator in ("gae", "reinforce_plus_plus"):
        raise ValueError(
            f"algorithm.adv_estimator={estimator} with dots.replay.enable=True: its advantages are not relative to the "
            "group, so that groups with equal rewards teach too; use grpo (or rloo, opo), or dots.replay.enable=False"
        )
    if OmegaConf.select(config, "distillation.enabled"):
        raise ValueError(
            "distillation.enabled=True with dots.replay.enable=True: from a teacher groups with equal rewards are learnt "
            "too, and its log-probs of replayed rows are not saved, set dots.replay.enable=False"
        )


def _check_replay(config: DictConfig, dots: DotsConfig) -> None:
    loss, rollouts = loss_mode(config), config.actor_rollout_ref.rollout.n
    if rollouts < 2:
        raise ValueError(
            f"actor_rollout_ref.rollout.n={rollouts} with dots.replay.enable=True: rewards of one rollout never differ, so "
            "that nothing enters the replay; use 2 or more"
        )
    if loss not in (DECOUPLED, BEHAVIOUR):
        raise ValueError(
            f"{LOSS_KEY}={loss} with dots.replay.enable=True: it does not correct for the policy that wrote the replayed "
            f"rollouts, set {LOSS_KEY}={DECOUPLED} (or {BEHAVIOUR}), or dots.replay.enable=False"
        )
    correction = config.algorithm.get("rollout_correction") or {}
    weights, bypass = correction.get("rollout_is"), bool(correction.get("bypass_mode"))
    _check_storage(config, dots)
    key = "algorithm.rollout_correction"
    if correction.get("rollout_rs"):
        raise ValueError(
            f"{key}.rollout_rs={correction.get('rollout_rs')}: it rewrites the masks of replayed rows, set it to null"
        )
    if dots.replay.behaviour == "trainer":
        if weights or bypass:
            raise ValueError(
                f"{key}.rollout_is={weights}, bypass_mode={bypass}: verl would overwrite our weights, set them to null and "
                "False, or correct for the rollout engine with dots.replay.behaviour=rollout"
            )
        return
    if not config.actor_rollout_ref.rollout.get("calculate_log_probs"):
        raise ValueError("dots.replay.behaviour=rollout needs actor_rollout_ref.rollout.calculate_log_probs=True")
    if loss == DECOUPLED and (weights != "token" or bypass):
        raise ValueError(
            f"dots.replay.behaviour=rollout with {DECOUPLED} uses verl's own weights: set {key}.rollout_is=token, "
            f"{key}.rollout_is_threshold to the largest weight, and {key}.bypass_mode=False"
        )
    if loss == BEHAVIOUR and not bypass:
        raise ValueError(f"dots.replay.behaviour=rollout with {BEHAVIOUR} needs {key}.bypass_mode=True")


def storage_limit(config: DictConfig) -> int | None:
    """Rows that TransferQueue holds at most; None where nothing limits them."""
    backend = OmegaConf.select(config, "transfer_queue.backend")
    if backend is None or backend.get("storage_backend", "SimpleStorage") != "SimpleStorage":
        return None
    return OmegaConf.select(config, STORAGE_KEY)


def groups_of_a_step(config: DictConfig, dots: DotsConfig) -> int:
    """Groups for which the store needs room beside those of the replay: a batch twice over, since groups differ in size."""
    rolled_out = dots.selection.enable and dots.reference.mode != "window"  # a window is labels, no rows
    size = int(config.data.train_batch_size)
    return 2 * max(size, nominal_fresh(size, dots.replay)) + (dots.reference.size if rolled_out else 0)


def _check_storage(config: DictConfig, dots: DotsConfig) -> None:
    """The replay's rows stay in TransferQueue, whose capacity verl sets; a full store fails in the middle of a run.

    An agent loop of several outputs writes as many rows a rollout; how many is known in the run only (DotsTrainer.step).
    """
    limit = storage_limit(config)
    held, step, rollouts = dots.replay.capacity, groups_of_a_step(config, dots), int(config.actor_rollout_ref.rollout.n)
    needed = (held + step) * rollouts
    if limit is not None and needed > limit:
        rolled_out = dots.selection.enable and dots.reference.mode != "window"
        lower = "dots.reference.size" if rolled_out else "data.train_batch_size"
        lower = "dots.replay.capacity" if step * rollouts < limit else lower
        raise ValueError(
            f"{STORAGE_KEY}={limit} rows, but a replay of {held} groups and a step of up to {step}, {rollouts} rollouts "
            f"each, need {needed}: raise it, or lower {lower}"
        )


def _check_selection(config: DictConfig, dots: DotsConfig) -> None:
    key = "reward_kwargs.overlong_buffer_cfg"  # under reward_model too, verl's older place
    overlong = OmegaConf.select(config, f"reward.{key}") or OmegaConf.select(config, f"reward_model.{key}")
    if overlong and overlong.get("enable") and dots.reward_range[0] >= 0:
        low, high = dots.reward_range
        lowest = low - float(overlong.get("penalty_factor") or 1.0)
        raise ValueError(
            f"reward.reward_kwargs.overlong_buffer_cfg.enable=True with dots.reward_range [{low}, {high}]: its penalty "
            f"makes rewards as low as {lowest:g}, set dots.reward_range=[{lowest:g},{high:g}]"
        )
    filter_groups = config.algorithm.get("filter_groups") or {}
    if filter_groups.get("enable"):
        raise ValueError(
            "algorithm.filter_groups.enable=True with dots.selection.enable=True: the groups that verl evicts take their "
            "labels with them and selection would see mixed groups only; use dots.replay.fill=informative instead"
        )
    reward_model = OmegaConf.select(config, "reward.reward_model")
    colocated = bool(reward_model and reward_model.enable and not reward_model.enable_resource_pool)
    if colocated and dots.reference.mode == "fresh":
        raise ValueError(
            "dots.reference.mode=fresh with a colocated reward model: its rewards exist only after the step's rollouts, "
            "use dots.reference.mode=window (or overlap), or reward.reward_model.enable_resource_pool=True"
        )
    if dots.predictor.embeddings is not None:
        EmbeddingTable.open(dots.predictor.embeddings)
    if dots.predictor.checkpoint is not None and not os.path.exists(dots.predictor.checkpoint):
        raise ValueError(f"dots.predictor.checkpoint={dots.predictor.checkpoint}: no such file")


class ConfigCheck(Callback):
    """Hydra callback that the overlay installs: a user's mistake ends the command with one line and exit code 2.

    Hydra logs and swallows an `Exception` raised in a callback, so this raises SystemExit, also where a check breaks.
    """

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Check `config` right before verl's main function gets it."""
        try:
            dots = check(config)
            found = doubts(config, dots)
        except (ValueError, RuntimeError, OSError) as error:
            print(f"verl-dots: {one_line(error)}", file=sys.stderr, flush=True)
            raise SystemExit(2) from None
        except Exception:
            traceback.print_exc()
            raise SystemExit(1) from None
        for doubt in found:
            print(f"verl-dots: warning: {doubt}", file=sys.stderr, flush=True)
