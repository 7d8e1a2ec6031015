"""How the bad-input table runs a case: a configuration through the check before Ray starts, or a command of ours."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from omegaconf import OmegaConf

from verl_dots.embeddings import write_embeddings
from verl_dots.files import run_cli
from verl_dots.types import question_id

ROOT = Path(__file__).resolve().parents[3]
QUESTIONS = [f"What is {i} + {i}?" for i in range(8)]
IDS = [question_id(text) for text in QUESTIONS]
EMBEDDINGS = "dots.predictor.embeddings"
OUT = ("--output", "out.parquet")

VERL_KEYS = """
trainer: {use_v1: true, v1: {trainer_mode: dots, sync: {}}, default_local_dir: checkpoints}
data: {train_batch_size: 16, dataloader_num_workers: 0}
actor_rollout_ref:
  actor: {policy_loss: {loss_mode: dots_decoupled}}
  rollout: {n: 8, calculate_log_probs: false}
algorithm:
  rollout_correction: {rollout_is: null, rollout_rs: null, bypass_mode: false}
  filter_groups: {enable: false}
reward: {reward_model: {enable: false, enable_resource_pool: false}}
transfer_queue: {backend: {SimpleStorage: {total_storage_size: 100000}}}
dots: {}
"""
"""The keys of verl's configuration that the check reads (tests/integration/test_config.py composes the whole)."""


@dataclass(frozen=True)
class Case:
    """One mistake.

    Attributes:
        name: for the test's id.
        run: runs it in an empty folder that is the working directory, with the good files of `good_files` in it.
        says: texts that the one line on stderr must contain: the thing, the value, the remedy.
        prepare: damages a good file first.
    """

    name: str
    run: Callable[[], None]
    says: tuple[str, ...]
    prepare: Callable[[], None] | None = None


def good_files() -> None:
    """A question file, labels and embeddings in the working directory."""
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": text}],
            "reward_model": {"style": "rule", "ground_truth": str(2 * i)},
            "extra_info": {"question_id": IDS[i], "question": text},
        }
        for i, text in enumerate(QUESTIONS)
    ]
    pd.DataFrame(rows).to_parquet("questions.parquet")
    labels = {"question_id": IDS, "policy": "m", "successes": np.arange(8.0), "trials": 8}
    pd.DataFrame(labels).to_parquet("labels.parquet")
    vectors = np.random.default_rng(0).normal(size=(8, 4))
    write_embeddings("embeddings.safetensors", IDS, vectors, model="m")
    Path("own.jsonl").write_text('{"q": "1+1?", "a": "2"}\n{"q": "1+2?", "a": "3"}\n')
    Path("taken").mkdir()


def cut(path: str, size: int) -> Callable[[], None]:
    """Keeps the first `size` bytes of a file."""
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:size])


def config(*overrides: str, **values) -> Callable[[], None]:
    """verl's command with the overlay and these overrides, up to the check before Ray starts."""

    def run() -> None:
        from verl_dots.integration.check import ConfigCheck

        block = OmegaConf.create(VERL_KEYS)
        block.merge_with(OmegaConf.from_dotlist(list(overrides)))
        for key, value in values.items():
            OmegaConf.update(block, key.replace("__", "."), value, merge=False)
        ConfigCheck().on_job_start(block)

    return run


def tool(module: str, *arguments: str) -> Callable[[], None]:
    """A command of data_prep/ or `python -m` of ours, in this process."""

    def run() -> None:
        if str(ROOT / "data_prep") not in sys.path:
            sys.path.insert(0, str(ROOT / "data_prep"))
        run_cli(importlib.import_module(module).main, list(arguments))

    return run


def script(path: str, *arguments: str, **environment: str) -> Callable[[], None]:
    """A shell recipe, in a process of its own."""

    def run() -> None:
        command = ["bash", str(ROOT / path), *arguments]
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=120)
        print(done.stderr, end="", file=sys.stderr)
        raise SystemExit(done.returncode)

    return run


def contents(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below `folder`, with its bytes."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}
