"""The verl versions we support and the symbols we build on, checked once; a missing one is named instead of failing later.

verl swallows an error while it loads a plugin, and the run then ends in "Unknown trainer 'dots'". So the check runs again
wherever a person can see its answer: in the configuration check before Ray starts, in the trainer, and in doctor.
"""

from __future__ import annotations

import functools
import importlib
from importlib import metadata

from packaging.specifiers import SpecifierSet

SUPPORTED_VERL = SpecifierSet(">=0.9.1,<0.10")
SUPPORTED_TRANSFER_QUEUE = SpecifierSet(">=0.1.9,<0.2")

REQUIRED_SYMBOLS = (
    ("verl.trainer.ppo.v1.trainer_base", "register_trainer"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer.prepare_step"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._step_once"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._balance_batch"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._compute_old_log_prob"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._compute_ref_log_prob"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._compute_advantage"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._compute_metrics"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._submit_batch_to_rollout"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._fetch_one_gen_batch"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._add_prompts_to_generate"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._build_replay_buffer"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._init_dataloader"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._init_resource_pool_mgr"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._save_checkpoint"),
    ("verl.trainer.ppo.v1.trainer_base", "PPOTrainer._load_checkpoint"),
    ("verl.trainer.ppo.v1.trainer_sync", "PPOTrainerSync"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer.sample"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._wait_for_next_poll"),
    ("verl.trainer.ppo.v1.replay_buffer", "ReplayBuffer._clear_groups"),
    ("verl.trainer.ppo.padding_utils", "upsample_batch_to_divisible_size"),
    ("verl.trainer.ppo.rollout_corr_helper", "compute_rollout_correction_and_add_to_batch"),
    ("verl.utils.debug.metrics", "calculate_debug_metrics"),
    ("verl.trainer.ppo.core_algos", "register_policy_loss"),
    ("verl.trainer.ppo.core_algos", "agg_loss"),
    ("verl.workers.engine_workers", "ActorRolloutRefWorker"),
    ("verl.single_controller.base.decorator", "make_nd_compute_dataproto_dispatch_fn"),
    ("verl.utils.tensordict_utils", "get_tensordict"),
    ("transfer_queue", "KVBatchMeta.select_keys"),
    ("transfer_queue", "kv_batch_put"),
    ("transfer_queue", "kv_batch_get"),
    ("transfer_queue", "kv_clear"),
    ("transfer_queue", "kv_list"),
)


def check_versions() -> None:
    """Compare the installed versions with what we support; imports nothing of verl.

    Raises:
        RuntimeError: verl or TransferQueue is missing or outside the supported range.
    """
    for name, supported in (("verl", SUPPORTED_VERL), ("TransferQueue", SUPPORTED_TRANSFER_QUEUE)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            raise RuntimeError(f"{name} is not installed: pip install '{name}{supported}'") from None
        if not supported.contains(version, prereleases=True):
            raise RuntimeError(f"{name} {version} is not supported: verl-dots works with {name} {supported}")


@functools.cache
def check_symbols() -> None:
    """Look up every symbol of verl and TransferQueue that this package builds on.

    Raises:
        RuntimeError: one is missing; the message names it and the versions that have it.
    """
    for module_name, path in REQUIRED_SYMBOLS:
        owner = importlib.import_module(module_name)
        for part in path.split("."):
            if not hasattr(owner, part):
                raise RuntimeError(
                    f"{module_name}.{path} does not exist in the installed verl {metadata.version('verl')}: "
                    f"verl-dots works with verl {SUPPORTED_VERL} and TransferQueue {SUPPORTED_TRANSFER_QUEUE}"
                )
            owner = getattr(owner, part)
