"""verl's configuration, composed as its command line would, and the sizes the doctor reads from it."""

from __future__ import annotations

import contextlib
import copy
import io
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from verl_dots.config import DotsConfig
from verl_dots.diagnosis.batch import BatchShape
from verl_dots.diagnosis.finding import Finding, fail, ok, warn
from verl_dots.diagnosis.resources import Needs, Pool
from verl_dots.files import one_line
from verl_dots.integration import check, check_data


def composed(overrides: Sequence[str], config_path: str | None = None, config_name: str = "ppo_trainer") -> DictConfig:
    """What `python -m verl.trainer.main_ppo [--config-path ...] [--config-name ...] OVERRIDES` hands to verl.

    Args:
        overrides: Hydra's, in the order of the command line.
        config_path: absolute, or relative to the folder of verl's main_ppo.py, as for `hydra.main`.
        config_name: without `.yaml`.

    Raises:
        ValueError: it does not compose, or an interpolation leads nowhere.
    """
    import verl.trainer

    folder = Path(verl.trainer.__file__).parent / (config_path or "config")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder.resolve()), version_base=None):
            config = compose(config_name, overrides=list(overrides))
        OmegaConf.to_container(config, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        if misspelt := re.search(r"Could not override 'dots\.([\w.]+)'", str(error)):
            block = OmegaConf.from_dotlist([f"{misspelt[1]}=null"])
            DotsConfig.from_mapping(OmegaConf.to_container(block))  # names the nearest key
        raise ValueError(f"the configuration does not compose: {one_line(error)}") from None
    return config


def uses_dots(config: DictConfig) -> bool:
    """Whether anything of verl-dots is named in the configuration."""
    return (
        config.get("dots") is not None
        or OmegaConf.select(config, "trainer.v1.trainer_mode") == check.TRAINER_MODE
        or check.loss_mode(config) in (check.DECOUPLED, check.BEHAVIOUR)
    )


def check_dots(config: DictConfig) -> tuple[list[Finding], DotsConfig | None]:
    """The `dots` block and what of verl's configuration it depends on; None where the block cannot be read."""
    topic = "configuration"
    if not uses_dots(config):
        mode = OmegaConf.select(config, "trainer.v1.trainer_mode")
        message = f"verl-dots is off: there is no dots block, and trainer.v1.trainer_mode={mode}"
        return [warn(topic, message, "to switch it on: 'hydra.searchpath=[pkg://verl_dots.configs]' +dots=default")], None
    try:
        dots = check.parse(config)
    except ValueError:
        dots = None  # which key it is follows from `_mistakes`
    wrong = [_mistake(topic, message) for message in _mistakes(config)]
    if wrong or dots is None:
        return wrong, dots
    parts = [name for name, on in (("DOTS", dots.selection.enable), ("RR", dots.replay.enable)) if on]
    loss = check.loss_mode(config) if dots.replay.enable else "vanilla"
    active = ok(topic, f"{' and '.join(parts) or 'neither DOTS nor RR'} active, loss {loss}")
    return [active, *(_mistake(topic, doubt, warn) for doubt in check.doubts(config, dots))], dots


def check_default_rewards(config: DictConfig, dots: DotsConfig, data_sources: Iterable[str]) -> list[Finding]:
    """Does verl's default reward function, where it is used, keep to `dots.reward_range`."""
    try:
        check_data.check_default_rewards(config, dots, data_sources)
    except ValueError as error:
        return [_mistake("questions", one_line(error))]
    return []


def _mistakes(config: DictConfig) -> list[str]:
    """All that `check.check` refuses, which itself stops at the first.

    It is asked again with one key after the other set right. Each of these settings can only take a mistake away.
    """
    behaviour = OmegaConf.select(config, "dots.replay.behaviour", default="trainer")
    keep_loss = behaviour != "trainer" or check.loss_mode(config) in (check.DECOUPLED, check.BEHAVIOUR)
    rollouts = OmegaConf.select(config, "actor_rollout_ref.rollout.n")
    set_right: list[tuple[str, Any]] = [
        ("actor_rollout_ref.rollout.n", rollouts if isinstance(rollouts, int) and rollouts > 0 else 8),
        ("trainer.v1.sync.poll_interval", 2.0),
        ("trainer.use_v1", True),
        ("trainer.v1.trainer_mode", check.TRAINER_MODE),
        ("trainer.v1.dots", None),
        (check.STRATEGY_KEY, check.STRATEGIES[0]),
        ("trainer.v1.sync.parameter_sync_step", 1),
        ("data.dataloader_num_workers", 0),
        (f"{check.SAMPLER_KEY}.path", None),
        (check.LOSS_KEY, check.loss_mode(config) if keep_loss else check.DECOUPLED),
        ("algorithm.adv_estimator", "grpo"),
        ("dots.replay.enable", False),
        ("reward.reward_kwargs.overlong_buffer_cfg", None),
        ("algorithm.filter_groups.enable", False),
        ("dots.reference.mode", "window"),
    ]
    trial, found = copy.deepcopy(config), {}
    for key, value in [(None, None), *set_right]:
        if key is not None:
            with open_dict(trial):
                OmegaConf.update(trial, key, value, force_add=True)
        try:
            check.check(copy.deepcopy(trial))
        except (ValueError, RuntimeError, OSError) as error:
            found[one_line(error)] = None
        else:
            break
    return list(found)


def _mistake(topic: str, message: str, level: Callable[..., Finding] = fail) -> Finding:
    """The message of a check as a finding: what stands behind the last comma or colon is the remedy."""
    for separator in (", set ", ": set ", "; use ", ": use ", ": run ", ": raise ", ": did you "):
        head, found, remedy = message.rpartition(separator)
        if found:
            return level(topic, head, separator[2:] + remedy)
    return level(topic, message, "correct this key")


_SIZES = (
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "actor_rollout_ref.actor.ppo_mini_batch_size",
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.total_epochs",
)
_SIZES_OR_NULL = (
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.rollout.data_parallel_size",
    "actor_rollout_ref.rollout.pipeline_model_parallel_size",
    "trainer.total_training_steps",
)


def check_sizes(config: DictConfig) -> list[Finding]:
    """What is multiplied and divided later is a whole number above 0; nothing is said where all are."""
    values = [(key, OmegaConf.select(config, key)) for key in (*_SIZES, *_SIZES_OR_NULL)]
    wrong = [
        f"{key}={value} is not allowed"
        for key, value in values
        if not (value is None and key in _SIZES_OR_NULL)
        and (not isinstance(value, int) or isinstance(value, bool) or value < 1)
    ]
    return [fail("configuration", message, "use a whole number >= 1") for message in wrong]


def check_verl(config: DictConfig) -> list[Finding]:
    """verl's own check of its configuration, which its main function runs before Ray starts."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            validate_config(copy.deepcopy(config), need_reference_policy(config), need_critic(config))
    except (ValueError, AssertionError, OmegaConfBaseException, HydraException, TypeError, ZeroDivisionError) as error:
        return [fail("verl's check", one_line(error), "correct this in verl's configuration")]
    return [ok("verl's check", "passed")]


def check_files(config: DictConfig, dots: DotsConfig | None) -> list[Finding]:
    """Files and folders that the configuration names exist; a model may also be a name on a hub."""
    topic, findings = "files", []
    keys = ("data.train_files", "data.val_files", "reward.custom_reward_function.path")
    named = [(key, path) for key in keys for path in paths(OmegaConf.select(config, key))]
    if dots is not None:  # embeddings have been opened
        named += [("dots.predictor.checkpoint", path) for path in paths(dots.predictor.checkpoint)]
    for key, path in named:
        if "://" not in path and not Path(path).expanduser().exists():
            findings.append(fail(topic, f"{key}={path}: no such file", "correct the path, or build it with data_prep/"))
    model = OmegaConf.select(config, "actor_rollout_ref.model.path")
    local = str(model).startswith((".", "/", "~")) or Path(str(model)).is_dir()
    if local and not Path(model).expanduser().exists():
        findings.append(fail(topic, f"actor_rollout_ref.model.path={model}: no such folder", "correct the path"))
    where = "the model's folder exists" if local else f"model {model} is a name on a hub"
    return findings or [ok(topic, f"every file that is named exists; {where}")]


def paths(value: Any) -> list[str]:
    """verl takes one path, or a list of them."""
    if value is None:
        return []
    return [value] if isinstance(value, str) else [str(path) for path in value]


def batch_shape(config: DictConfig) -> BatchShape:
    """The sizes of a batch (verl/workers/engine_workers.py, 0.9.1, says which of them are divided by which)."""
    actor, rollout, trainer = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.trainer
    ranks = int(trainer.n_gpus_per_node) * int(trainer.nnodes)
    shared = _ranks_of_one_replica(actor)
    engine = rollout.tensor_model_parallel_size * rollout.get("data_parallel_size", 1)
    # The behaviour form asks for log-probs of fresh rows only, in micro-batches that divide (integration/logprobs.py).
    replays = OmegaConf.select(config, "dots.replay.enable", default=True)
    any_size = rollout.log_prob_use_dynamic_bsz or (replays and check.loss_mode(config) == check.BEHAVIOUR)
    return BatchShape(
        questions=int(config.data.train_batch_size),
        rollouts=int(rollout.n),
        mini_batch=int(actor.ppo_mini_batch_size),
        ranks=ranks,
        data_parallel=max(1, ranks // shared),
        micro_batch=None if actor.use_dynamic_bsz else actor.get("ppo_micro_batch_size_per_gpu"),
        log_prob_micro_batch=None if any_size else rollout.get("log_prob_micro_batch_size_per_gpu"),
        engine_ranks=int(engine * rollout.get("pipeline_model_parallel_size", 1)),
        steps=trainer.get("total_training_steps"),
        epochs=int(trainer.total_epochs),
    )


def _ranks_of_one_replica(actor: DictConfig) -> int:
    """Ranks that share the rows of a batch: sequence parallel for FSDP, tensor x pipeline x context for Megatron."""
    if actor.strategy == "megatron":
        sizes = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        product = 1
        for size in sizes:
            product *= int(actor.megatron.get(size) or 1)
        return product
    return int(actor.get("ulysses_sequence_parallel_size") or 1)


def check_dynamic_batches(config: DictConfig) -> list[Finding]:
    """verl's worker asserts that update and log-probs agree on dynamic batch sizes, after everything has started."""
    actor = bool(config.actor_rollout_ref.actor.use_dynamic_bsz)
    rollout = bool(config.actor_rollout_ref.rollout.log_prob_use_dynamic_bsz)
    if actor == rollout:
        return []
    message = (
        f"actor_rollout_ref.actor.use_dynamic_bsz={actor} and rollout.log_prob_use_dynamic_bsz={rollout}: verl's worker "
        "stops"
    )
    return [fail("batch", message, f"set actor_rollout_ref.rollout.log_prob_use_dynamic_bsz={actor}")]


def needs(config: DictConfig) -> Needs:
    """What the run asks Ray for (verl/trainer/ppo/v1/trainer_base.py, `_init_resource_pool_mgr`)."""
    from verl.plugin.platform import get_platform
    from verl.single_controller.ray import ResourcePoolManager

    pools = [Pool("trainer", int(config.trainer.nnodes), int(config.trainer.n_gpus_per_node))]
    reward, teacher = OmegaConf.select(config, "reward.reward_model"), config.get("distillation")
    if reward and reward.get("enable_resource_pool"):
        pools.append(Pool("reward model", int(reward.nnodes), int(reward.n_gpus_per_node)))
    if teacher and teacher.get("enabled"):
        pools.append(Pool("teacher", int(teacher.nnodes), int(teacher.n_gpus_per_node)))
    storage = config.transfer_queue.backend
    units = int(storage.SimpleStorage.num_data_storage_units) if storage.storage_backend == "SimpleStorage" else 0
    name = get_platform().ray_resource_name()
    return Needs(tuple(pools), units, name, int(ResourcePoolManager.max_colocate_count))
