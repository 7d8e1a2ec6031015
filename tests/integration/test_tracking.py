"""Our metrics through verl's own Tracking: what arrives in its file logger, TensorBoard, wandb (offline) and MLflow."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_dots.reporting.runs import read_runs
from verl_dots.types import METRICS

pytestmark = pytest.mark.verl

LOG_METRICS = """
import sys, json, numpy as np
from verl.utils.tracking import Tracking
from verl_dots.types import METRICS

backends = sys.argv[1].split(",")
tracking = Tracking("project", "run", default_backend=backends, config={"trainer": {}})
for step in (1, 2, 3):
    numbers = {name: np.float64(step + place / 64) for place, name in enumerate(METRICS)}  # exact in float32
    tracking.log(data={**numbers, "val-core/sums/acc/mean@4": 0.5, "timing_s/step": 2.0}, step=step)
tracking.finish()
"""


def log_metrics(folder: Path, backends: str, **environment: str) -> None:
    command = [sys.executable, "-c", LOG_METRICS, backends]
    variables = {**os.environ, "VERL_PLATFORM": "cpu", "VERL_FILE_LOGGER_PATH": str(folder / "run.jsonl"), **environment}
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_metric_arrives_in_the_file_logger_and_in_tensorboard(tmp_path):
    log_metrics(tmp_path, "console,file,tensorboard")
    runs = read_runs([str(tmp_path / "run.jsonl"), str(tmp_path / "tensorboard_log" / "project" / "run")])
    for run in runs:
        for place, name in enumerate(METRICS):
            series = run.get(name)
            assert series.steps.tolist() == [1, 2, 3], name
            assert series.values.tolist() == [step + place / 64 for step in (1, 2, 3)], name
        assert run.get("val-core/sums/acc/mean@4").values.tolist() == [0.5] * 3


def test_every_metric_arrives_in_wandb(tmp_path):
    log_metrics(tmp_path, "wandb", WANDB_MODE="offline", WANDB_DIR=str(tmp_path), WANDB_SILENT="true")
    (path,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    rows = wandb_history(path)
    assert [row["_step"] for row in rows] == [1, 2, 3]
    for place, name in enumerate(METRICS):
        assert [row[name] for row in rows] == [step + place / 64 for step in (1, 2, 3)], name


def wandb_history(path: Path) -> list[dict]:
    """The history in the file that `wandb sync` would send."""
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in leveldb_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    return rows


def leveldb_records(data: bytes, block: int = 32_768, file_header: int = 7):
    """Records of LevelDB's log format: fragments of 4 bytes checksum, 2 length, 1 kind (whole, first, middle, last)."""
    place, parts = file_header, b""
    while place + 7 <= len(data):
        if block - place % block < 7:  # too little left of a block for a fragment's header
            place += block - place % block
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_mlflow_takes_our_names_as_they_are():
    from verl.utils.tracking import _MlflowLoggingAdapter

    adapter = _MlflowLoggingAdapter()
    assert [name for name in METRICS if adapter._sanitize_key(name) != name] == []
