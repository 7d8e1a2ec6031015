"""A checkpoint taken up by a run that is not quite the same: other files, other rollouts a question, parts switched off."""

import shutil

import pandas as pd
import pytest

from tests.integration.runs import TASK, Run, ended_well, quickstart

pytestmark = [pytest.mark.verl, pytest.mark.long]


def resume(run: Run, out, *overrides: str, steps: int, **environment: str) -> Run:
    """Go on from the newest checkpoint of a copy of `run`."""
    shutil.copytree(run.checkpoints, out / "checkpoints")
    return ended_well(quickstart(out, *overrides, steps=steps, RESUME="auto", SAVE_FREQ="1", **environment))


@pytest.fixture(scope="module")
def changed_run(main_run, tmp_path_factory):
    """Two more steps: the file reversed, without a third of the questions, with new ones; 4 rollouts instead of 8."""
    out = tmp_path_factory.mktemp("changed")
    frame = pd.read_parquet(f"{TASK}/train.parquet")
    held = {group["question_id"] for group in main_run.state(8)["replay"]["groups"]}
    ids = pd.Series([info["question_id"] for info in frame["extra_info"]])
    lost = set(sorted(held)[::2])
    new = frame.head(40).copy()
    new["extra_info"] = [{**info, "question_id": f"{row:032x}"} for row, info in enumerate(new["extra_info"])]
    path = out / "changed.parquet"
    pd.concat([frame[~ids.isin(lost)][::-1], new]).to_parquet(path)
    return lost, resume(main_run, out, f"data.train_files={path}", steps=10, ROLLOUTS="4")


def test_what_cannot_be_trained_on_is_dropped_with_one_line_each(main_run, changed_run):
    lost, run = changed_run
    groups = main_run.state(8)["replay"]["groups"]
    gone = sum(group["question_id"] in lost for group in groups)
    assert f"dots: {gone} replayed groups of the checkpoint belong to questions that the data set no longer has" in run.log
    rest = f"dots: {len(groups) - gone} replayed groups of the checkpoint have another number of rollouts than"
    assert run.log.count(f"{rest} actor_rollout_ref.rollout.n=4: dropped") == 1
    assert f"dots: {len(lost)} questions of the checkpoint are not in the data set any more" in run.log


def test_the_changed_run_trains_on_the_questions_it_has(main_run, changed_run):
    lost, run = changed_run
    ours = [seen for seen in run.observations() if seen.step > 8]
    assert ours and not lost & {seen.question_id for seen in ours}
    assert {seen.trials for seen in ours} == {4}
    assert [seen for seen in run.observations() if seen.step <= 8] == main_run.observations()
    for step in (9, 10):
        assert len(run.probe(step)["keys"]) == 16 * 4
        store = run.probe(step, "store")
        assert store["lost"] == 0 and store["orphans"] == []


def test_resumed_twice_and_then_without_replay(main_run, tmp_path):
    """From step 8 to 9, from there to 10: as if it had not stopped at 9. Then replay off: nothing stays behind."""
    once = resume(main_run, tmp_path / "once", steps=9)
    twice = resume(once, tmp_path / "twice", steps=10)
    through = resume(main_run, tmp_path / "through", steps=10)
    ours, theirs = twice.probe(10), through.probe(10)
    assert list(ours["questions"].values()) == list(theirs["questions"].values())
    assert (ours["plan"], ours["pg_loss"]) == (theirs["plan"], theirs["pg_loss"])
    off = resume(through, tmp_path / "off", "dots.replay.enable=False", steps=11)
    assert off.probe(11, "store")["retained"] == 0 and off.probe(11, "store")["orphans"] == []
    assert off.probe(11)["replayed"] == []


def test_selection_switched_off_and_then_verls_own_trainer(main_run, tmp_path):
    """verl's loader takes up what our sampler's loader saved; replayed rows stay, whoever draws the fresh ones."""
    alone = resume(main_run, tmp_path / "rr", steps=9, method="rr")
    assert alone.probe(9)["replayed"] and alone.probe(9, "store")["orphans"] == []
    plain = resume(alone, tmp_path / "grpo", steps=10, method="grpo")
    assert "step:10" in plain.log


def test_rows_written_for_another_loss_are_not_trained_on(main_run, tmp_path):
    """Restored log-probs would be taken for those of the policy that wrote the rows."""
    other = "actor_rollout_ref.actor.policy_loss.loss_mode=dots_behaviour"
    run = resume(main_run, tmp_path, other, steps=9)
    held = len(main_run.state(8)["replay"]["groups"])
    assert f"dots: {held} replayed groups of the checkpoint were written under another loss_mode: dropped" in run.log
    assert run.probe(9)["replayed"] == [] and run.probe(9, "store")["orphans"] == []


def test_looking_at_a_checkpoint_leaves_the_logs_alone(main_run, tmp_path):
    """val_only loads an earlier checkpoint of the folder, and trains nothing."""
    shutil.copytree(main_run.checkpoints, tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "global_step_4"
    options = ["trainer.val_only=True", "trainer.val_before_train=True", "trainer.resume_mode=resume_path"]
    run = ended_well(quickstart(tmp_path, *options, f"trainer.resume_from_path={path}", steps=8))
    assert run.metrics() == main_run.metrics() and run.observations() == main_run.observations()


def test_fifty_steps_neither_lose_nor_leak_a_row(tmp_path):
    """A small replay with an age limit and reference groups that enter it: rows come and go by every way there is."""
    run = ended_well(
        quickstart(
            tmp_path,
            "dots.reference.mode=overlap",
            "dots.reference.size=8",
            "dots.reference.min_size=8",
            "dots.replay.capacity=24",
            "dots.replay.max_age=3",
            "dots.replay.newest_per_question=True",
            steps=50,
        )
    )
    evicted = {"replay/evicted_age": 0, "replay/evicted_capacity": 0}
    for step in range(1, 51):
        store = run.probe(step, "store")
        assert store["lost"] == 0 and store["orphans"] == []
        assert store["retained"] == 8 * run.steps()[step - 1]["replay/size"]
        for name in evicted:
            evicted[name] += run.steps()[step - 1][name]
    assert min(evicted.values()) > 0  # both ways out were taken
