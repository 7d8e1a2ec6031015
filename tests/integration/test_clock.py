"""A clock that goes back an hour in the middle of a run, and a newest checkpoint that is dated as the oldest.

clock.py says what is shifted. As on a real machine the monotonic clock goes on. Measured: tests/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.processes import end, wait_until
from tests.integration.runs import ROOT, Run, ended_well, quickstart, start, variables
from tests.integration.test_faults import BOUND_S, checkpointed, last_step

pytestmark = [pytest.mark.verl, pytest.mark.long]

HOUR_S = 3600
STEPS = 5


def older_than_the_first(out: Path, step: int) -> None:
    """Date all files of a checkpoint one hour before those of step 1, as if the clock had gone back in between."""
    folder = out / "checkpoints" / f"global_step_{step}"
    before = (out / "checkpoints" / "global_step_1").stat().st_mtime - HOUR_S
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (before, before))


def durations(line: dict) -> dict[str, float]:
    return {name: value for name, value in line.items() if "seconds" in name or name.startswith("timing_")}


def test_a_clock_that_goes_back_an_hour_changes_nothing(main_run, tmp_path):
    shifted = tmp_path / "clock"
    modules = f"{variables(tmp_path)['VERL_USE_EXTERNAL_MODULES']},tests.integration.clock"
    clock = {"VERL_USE_EXTERNAL_MODULES": modules, "DOTS_CLOCK": str(shifted)}
    process = start(tmp_path, steps=STEPS, SAVE_FREQ="1", **clock)
    try:
        wait_until(lambda: last_step(tmp_path) >= 2, process)
        shifted.touch()
        process.communicate(timeout=4 * BOUND_S)
    finally:
        end(process)
    run = ended_well(Run(tmp_path, process.returncode, ""))
    assert run.probe(STEPS)["wall_clock"] < run.probe(1)["wall_clock"] - HOUR_S / 2  # it did go back, in the trainer
    assert checkpointed(tmp_path) == STEPS

    older_than_the_first(tmp_path, STEPS)
    resumed = ended_well(quickstart(tmp_path, steps=STEPS + 1, SAVE_FREQ="1", RESUME="auto", **clock))
    assert [line["step"] for line in resumed.steps()] == list(range(1, STEPS + 2))
    for step in range(1, STEPS + 2):
        ours, theirs = resumed.probe(step), main_run.probe(step)
        assert list(ours["questions"].values()) == list(theirs["questions"].values())
        assert ours["pg_loss"] == pytest.approx(theirs["pg_loss"], abs=1e-6)
    for line in resumed.steps():
        assert durations(line) and all(0 <= value < HOUR_S / 2 for value in durations(line).values()), durations(line)

    print({name: value for line in resumed.steps()[2:4] for name, value in durations(line).items()})
    report = [sys.executable, "-m", "verl_dots.report", str(tmp_path), "--output", str(tmp_path / "report")]
    done = subprocess.run(report, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
