"""metrics.jsonl survives kills and resumes; a folder belongs to one run."""

import errno
import fcntl
import json
import subprocess
import sys

import numpy as np
import pytest

from verl_dots.runlog import FolderLock, MetricsLog, read_metrics


def test_lines_are_flat_and_hold_plain_numbers(tmp_path):
    log = MetricsLog(tmp_path / "dots" / "metrics.jsonl")
    log.append(3, {"a/b": np.float32(0.5), "count": np.int64(7), "missing": float("nan"), "text": "x", "odd": object()})
    assert read_metrics(log.path) == [{"step": 3, "a/b": 0.5, "count": 7, "missing": None, "text": "x", "odd": None}]


def test_cut_drops_later_steps_and_an_unfinished_line(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in range(5):
        log.append(step, {"x": step})
    with log.path.open("a") as stream:
        stream.write('{"step": 5, "x"')
    log.cut(after_step=2)
    log.append(3, {"x": "again"})
    assert [line["step"] for line in read_metrics(log.path)] == [0, 1, 2, 3]
    log.cut(after_step=-1)  # a run that starts anew in the same folder
    assert log.path.read_text() == ""
    log.append(0, {"x": "anew"})
    assert [line["step"] for line in read_metrics(log.path)] == [0]


def test_a_resumed_run_that_validates_first_leaves_one_line_per_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    before = MetricsLog(path)
    for step in (0, 1, 2, 3):
        before.append(step, {"loss": step, "val": 0.1 * step})
    resumed = MetricsLog(path)
    resumed.cut(after_step=2)
    resumed.append(2, {"val": 0.5})
    resumed.append(3, {"loss": 30})
    assert read_metrics(path) == [
        {"step": 0, "loss": 0, "val": 0.0},
        {"step": 1, "loss": 1, "val": 0.1},
        {"step": 2, "loss": 2, "val": 0.5},
        {"step": 3, "loss": 30},
    ]


def test_damage_inside_the_file_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\nnonsense\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 2: not JSON"):
        read_metrics(path)
    path.write_text(json.dumps([1]) + "\n" + json.dumps({"step": 2}) + "\n")
    with pytest.raises(ValueError, match=r"line 1: no object"):
        read_metrics(path)


def test_a_second_run_is_refused_until_the_first_ends(tmp_path):
    program = f"""
import sys
from verl_dots.runlog import FolderLock
lock = FolderLock({str(tmp_path)!r})
print("held", flush=True)
sys.stdin.read()
"""
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(ValueError, match="in use by another run"):
        FolderLock(tmp_path)
    holder.kill()
    holder.wait()
    FolderLock(tmp_path).release()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_warning(number, tmp_path, monkeypatch, caplog):
    def flock(stream, operation):
        raise OSError(number, "what such a file system says")

    monkeypatch.setattr(fcntl, "flock", flock)
    FolderLock(tmp_path).release()
    (record,) = caplog.records
    assert str(tmp_path) in record.getMessage() and "what such a file system says" in record.getMessage()


def test_any_other_failure_to_lock_is_raised(tmp_path, monkeypatch):
    def flock(stream, operation):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="broken"):
        FolderLock(tmp_path)
