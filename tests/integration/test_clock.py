"""A clock that goes back an hour in the middle of a run, and a newest checkpoint that looks like the oldest.

libfaketime steps the clock of every process of the run: Python, Ray's C++ and ZMQ. As on a real machine the monotonic clock
goes on. Measured: tests/README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.processes import end, wait_until
from tests.integration.runs import ROOT, Run, ended_well, quickstart, start
from tests.integration.test_faults import BOUND_S, checkpointed, last_step

pytestmark = [pytest.mark.verl, pytest.mark.long]

HOUR_S = 3600.0
STEPS = 5


@pytest.fixture
def clock(tmp_path) -> dict[str, str]:
    """Environment of a run whose clock follows the offset in `tmp_path/clock`."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    if not found:
        pytest.skip("libfaketime is not installed: apt install faketime")
    (tmp_path / "clock").write_text("+0")
    return {
        "LD_PRELOAD": str(found[0]),
        "FAKETIME_TIMESTAMP_FILE": str(tmp_path / "clock"),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }


def older_than_the_first(out: Path, step: int) -> None:
    """Date all files of a checkpoint one hour before those of step 1, as if the clock had gone back in between."""
    folder = out / "checkpoints" / f"global_step_{step}"
    before = (out / "checkpoints" / "global_step_1").stat().st_mtime - HOUR_S
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (before, before))


def durations(line: dict) -> dict[str, float]:
    return {name: value for name, value in line.items() if "seconds" in name or name.startswith("timing_")}


def test_a_clock_that_goes_back_an_hour_changes_nothing(main_run, clock, tmp_path):
    process = start(tmp_path, steps=STEPS, SAVE_FREQ="1", **clock)
    try:
        wait_until(lambda: last_step(tmp_path) >= 2, process)
        (tmp_path / "clock").write_text("-1h")
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

    report = [sys.executable, "-m", "verl_dots.report", str(tmp_path), "--output", str(tmp_path / "report")]
    done = subprocess.run(report, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
