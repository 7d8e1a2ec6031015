"""Start verl on the CPU through the quickstart script, as a user would, and read what a run leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from verl_dots.difficulty.observations import read_observations
from verl_dots.runlog import read_metrics

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600
TASK = os.environ.get("DOTS_TEST_TASK", str(ROOT / "outputs" / "arithmetic_x"))

# 16 rollouts instead of 512 x 4 to validate, an answer-length step of half a second
SMALL = ["data.val_max_samples=32", "trainer.val_before_train=False"]


@dataclass
class Run:
    """A finished (or killed) run and its files."""

    out: Path
    returncode: int
    output: str

    @property
    def log(self) -> str:
        path = self.out / "train.log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def checkpoints(self) -> Path:
        return self.out / "checkpoints"

    def metrics(self) -> list[dict]:
        return read_metrics(self.checkpoints / "dots" / "metrics.jsonl")

    def steps(self) -> list[dict]:
        """Training steps only."""
        return [line for line in self.metrics() if "training/global_step" in line]

    def state(self, step: int) -> dict:
        return json.loads((self.checkpoints / f"global_step_{step}" / "dots" / "state.json").read_text())

    def observations(self) -> list:
        parts = sorted((self.checkpoints / "dots" / "questions").glob("part-*.parquet"))
        return [seen for part in parts for seen in read_observations(part)]

    def probe(self, step: int, kind: str = "step") -> dict:
        return json.loads((self.out / "probe" / f"{kind}-{step:04d}.json").read_text())


def quickstart(out: Path, *overrides: str, method: str = "dots_rr", steps: int = 4, **environment: str) -> Run:
    """Run recipes/quickstart_cpu.sh to its end."""
    process = start(out, *overrides, method=method, steps=steps, **environment)
    try:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        stop(process)
    return Run(out, process.returncode, output)


def ended_well(run: Run) -> Run:
    """The same run, which must have ended well."""
    assert run.returncode == 0, run.output + run.log[-3000:]
    return run


def variables(out: Path) -> dict[str, str]:
    """What every process of the run in `out` needs in its environment."""
    return {
        "VERL_USE_EXTERNAL_MODULES": "verl_dots.integration.plugin,tests.integration.probe",
        "DOTS_PROBE": str(out / "probe"),
        "PYTHONPATH": str(ROOT),
    }


def start(out: Path, *overrides: str, method: str = "dots_rr", steps: int = 4, **environment: str) -> subprocess.Popen:
    """Start it in a process group of its own."""
    settings = {"METHOD": method, "STEPS": str(steps), "OUT": str(out), "TASK_DIR": TASK, "TEST_FREQ": "-1", **environment}
    command = ["bash", str(ROOT / "recipes" / "quickstart_cpu.sh"), *SMALL, *overrides]
    return subprocess.Popen(
        command,
        env={**os.environ, **variables(out), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def stop(process: subprocess.Popen) -> None:
    """End a run and every process it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(path: Path, process: subprocess.Popen, timeout_s: float = TIMEOUT_S) -> None:
    """Wait until a running run has written `path`."""
    deadline = time.monotonic() + timeout_s
    while not path.exists():
        assert process.poll() is None, f"the run ended before it wrote {path.name}"
        assert time.monotonic() < deadline, f"{path.name} did not appear within {timeout_s} s"
        time.sleep(0.2)
