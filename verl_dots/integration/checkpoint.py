"""Our part of verl's checkpoint: `global_step_N/dots/`, written before verl marks the checkpoint complete.

    state.json            sampler, estimator, replay, generators, row tags
    rows-00000.safetensors ...   token columns of the replayed rows, some hundred rows a file so that memory stays bounded
    observations.parquet  every observation of the run
    files.json            their sizes and SHA-256

Nothing in it executes when it is loaded. It is written under another name and renamed, so a kill leaves it whole or absent;
whatever damages it later is noticed before anything of it is used (`verl_dots.integration.saved`).
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from omegaconf import DictConfig
from verl.utils import tensordict_utils as tu

from verl_dots.difficulty.observations import ObservationLog
from verl_dots.files import explain
from verl_dots.integration import rows, saved, store
from verl_dots.types import Group

if TYPE_CHECKING:
    from verl_dots.integration.trainer import DotsTrainer

logger = logging.getLogger(__name__)

SAVE_NOW = "save_now"
"""A file of this name in the run folder asks for a checkpoint at the end of the running step; it is removed then."""
ROWS_PER_FILE = 512


def run_folder(config: DictConfig) -> Path:
    """Where our logs of a run lie: `<trainer.default_local_dir>/dots`."""
    return Path(os.path.abspath(config.trainer.default_local_dir)) / "dots"


def step_folder(config: DictConfig, step: int) -> Path:
    """Our part of the checkpoint of `step`."""
    return run_folder(config).parent / f"global_step_{step}" / "dots"


def save(trainer: DotsTrainer) -> dict[str, float]:
    """Write our state of the running step; returns how long it took and how large the rows are.

    Raises:
        OSError: it cannot be written (full or read-only disk); nothing is left behind, earlier checkpoints are untouched.
    """
    start = time.monotonic()
    target = step_folder(trainer.config, trainer.global_steps)
    for left in target.parent.glob(".dots-*"):  # of a run that was killed while it saved
        shutil.rmtree(left)
    temporary = target.with_name(f".dots-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        size = _write(trainer, temporary)
        shutil.rmtree(target, ignore_errors=True)  # of a run that was resumed from an earlier step
        os.replace(temporary, target)
    except (OSError, pa.ArrowException) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(
            f"the checkpoint of step {trainer.global_steps} cannot be written to {str(target)!r} ({explain(error)}): "
            "make room and resume from the last whole one"
        ) from error
    _prune(trainer)
    return {"replay/save_seconds": time.monotonic() - start, "replay/save_bytes": float(size)}


def _write(trainer: DotsTrainer, folder: Path) -> int:
    """All files of a checkpoint into an empty folder; returns the bytes of the rows."""
    # Images and their positions are not token columns: with a multi-modal model a resumed run starts with an empty replay.
    groups = trainer.rollout_replay if trainer.processor is None else ()
    keys = [key for group in groups for key in group.keys]
    tags = store.row_tags() if keys else {}
    size = _write_rows(keys, folder)
    state: dict[str, Any] = {
        "format": saved.FORMAT,
        "step": trainer.global_steps,
        "replay": trainer.rollout_replay.state_dict(),
        "columns": _columns(trainer),
        "tags": {key: tags[key] for key in keys},
    }
    if trainer.pool is not None:
        state["sampler"] = trainer.pool.sampler.state_dict()
        state["estimator"] = trainer.pool.estimator.state_dict()
        difficulty = trainer.pool.difficulty
        state["difficulty"] = None if difficulty is None else difficulty.tolist()
        state["pool"] = trainer.pool.sampler.pool
        trainer.pool.estimator.log.to_parquet(folder / saved.OBSERVATIONS)
        trainer.pool.question_log.flush()
    (folder / saved.STATE).write_text(json.dumps(state), encoding="utf-8")
    saved.seal(folder)
    return size


def _columns(trainer: DotsTrainer) -> dict[str, Any]:
    """The settings that decide which columns a row has and whose log-probs they hold."""
    return {
        "loss_mode": trainer.form,
        "replay.behaviour": trainer.dots.replay.behaviour,
        "reference policy": bool(trainer.use_reference_policy),
        "rollout.calculate_log_probs": bool(trainer.config.actor_rollout_ref.rollout.calculate_log_probs),
    }


def _write_rows(keys: list[str], folder: Path) -> int:
    """Stream the rows' token columns to files of `ROWS_PER_FILE` rows; returns bytes written."""
    size = 0
    for number, first in enumerate(range(0, len(keys), ROWS_PER_FILE)):
        part = keys[first : first + ROWS_PER_FILE]
        data = store.read(part, [*rows.RESTORED_TENSORS, *rows.OPTIONAL_TENSORS, "num_turns", "reward_model", "data_source"])
        size += saved.write_rows(folder / f"rows-{number:05d}.safetensors", part, dict(data.items()))
    return size


def _prune(trainer: DotsTrainer) -> None:
    """Remove our part of checkpoints that verl has pruned; verl removes the actor's part only.

    And only of checkpoints that the same process wrote (verl/utils/checkpoint/checkpoint_manager.py): those of before a
    resume stay whole, ours too. One more is kept until verl has written its own.
    """
    config = trainer.config.trainer
    keep = 1 if config.get("remove_previous_ckpt_in_save") else config.get("max_actor_ckpt_to_keep")
    if not keep:
        return
    folders = run_folder(trainer.config).parent.glob("global_step_*/dots")
    steps = sorted(int(path.parent.name.rpartition("_")[2]) for path in folders)
    ours = [step for step in steps if step <= trainer.global_steps]  # later ones are of a run that was there before
    for folder in (step_folder(trainer.config, step) for step in ours[: -(keep + 1)]):
        if not folder.with_name("actor").exists():
            shutil.rmtree(folder)


def restore(trainer: DotsTrainer) -> None:
    """Continue from the checkpoint that verl has just loaded, or start our logs anew.

    Raises:
        ValueError: our part of the checkpoint is damaged, or was written by another format version.
    """
    step = trainer.global_steps
    folder = _loaded_folder(trainer) if step else None
    state = saved.read_state(folder) if folder is not None and folder.exists() else None  # refused before anything changes
    if not trainer.config.trainer.get("val_only"):  # which loads a checkpoint and trains nothing
        trainer.metrics_log.cut(after_step=step if step else -1)
        if trainer.pool is not None:
            trainer.pool.question_log.cut(after_step=step)
    if trainer.pool is not None:
        # Whatever verl restored into its dataloader is not ours: our sampler's state travels in our part.
        trainer.train_dataloader = trainer.pool.dataloader(trainer.train_dataset)
        trainer.train_dataloader_it = None
    if state is None:
        if folder is not None:
            logger.warning("dots: %s has no state of ours: selection and replay start empty at step %d", folder.parent, step)
        return
    if trainer.pool is not None and "sampler" in state:
        _restore_pool(trainer, state, folder)
    if trainer.dots.replay.enable:
        _restore_replay(trainer, state)
        _restore_rows(trainer, folder, state["tags"])


def _loaded_folder(trainer: DotsTrainer) -> Path:
    """verl resumes from the newest checkpoint, or from `resume_from_path`."""
    config = trainer.config.trainer
    if config.resume_mode == "resume_path":
        return Path(os.path.abspath(config.resume_from_path)) / "dots"
    return step_folder(trainer.config, trainer.global_steps)


def _restore_pool(trainer: DotsTrainer, state: dict[str, Any], folder: Path) -> None:
    pool = trainer.pool
    pool.estimator.log = ObservationLog.from_parquet(folder / saved.OBSERVATIONS)
    pool.estimator.load_state_dict(state["estimator"])
    pool.sampler.load_state_dict(state["sampler"])
    if pool.sampler.dropped:
        logger.warning(
            "dots: %d questions of the checkpoint are not in the data set any more (first %s): dropped",
            len(pool.sampler.dropped), pool.sampler.dropped[0],
        )  # fmt: skip
    if state["difficulty"] is not None:
        difficulty = dict(zip(state["pool"], state["difficulty"], strict=True))
        if difficulty.keys() >= set(pool.sampler.pool):  # a question new to the file has none until the next refresh
            pool.difficulty = np.array([difficulty[question] for question in pool.sampler.pool])


def _restore_replay(trainer: DotsTrainer, state: dict[str, Any]) -> None:
    """Take over the groups that can still be trained on, and say how many cannot and why."""
    sessions = trainer.config.actor_rollout_ref.rollout.n
    columns, ours = state.get("columns"), _columns(trainer)
    changed = [name for name, value in ours.items() if not columns or columns.get(name) != value]
    known = None if trainer.pool is None else set(trainer.pool.sampler.pool)

    def hindrance(group: Group) -> str | None:
        if changed:
            return f"were written under another {' and '.join(changed)}"
        if not set(group.keys) <= state["tags"].keys():
            return "are of a multi-modal model, whose rows are not saved"
        if known is not None and group.question_id not in known:
            return "belong to questions that the data set no longer has"
        if len(group.rewards) != sessions:
            return f"have another number of rollouts than actor_rollout_ref.rollout.n={sessions}"
        return None

    gone = trainer.rollout_replay.load_state_dict(state["replay"], keep=lambda group: hindrance(group) is None)
    for why, count in Counter(hindrance(group) or "exceed dots.replay.capacity" for group in gone).items():
        logger.warning("dots: %d replayed groups of the checkpoint %s: dropped", count, why)


def _restore_rows(trainer: DotsTrainer, folder: Path, tags: dict[str, dict]) -> None:
    """Put the rows of the replayed groups back into the store under their old keys."""
    wanted = {key for group in trainer.rollout_replay for key in group.keys}
    for path in sorted(folder.glob("rows-*.safetensors")):
        keys, fields = saved.read_rows(path)
        chosen = [i for i, key in enumerate(keys) if key in wanted]
        if not chosen:
            continue
        part = {name: [values[i] for i in chosen] for name, values in fields.items()}
        columns: dict[str, Any] = {}
        for name, values in part.items():
            tensor = isinstance(values[0], torch.Tensor)
            columns[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged) if tensor else values
        chosen_keys = [keys[i] for i in chosen]
        columns["uid"] = [rows.uid_of(key) for key in chosen_keys]
        columns["multi_modal_inputs"] = [{} for _ in chosen_keys]
        store.write(chosen_keys, tu.get_tensordict(columns), [tags[key] for key in chosen_keys])
