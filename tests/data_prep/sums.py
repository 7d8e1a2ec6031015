"""A user's own question file: the quickstart's questions as plain JSON lines, one in three without a level."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd

from tests.integration.runs import ROOT, TASK

COLUMNS = ("--question-column", "q", "--answer-column", "truth.digits", "--level-column", "steps")


def script(name: str, *arguments) -> str:
    """Run a script of data_prep/ as a command on one thread of the CPU; returns what it printed."""
    command = [sys.executable, str(ROOT / "data_prep" / f"{name}.py"), *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "VERL_PLATFORM": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def task() -> Path:
    """The quickstart's folder with its model, built unless it is there."""
    script("build_arithmetic", "--output", TASK, "--pool", "x")
    return Path(TASK)


def write_sums(path: Path, split: str, count: int) -> list[dict]:
    """The first `count` questions of a split of the quickstart, written to `path`; returns what was written."""
    frame = pd.read_parquet(task() / f"{split}.parquet").head(count)
    rows = []
    for number, (info, model) in enumerate(zip(frame["extra_info"], frame["reward_model"], strict=True)):
        level = {} if number % 3 == 0 else {"steps": int(info["grade"])}
        rows.append({"q": info["question"], "truth": {"digits": model["ground_truth"]}, **level})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows
