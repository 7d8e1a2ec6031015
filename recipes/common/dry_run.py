"""Print a recipe's composed configuration and check what can be checked without a GPU.

    DRY_RUN=1 bash recipes/run_qwen2_5_3b_deepmath_fsdp.sh [verl overrides]        # calls this
    GPU_MEMORY_GB=80 GPU_PEAK_TFLOPS=989 RESPONSE_LENGTH=1000                      # what the estimates assume

The configuration goes to stdout, findings and estimates to stderr; exit code 2 if something is wrong, with one line each.
Run from the repository's root: python -m recipes.common.dry_run OVERRIDES...
"""

from __future__ import annotations

import contextlib
import importlib.resources
import logging
import math
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from recipes.common import estimates
from verl_dots.config import DotsConfig
from verl_dots.integration import check, compat

PADDED = "verl pads the batch with copies of its first row that carry no loss"


def composed(overrides: Sequence[str]) -> DictConfig:
    """What `python -m verl.trainer.main_ppo OVERRIDES` hands to verl's main function.

    Raises:
        ValueError: an override that does not fit verl's configuration.
    """
    import verl.trainer

    folder = Path(str(importlib.resources.files(verl.trainer))) / "config"
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(folder), version_base=None):
            return compose("ppo_trainer", overrides=list(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(" ".join(str(error).split())) from None


def validate(config: DictConfig) -> DotsConfig | None:
    """verl's own validation and ours; returns our block, None where METHOD is verl's own.

    Raises:
        ValueError: either refuses the configuration.
        RuntimeError: an unsupported verl or TransferQueue.
    """
    compat.check_versions()
    dots = check.check(config) if config.trainer.v1.trainer_mode == check.TRAINER_MODE else None
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import validate_config

    try:
        with contextlib.redirect_stdout(sys.stderr):
            validate_config(config, need_reference_policy(config), need_critic(config))
    except AssertionError as error:
        raise ValueError(str(error)) from None
    return dots


def missing_files(config: DictConfig) -> Iterable[str]:
    """Files that the run would read and that are not there."""
    for key in ("train_files", "val_files"):
        value = config.data[key]
        for path in [value] if isinstance(value, str) else value:
            if not os.path.isfile(path):
                yield f"data.{key}: no file {path}"
    model = config.actor_rollout_ref.model.path
    if model.startswith(("/", "./", "../", "~")) and not os.path.isdir(os.path.expanduser(model)):
        yield f"actor_rollout_ref.model.path={model}: no such folder"
    reward = config.reward.custom_reward_function.path
    if reward and not reward.startswith("pkg://") and not os.path.isfile(reward):
        yield f"reward.custom_reward_function.path={reward}: no such file"


def batch_mistakes(config: DictConfig, dots: DotsConfig | None) -> Iterable[str]:
    """Sizes that do not divide, in prompts; a rollout is one row."""
    batch, mini = config.data.train_batch_size, config.actor_rollout_ref.actor.ppo_mini_batch_size
    rollouts, engine = config.actor_rollout_ref.rollout.n, config.actor_rollout_ref.rollout
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    parallel = engine.tensor_model_parallel_size
    if batch % mini:
        yield f"data.train_batch_size={batch} is no multiple of actor.ppo_mini_batch_size={mini}: {PADDED}"
    if mini * rollouts % ranks:
        yield f"actor.ppo_mini_batch_size={mini} x rollout.n={rollouts} rows do not divide among {ranks} GPUs"
    if ranks % parallel:
        yield f"rollout.tensor_model_parallel_size={parallel} does not divide {ranks} GPUs"
    if rollouts < 2:
        yield f"rollout.n={rollouts}: a group needs 2 rollouts or more"
    storage = config.transfer_queue.backend.SimpleStorage.total_storage_size
    rows = estimates.stored_rows(config, *_groups_held(dots))
    if rows > storage:
        yield (
            f"transfer_queue.backend.SimpleStorage.total_storage_size={storage} rows, and batch, replay and reference set "
            f"take {rows}: raise it, or lower dots.replay.capacity"
        )


def _groups_held(dots: DotsConfig | None) -> tuple[int, int]:
    """Groups in the replay and in the reference set."""
    if dots is None:
        return 0, 0
    extra = dots.selection.enable and dots.reference.mode != "window"
    return (dots.replay.capacity if dots.replay.enable else 0), (dots.reference.size if extra else 0)


def question_counts(config: DictConfig) -> Iterable[str]:
    """More questions in a batch than in the pool."""
    import pyarrow.parquet as parquet

    files = config.data.train_files
    files = [files] if isinstance(files, str) else files
    if all(os.path.isfile(path) for path in files):
        questions = sum(parquet.read_metadata(path).num_rows for path in files)
        if questions < config.data.train_batch_size:
            yield f"data.train_batch_size={config.data.train_batch_size}, and data.train_files hold {questions} questions"


def memory_mistakes(
    config: DictConfig, shape: estimates.ModelShape, memory: estimates.GpuMemory, gpu: float
) -> Iterable[str]:
    """What cannot fit one GPU of `gpu` bytes, or the model's positions."""
    length = config.data.max_prompt_length + config.data.max_response_length
    if length > shape.max_position_embeddings:
        yield f"prompt and response of {length} tokens, and the model has {shape.max_position_embeddings} positions"
    if memory.kv_sequences < 1:
        yield "the KV cache does not hold one full sequence: raise ROLLOUT_GPU_MEM_UTIL or ROLLOUT_TP"
    for phase, parts in (("rollouts", memory.rollout), ("the update", memory.update)):
        if sum(parts.values()) > gpu:
            yield (
                f"about {sum(parts.values()) / estimates.GB:.0f} GB during {phase} do not fit a GPU of "
                f"{gpu / estimates.GB:.0f} GB: OFFLOAD=True, a smaller PPO_MAX_TOKEN_LEN_PER_GPU or ROLLOUT_GPU_MEM_UTIL, "
                "or more GPUs"
            )


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={text} is not allowed: use a number above 0")
    return value


def _table(title: str, parts: dict[str, float]) -> str:
    listed = ", ".join(f"{name} {value / estimates.GB:.1f}" for name, value in parts.items())
    return f"  {title}: {sum(parts.values()) / estimates.GB:.1f} GB ({listed})"


def report(config: DictConfig, dots: DotsConfig | None) -> list[str]:
    """Print the estimates to stderr; returns the mistakes, one line each."""
    gpu = _number("GPU_MEMORY_GB", 80) * estimates.GB
    peak, length = _number("GPU_PEAK_TFLOPS", 989) * 1e12, _number("RESPONSE_LENGTH", 1000)
    shape = estimates.model_shape(config.actor_rollout_ref.model.path)
    memory = estimates.gpu_memory(config, shape, gpu)
    ranks, steps = config.trainer.nnodes * config.trainer.n_gpus_per_node, config.trainer.total_training_steps
    rows = estimates.stored_rows(config, *_groups_held(dots))
    rollouts = config.actor_rollout_ref.rollout.n
    full = config.data.max_prompt_length + config.data.max_response_length
    replayed = 0 if dots is None or not dots.replay.enable else round((1 - dots.replay.fresh_fraction) * 100)
    lines = [
        f"estimates for {ranks} GPUs of {gpu / estimates.GB:.0f} GB, {shape.parameters / 1e9:.2f} billion parameters:",
        _table("during rollouts", memory.rollout),
        _table("during the update", memory.update),
        f"  the KV cache of a GPU holds {memory.kv_sequences:.0f} sequences of {full} tokens",
        f"  row store: at most {rows} rows, {rows * full * estimates.BYTES_PER_STORED_TOKEN / estimates.GB:.1f} GB of host "
        "memory if all had full length",
        f"  a step: {config.data.train_batch_size} groups of {rollouts}, {replayed} % of them replayed",
    ]
    if steps:
        estimate = estimates.hours(config, shape, steps, length, peak)
        lines.append(
            f"  {steps} steps of plain GRPO: about {estimate:.1f} h by arithmetic, with {length:.0f} tokens a response and "
            f"{estimates.UTILISATION:.0%} of {peak / 1e12:.0f} TFLOPS; validation and start-up not counted"
        )
    print("\n".join(lines), file=sys.stderr)
    return [
        *batch_mistakes(config, dots),
        *memory_mistakes(config, shape, memory, gpu),
        *question_counts(config),
        *missing_files(config),
    ]


def main(overrides: Sequence[str]) -> int:
    warnings.simplefilter("ignore")  # verl's, about engines that are not installed and accelerators that are not here
    logging.disable(logging.WARNING)
    try:
        config = composed(overrides)
        dots = validate(config)
        print(OmegaConf.to_yaml(config, resolve=True))
        mistakes = report(config, dots)
    except (ValueError, RuntimeError) as error:
        mistakes = [" ".join(str(error).split())]
    for mistake in mistakes:
        print(f"dry run: error: {mistake}", file=sys.stderr)
    if not mistakes:
        print("dry run: everything checked is fine", file=sys.stderr)
    return 2 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
