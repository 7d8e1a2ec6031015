"""The run watcher: metrics become flat, the log goes to a file, the exit code is the command's."""

import json
import os
import subprocess
import sys

import pytest

from verl_dots.cpu.watch import MetricsFollower, errors, key_numbers, main, validation_accuracy
from verl_dots.runlog import read_metrics


def verl_line(step: int, **data) -> str:
    return json.dumps({"step": step, "data": data}) + "\n"


def test_follower_flattens_and_waits_for_whole_lines(tmp_path):
    source, target = tmp_path / "verl.jsonl", tmp_path / "metrics.jsonl"
    follower = MetricsFollower(source, target)
    assert list(follower.new_steps()) == []
    second = verl_line(2, **{"replay/size": 3})
    source.write_text(verl_line(1, **{"critic/score/mean": 0.5}) + second[:9])
    assert list(follower.new_steps()) == [{"step": 1, "critic/score/mean": 0.5}]
    assert list(follower.new_steps()) == []
    with source.open("a") as stream:
        stream.write(second[9:])
    assert list(follower.new_steps()) == [{"step": 2, "replay/size": 3}]
    assert read_metrics(target) == [{"step": 1, "critic/score/mean": 0.5}, {"step": 2, "replay/size": 3}]


@pytest.mark.parametrize(
    ("first", "kept"),
    [
        (verl_line(0, **{"val-core/a/acc/mean@1": 0.1}), []),  # a fresh run in an old folder
        (verl_line(1, **{"training/global_step": 1}), [0]),
        (verl_line(4, **{"val-core/a/acc/mean@1": 0.1}), [0, 1, 2, 3, 4]),  # restored to step 4
        (verl_line(5, **{"training/global_step": 5}), [0, 1, 2, 3, 4]),
    ],
)
def test_an_earlier_runs_lines_are_kept_up_to_where_this_one_starts(tmp_path, first, kept):
    target = tmp_path / "metrics.jsonl"
    target.write_text("".join(json.dumps({"step": step, "old": True}) + "\n" for step in range(8)))
    (tmp_path / "verl.jsonl").write_text(first + verl_line(9))
    assert len(list(MetricsFollower(tmp_path / "verl.jsonl", target).new_steps())) == 2
    rows = read_metrics(target)
    assert [row["step"] for row in rows if "old" in row] == kept
    began = json.loads(first)
    assert [row["step"] for row in rows] == [*sorted({*kept, began["step"]}), 9]  # each step once
    assert began["data"].items() <= rows[-2].items()


def test_key_numbers_and_accuracy():
    metrics = {
        "critic/score/mean": 0.41666,
        "timing_s/step": 3.21,
        "val-core/arithmetic/reward/mean@4": 0.5,
        "val-core/other/acc/mean@4": 0.7,
        "val-core/other/acc/best@4/mean": 0.9,
    }
    assert key_numbers(metrics) == "reward 0.417  s/step 3.2"
    assert validation_accuracy(metrics) == pytest.approx(0.6)
    assert validation_accuracy({"critic/score/mean": 0.4}) is None


def test_errors_are_found_once_without_rays_prefix(tmp_path):
    log = tmp_path / "train.log"
    log.write_text(
        "fine\n\x1b[36m(WorkerDict pid=12)\x1b[0m ValueError: bad\n"
        "Traceback\nray.exceptions.RayTaskError: x\nValueError: bad\n"
        "verl-dots: warning: doubtful\nverl-dots: dots.seed=-1 is not allowed\nverl-dots 0.1.0\n"
    )
    assert errors(log) == ["ray.exceptions.RayTaskError: x", "ValueError: bad", "verl-dots: dots.seed=-1 is not allowed"]


COMMAND = """
import os, sys
print("a noisy line")
with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as stream:
    for step in (0, 10):
        stream.write('{"step": %d, "data": {"val-core/a/reward/mean@1": 0.%d}}\\n' % (step, step + 1))
print("ValueError: told you", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""


def run_watch(tmp_path, code: int) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "verl_dots.cpu.watch", "--out", str(tmp_path), "--steps", "10", "--"]
    return subprocess.run(
        [*command, sys.executable, "-c", COMMAND, str(code)],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "VERL_FILE_LOGGER_PATH"},
    )


def test_a_good_run_is_quiet(tmp_path):
    done = run_watch(tmp_path, 0)
    assert done.returncode == 0 and done.stderr == ""
    assert "validation accuracy 0.100" in done.stdout and "noisy" not in done.stdout
    assert "a noisy line" in (tmp_path / "train.log").read_text()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [0, 10]


def test_a_failed_run_shows_its_error_and_keeps_its_exit_code(tmp_path):
    done = run_watch(tmp_path, 7)
    assert done.returncode == 7
    assert "ended with code 7" in done.stderr and "ValueError: told you" in done.stderr


def test_no_command():
    with pytest.raises(ValueError, match="no command given"):
        main(["--out", "x", "--steps", "1"])
