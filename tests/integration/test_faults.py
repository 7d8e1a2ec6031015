"""Faults in a run of verl's real trainer: each ends in recovery, or in one clear error with an exit code, in bounded time.

One run folder goes through a chain of faults and is resumed after each; at its end it must equal the run without any.
What was measured is in tests/README.md.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pandas as pd
import pytest

from tests.integration.processes import command_line, end, ended, send, wait_until
from tests.integration.runs import ROOT, TASK, Run, ended_well, quickstart, start
from tests.integration.test_training import rewards_by_group
from verl_dots.types import question_id

pytestmark = [pytest.mark.verl, pytest.mark.long]

BOUND_S = 150.0
"""From a fault to the end of the process; most of it is Ray taking its processes down."""
STEPS = 8
REWARD = f"reward.custom_reward_function.path={ROOT / 'tests' / 'integration' / 'faulty_reward.py'}"


def last_step(out: Path) -> int:
    found = [int(path.stem[-4:]) for path in (out / "probe").glob("store-*.json")]
    return max(found, default=0)


def errors(log: str) -> list[str]:
    """The last lines that look like errors, for a person who reads the test's output."""
    return [line[-300:] for line in log.splitlines() if "Error" in line and "acl" not in line][-3:]


def checkpointed(out: Path) -> int:
    path = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    return int(path.read_text()) if path.exists() else 0


def run_until(out: Path, fault, *overrides: str, resume: bool) -> tuple[int, float, Run]:
    """Start or resume the run in `out` and inflict `fault(process)` after its next whole step; how it ended, how fast."""
    for path in (out / "probe").glob("store-*.json"):
        path.unlink()
    process = start(out, *overrides, steps=STEPS, SAVE_FREQ="1", RESUME="auto" if resume else "disable")
    try:
        wait_until(lambda: last_step(out) > 0, process)
        victim = fault(process)
        step = last_step(out)
        code, seconds = ended(process, BOUND_S)
    finally:
        end(process)
    if "RolloutServer" in (command_line(victim) or ""):
        os.kill(victim, signal.SIGKILL)  # stopped, so that it did not notice that Ray is gone
    run = Run(out, code, "")
    print(f"fault after step {step}: code {code} after {seconds:.0f} s, checkpoint {checkpointed(out)}; {errors(run.log)}")
    return code, seconds, run


@pytest.fixture(scope="module")
def killed_while_saving(tmp_path_factory):
    """SIGKILL while our part of a checkpoint is being written; before that, a second run tries to share the folder."""
    out = tmp_path_factory.mktemp("chain")
    process = start(out, steps=STEPS, SAVE_FREQ="1")
    try:
        wait_until(lambda: last_step(out) >= 1, process)
        send(process.pid, "TaskRunner", signal.SIGSTOP)  # it holds the folder meanwhile
        folder = f"trainer.default_local_dir={out / 'checkpoints'}"
        second = quickstart(tmp_path_factory.mktemp("second"), folder, steps=1)
        send(process.pid, "TaskRunner", signal.SIGCONT)
        known = {path.name for path in out.glob("checkpoints/global_step_*")}
        half = lambda: [p for p in out.glob("checkpoints/global_step_*/.dots-*") if p.parent.name not in known]  # noqa: E731
        wait_until(half, process, every_s=0.0002)
    finally:
        end(process)
    print(f"killed while saving: left behind {[str(p.relative_to(out)) for p in half()]}, checkpoint {checkpointed(out)}")
    return out, second


@pytest.fixture(scope="module")
def rollout_server_killed(killed_while_saving):
    """Resumed; after one step the rollout server is killed."""
    out, _ = killed_while_saving
    return run_until(out, lambda process: send(process.pid, "RolloutServer", signal.SIGKILL), resume=True)


@pytest.fixture(scope="module")
def agent_worker_killed(rollout_server_killed):
    """Resumed; after one step the agent-loop worker is killed."""
    out = rollout_server_killed[2].out
    return run_until(out, lambda process: send(process.pid, "AgentLoopWorker", signal.SIGKILL), resume=True)


@pytest.fixture(scope="module")
def finished(agent_worker_killed):
    """Resumed a last time, to the end."""
    out = agent_worker_killed[2].out
    run = quickstart(out, steps=STEPS, SAVE_FREQ="1", RESUME="auto")
    ended_well(run)
    return run


def test_a_second_run_in_the_same_folder_is_refused(killed_while_saving):
    _, second = killed_while_saving
    assert second.returncode not in (0, None)
    assert "is in use by another run: give this one its own trainer.default_local_dir" in second.log


def test_a_kill_during_a_checkpoint_leaves_the_one_before(killed_while_saving):
    out, _ = killed_while_saving
    whole = [int(path.parent.name.rsplit("_", 1)[1]) for path in out.glob("checkpoints/global_step_*/dots")]
    assert checkpointed(out) in whole


def test_a_dead_rollout_server_ends_the_run_with_an_error(rollout_server_killed):
    code, _, run = rollout_server_killed
    assert code not in (0, None)
    assert "RolloutServer" in run.log and "died" in run.log


def test_a_dead_agent_loop_worker_ends_the_run_with_an_error(agent_worker_killed):
    code, _, run = agent_worker_killed
    assert code not in (0, None)
    assert "agent-loop worker has died" in run.log or "ActorDiedError" in run.log


def test_after_all_faults_the_run_equals_the_one_without(main_run, finished):
    for step in range(1, STEPS + 1):
        ours, theirs = main_run.probe(step), finished.probe(step)
        assert list(ours["questions"].values()) == list(theirs["questions"].values())
        assert sorted(rewards_by_group(ours).values()) == sorted(rewards_by_group(theirs).values())
        assert ours["pg_loss"] == pytest.approx(theirs["pg_loss"], abs=1e-6)
    assert main_run.state(STEPS)["sampler"] == finished.state(STEPS)["sampler"]
    assert [line["step"] for line in finished.steps()] == list(range(1, STEPS + 1))
    seen, expected = ([(s.step, s.question_id, s.successes) for s in run.observations()] for run in (finished, main_run))
    assert seen == expected
    assert not list(finished.out.glob("checkpoints/global_step_*/.dots-*"))


def test_a_failing_session_costs_its_group_and_a_reward_that_is_no_number_ends_the_run(tmp_path):
    run = quickstart(tmp_path, REWARD, steps=6, DOTS_FAULT="raises, a string, then NaN")
    print(errors(run.log))
    assert run.returncode not in (0, None)
    assert [line["dots/failed_groups"] for line in run.steps()] == [2]
    assert "this reward function fails for the third question" in run.log
    assert "TypeError" in run.log  # the string
    assert "a rollout has the reward nan: the reward function must return a finite number" in run.log


def test_rollouts_that_come_back_empty_cost_their_groups(tmp_path):
    loops = tmp_path / "loops.yaml"
    loops.write_text("- {name: empty_answers, _target_: tests.integration.faulty_agent_loop.EmptyAnswers}")
    agent = "actor_rollout_ref.rollout.agent"
    overrides = [f"{agent}.agent_loop_config_path={loops}", f"{agent}.default_agent_loop=empty_answers"]
    run = quickstart(tmp_path, *overrides, steps=3)
    ended_well(run)
    failed = [line["dots/failed_groups"] for line in run.steps()]
    print(f"failed groups {failed}; {errors(run.log)}")
    assert "Empty output for prompt" in run.log
    assert len(failed) == 3 and sum(failed) > 0
    texts = pd.read_parquet(Path(TASK) / "train.parquet").extra_info
    first = {info["question_id"]: info["question"][0] for info in texts}
    for step, count in enumerate(failed, start=1):
        assert count == sum(first[question] in "37" for question in run.probe(step)["questions"].values())


def questions_with_one_too_long(path: Path) -> None:
    """24 questions, the last of 40 characters where `data.max_prompt_length` allows 16."""
    frame = pd.read_parquet(Path(TASK) / "train.parquet").head(24)
    last, text = frame.index[-1], "1+2" + "*3" * 18 + "="
    frame.at[last, "prompt"] = [{"role": "user", "content": text}]
    frame.at[last, "extra_info"] = {**frame.at[last, "extra_info"], "question": text, "question_id": question_id(text)}
    frame.to_parquet(path)


def test_zeros_are_a_warning_a_long_question_is_cut_and_a_reward_that_hangs_ends_the_run(tmp_path):
    questions_with_one_too_long(tmp_path / "train.parquet")
    limits = [f"data.train_files={tmp_path}/train.parquet", "dots.stall_timeout_s=20"]
    began = time.monotonic()
    run = quickstart(tmp_path, REWARD, *limits, steps=6, DOTS_FAULT="only zeros, then hangs")
    print(f"{time.monotonic() - began:.0f} s in all; {errors(run.log)}")
    assert run.returncode not in (0, None)
    steps = run.steps()
    assert [line["step"] for line in steps] == [1, 2, 3]
    assert all(line["dots/observed_0"] == 1 and line["replay/size"] == 0 for line in steps)
    assert "every labelled question has success rate 0" in run.log and "check the reward function" in run.log
    assert "exceeds rollout.prompt_length=16; left-truncating" in run.log  # verl's own words; its default filters nothing
    assert "no rollout has finished for" in run.log and "prompts still run, first question" in run.log


@pytest.fixture
def small_disk(tmp_path):
    """`tmp_path/checkpoints` is a disk of 64 MB."""
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if done.returncode != 0:
        pytest.skip("only root may mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_disk_that_fills_up_ends_the_run_and_the_last_whole_checkpoint_serves(small_disk, tmp_path):
    def fill(process) -> int:
        with contextlib.suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as stream:
            while True:
                stream.write(bytes(4096))
        return process.pid

    code, _, run = run_until(tmp_path, fill, resume=False)
    assert code not in (0, None)
    assert "the disk is full" in run.log or "No space left on device" in run.log
    whole = checkpointed(tmp_path)
    assert whole >= 1
    (small_disk / "filler").unlink()
    resumed = quickstart(tmp_path, steps=whole + 2, SAVE_FREQ="1", RESUME="auto")
    ended_well(resumed)
    assert [line["step"] for line in resumed.steps()] == list(range(1, whole + 3))
    seen = [(observation.step, observation.question_id) for observation in resumed.observations()]
    assert len(set(seen)) == len(seen) and {step for step, _ in seen} == set(range(1, whole + 3))


def test_a_rollout_server_that_hangs_ends_the_run_in_bounded_time(tmp_path):
    hang = lambda process: send(process.pid, "RolloutServer", signal.SIGSTOP)  # noqa: E731
    code, _, run = run_until(tmp_path, hang, "dots.stall_timeout_s=20", resume=False)
    assert code not in (0, None)
    assert "no rollout has finished for" in run.log


def test_a_dead_store_ends_the_run_in_bounded_time(tmp_path):
    kill = lambda process: send(process.pid, "TransferQueueController", signal.SIGKILL)  # noqa: E731
    code, _, run = run_until(tmp_path, kill, resume=False)
    assert code not in (0, None)
    assert "TransferQueueController has died" in run.log and "resume from the last checkpoint" in run.log


def test_two_agent_loop_workers_give_the_same_run_to_the_bit(main_run, tmp_path):
    run = quickstart(tmp_path, "actor_rollout_ref.rollout.agent.num_workers=2", "reward.num_workers=2", steps=3)
    ended_well(run)
    for step in range(1, 4):
        ours, theirs = main_run.probe(step), run.probe(step)
        assert ours["rows"]["responses"] == theirs["rows"]["responses"]
        assert ours["rows"]["rm_scores"] == theirs["rows"]["rm_scores"]
        assert ours["rows"]["old_log_probs"] == theirs["rows"]["old_log_probs"]
        assert ours["pg_loss"] == theirs["pg_loss"]
