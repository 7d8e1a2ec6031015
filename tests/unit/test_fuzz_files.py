"""Real files, damaged at random: every reader ends in its normal result or in one line that names the file.

Damage: a flipped byte, a cut, a hole, a doubled part, a swapped block, a byte set to an extreme. No reader may hang, fail in
another way, or ask for more memory than the file warrants. DOTS_FUZZ multiplies the number of damaged files.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.checkpoint import load_checkpoint, save_checkpoint
from verl_dots.difficulty.observations import ObservationLog, QuestionLog, read_observations
from verl_dots.difficulty.pass_rates import read_pass_rates
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.files import read_parquet
from verl_dots.integration import saved
from verl_dots.reporting.runs import read_runs
from verl_dots.runlog import MetricsLog, read_metrics
from verl_dots.types import Observation, question_id

ROUNDS = 150 * int(os.environ.get("DOTS_FUZZ", "1"))
SLOWEST_S = 20.0
MEMORY_BYTES = 200 << 20
"""Far above what a file of some kilobytes warrants, far below what a length field gone wrong would ask for."""
IDS = [question_id(str(i)) for i in range(40)]


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """One random damage. Half of them hit the first or last 256 bytes, where formats keep lengths and offsets."""
    if not data:
        return b"\x00"
    ends = rng.random() < 0.5
    where = int(rng.integers(min(256, len(data)))) if ends else int(rng.integers(len(data)))
    where = len(data) - 1 - where if ends and rng.random() < 0.5 else where
    size = int(rng.integers(1, 64))
    changed = bytearray(data)
    kind = rng.integers(6)
    if kind == 0:
        changed[where] ^= 1 << int(rng.integers(8))
    elif kind == 1:
        del changed[where:]
    elif kind == 2:
        del changed[where : where + size]
    elif kind == 3:
        changed[where:where] = changed[where : where + size]
    elif kind == 4:
        changed[where : where + size] = rng.bytes(size)
    else:
        changed[where] = int(rng.choice([0x00, 0x7F, 0x80, 0xFF, 0x39]))
    return bytes(changed)


def write_good(folder: Path) -> None:
    """One good file for every reader."""
    vectors = np.random.default_rng(0).normal(size=(40, 6))
    side = np.random.default_rng(1).random((40, 1)).astype(np.float32)
    write_embeddings(folder / "embeddings.safetensors", IDS, vectors, model="m", side=side, side_names=("level",))
    torch.manual_seed(0)
    settings = AttentionSettings(dim=6, width=8, side=("level",))
    save_checkpoint(folder / "predictor.safetensors", [AttentionModel(settings)], embedding_model="m")
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{i}+1"}],
            "reward_model": {"ground_truth": str(i + 1), "style": "rule"},
            "extra_info": {"question_id": IDS[i], "index": i},
        }
        for i in range(40)
    ]
    pd.DataFrame(rows).to_parquet(folder / "questions.parquet")
    labels = {"question_id": IDS, "policy": ["a", "b"] * 20, "successes": np.arange(40) % 9, "trials": 8}
    pd.DataFrame(labels).to_parquet(folder / "labels.parquet")
    log = ObservationLog()
    log.append(Observation(IDS[i], 1 + i // 4, "selected", i % 9, 8, None if i < 8 else i / 40) for i in range(40))
    log.to_parquet(folder / "observations.parquet")
    metrics = MetricsLog(folder / "metrics.jsonl")
    for step in range(12):
        metrics.append(step, {"dots/pearson": step / 12, "text": "x", "critic/score/mean": 0.5})
    write_checkpoint(folder / "dots", log)


def write_checkpoint(folder: Path, log: ObservationLog) -> None:
    """Our part of a checkpoint, as the trainer writes it."""
    folder.mkdir()
    jagged = torch.nested.as_nested_tensor([torch.arange(3), torch.arange(5)], layout=torch.jagged)
    columns = {"responses": jagged, "num_turns": np.array([2, 2])}
    saved.write_rows(folder / "rows-00000.safetensors", ["u1_0_0", "u1_1_0"], columns)
    log.to_parquet(folder / saved.OBSERVATIONS)
    generator = np.random.default_rng(1).bit_generator.state
    state = {"format": saved.FORMAT, "step": 3, "replay": {"groups": [], "generator": generator}}
    (folder / saved.STATE).write_text(json.dumps(state))
    saved.seal(folder)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    write_good(folder)
    return folder


def open_embeddings(folder: Path) -> None:
    table = EmbeddingTable.open(folder / "embeddings.safetensors")
    table.rows(IDS[:3])


def open_predictor(folder: Path) -> None:
    load_checkpoint(folder / "predictor.safetensors", EmbeddingTable.open(folder / "embeddings.safetensors"))


def open_questions(folder: Path) -> None:
    read_parquet(folder / "questions.parquet", ["prompt", "data_source", "reward_model", "extra_info"])


def open_labels(folder: Path) -> None:
    read_pass_rates([folder / "labels.parquet"])


def open_report(folder: Path) -> None:
    read_runs([str(folder / "metrics.jsonl")])


def open_observations(folder: Path) -> None:
    ObservationLog.from_parquet(folder / "observations.parquet")


def open_question_log(folder: Path) -> None:
    parts = folder / "parts"
    parts.mkdir(exist_ok=True)
    shutil.copy(folder / "observations.parquet", parts / "part-00000001.parquet")
    QuestionLog(parts).cut(after_step=3)


def open_metrics(folder: Path) -> None:
    read_metrics(folder / "metrics.jsonl")


def open_checkpoint(folder: Path) -> None:
    state = saved.read_state(folder / "dots")
    keys, fields = saved.read_rows(folder / "dots" / "rows-00000.safetensors")
    assert state["step"] == 3 and keys == ["u1_0_0", "u1_1_0"] and fields["responses"][1].tolist() == [0, 1, 2, 3, 4]
    assert len(read_observations(folder / "dots" / saved.OBSERVATIONS)) == 40


READERS: list[tuple[Callable[[Path], None], str]] = [
    (open_embeddings, "embeddings.safetensors"),
    (open_embeddings, "embeddings.json"),
    (open_predictor, "predictor.safetensors"),
    (open_predictor, "predictor.json"),
    (open_questions, "questions.parquet"),
    (open_labels, "labels.parquet"),
    (open_report, "metrics.jsonl"),
    (open_observations, "observations.parquet"),
    (open_question_log, "observations.parquet"),
    (open_metrics, "metrics.jsonl"),
    (open_checkpoint, "dots/state.json"),
    (open_checkpoint, "dots/files.json"),
    (open_checkpoint, "dots/rows-00000.safetensors"),
    (open_checkpoint, "dots/observations.parquet"),
]
SEALED = "dots/"
"""Files of a checkpoint: no damage at all may pass."""


@pytest.mark.parametrize(("read", "name"), READERS, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_a_damaged_file_is_read_or_named(good, tmp_path, read, name):
    rng = np.random.default_rng([len(name), READERS.index((read, name))])
    data = (good / name).read_bytes()
    refused = 0
    folder = tmp_path / "files"
    shutil.copytree(good, folder)
    for number in range(ROUNDS):
        bad = damaged(data, rng)
        (folder / name).write_bytes(bad)
        start = time.monotonic()
        tracemalloc.start()
        try:
            read(folder)
            unharmed = name == "dots/files.json" and json.loads(bad) == json.loads(data)  # a repeated line says it twice
            assert unharmed or bad == data or not name.startswith(SEALED), f"damage {number} was not noticed"
        except (ValueError, OSError) as error:
            refused += 1
            line = str(error)
            stem = "part-00000001" if read is open_question_log else Path(name).stem
            assert stem in line, f"damage {number}: {type(error).__name__}: {line}"
            assert "\n" not in line, f"damage {number}: {line}"
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert time.monotonic() - start < SLOWEST_S
        assert peak < MEMORY_BYTES, f"damage {number} asked for {peak:,} bytes"
    assert refused > ROUNDS // 20


@pytest.mark.parametrize(("read", "name"), READERS, ids=lambda value: value if isinstance(value, str) else value.__name__)
def test_a_missing_or_empty_file_is_named(good, tmp_path, read, name):
    for number, change in enumerate((os.remove, lambda path: path.write_bytes(b""))):
        folder = tmp_path / str(number)
        shutil.copytree(good, folder)
        change(folder / name)
        if read is open_metrics and number == 1:
            read(folder)  # a run that has not logged yet
            continue
        if read is open_question_log and number == 0:
            continue
        with pytest.raises((ValueError, OSError)) as caught:
            read(folder)
        stem = "part-00000001" if read is open_question_log else Path(name).stem
        assert stem in str(caught.value) and "\n" not in str(caught.value)


def test_good_files_are_read(good, tmp_path):
    for read in {read for read, _ in READERS}:
        shutil.copytree(good, tmp_path / read.__name__)
        read(tmp_path / read.__name__)


def test_resident_memory_stayed_small():
    """Beyond what Python's allocator sees: pyarrow and safetensors have their own."""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # kilobytes
