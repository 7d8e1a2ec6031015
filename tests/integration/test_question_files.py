"""Files of data_prep/build_questions.py in a real training: every data set, and a user's own, through verl's data set class,
agent loop, TransferQueue and reward loop to `verl_dots.rewards`.

This file is also the reward function of that run: it hands on to `verl_dots.rewards` and writes down what it was given.
"""

import fcntl
import json
import os
from pathlib import Path

import pandas as pd
import pytest

from verl_dots.rewards import compute_score as real_reward

pytestmark = [pytest.mark.verl, pytest.mark.long]

LONGEST = 1024
RESPONSE = 14


def compute_score(data_source, solution_str, ground_truth, extra_info=None, **kwargs):
    """The reward, with a line of what it was asked and answered in $DOTS_REWARDS."""
    result = real_reward(data_source, solution_str, ground_truth, extra_info, **kwargs)
    info = {key: value for key, value in extra_info.items() if isinstance(value, str | int | float | None)}
    record = {"data_source": data_source, "text": solution_str, "truth": ground_truth, "info": info, "result": result}
    with open(os.environ["DOTS_REWARDS"], "a") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.write(json.dumps(record) + "\n")
    return result


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """By name: a question file per data set, from its sample, and two of sums, compared as characters and as numbers."""
    from tests.data_prep.conftest import SAMPLES  # with it, the scripts of data_prep/ can be imported
    from tests.data_prep.sums import COLUMNS, write_sums

    folder = tmp_path_factory.mktemp("questions")
    sources = {path.stem: (path.stem, path) for path in SAMPLES.iterdir() if path.stem not in ("own", "scp25k_answers")}
    options = {name: () for name in sources}
    for name, split, kind in (("sums", "train", "exact"), ("numbers", "val", "math")):
        write_sums(folder / f"{name}.jsonl", split, 32)
        sources[name] = ("jsonl", folder / f"{name}.jsonl")
        options[name] = (*COLUMNS, "--answer-kind", kind, "--system-prompt", "none")
    from build_questions import main

    for name, (data_set, source) in sources.items():
        output = folder / f"{name}.parquet"
        main([data_set, "--local-file", str(source), "--workers", "1", *options[name], "--output", str(output)])
    return {path.stem: path for path in sorted(folder.glob("*.parquet"))}


@pytest.fixture(scope="module")
def trained(files, tmp_path_factory):
    """Three steps on all files together, after a validation on all of them; the run, and what its rewards were asked."""
    from tests.data_prep.sums import task
    from tests.data_prep.tiny_models import arithmetic_model_that_reads_any_text
    from tests.integration.runs import ended_well, quickstart

    out = tmp_path_factory.mktemp("out")
    arithmetic_model_that_reads_any_text(task() / "model", out / "model", LONGEST + RESPONSE)
    paths = ",".join(str(path) for path in files.values())
    run = quickstart(
        out,
        f"data.train_files=[{paths}]",
        f"data.val_files=[{paths}]",
        f"data.max_prompt_length={LONGEST}",
        "data.val_max_samples=-1",
        "trainer.val_before_train=True",
        f"actor_rollout_ref.model.path={out / 'model'}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16",
        f"reward.custom_reward_function.path={Path(__file__)}",
        steps=3,
        TRAIN_BATCH="8",
        ROLLOUTS="4",
        DOTS_REWARDS=str(out / "rewards.jsonl"),
    )
    return ended_well(run), [json.loads(line) for line in (out / "rewards.jsonl").read_text().splitlines()]


def rows(files) -> pd.DataFrame:
    return pd.concat([pd.read_parquet(path) for path in files.values()], ignore_index=True)


def test_the_run_trains_on_them(files, trained):
    run, _ = trained
    assert [line["training/global_step"] for line in run.steps()] == [1, 2, 3]
    seen = run.observations()
    assert {each.question_id for each in seen} <= {info["question_id"] for info in rows(files)["extra_info"]}
    assert 0 < sum(each.successes for each in seen) < sum(each.trials for each in seen)


def test_every_row_reaches_the_reward_as_it_stands_in_its_file(files, trained):
    """Also where a field is null in some rows, and where two rows are the same question."""
    _, asked = trained
    given = {(each["data_source"], each["info"]["question_id"], each["truth"]): each for each in asked}
    frame = rows(files)
    for row in frame.itertuples():
        record = given[row.data_source, row.extra_info["question_id"], row.reward_model["ground_truth"]]
        assert {key: record["info"][key] for key in row.extra_info if key != "index"} == {
            key: value for key, value in row.extra_info.items() if key != "index"
        }
    for name in ("level", "subject", "success_rate", "source_id"):
        assert any(info[name] is None for info in frame["extra_info"]), name
        assert name == "success_rate" or any(info[name] is not None for info in frame["extra_info"]), name


def test_answers_are_compared_as_the_row_says(trained):
    _, asked = trained
    assert {each["info"]["answer_kind"] for each in asked} == {"math", "choice", "exact"}
    for name, value in (("sums", str), ("numbers", int)):
        answers = [each for each in asked if each["data_source"] == name and each["text"].isdecimal()]
        assert {each["result"]["score"] for each in answers} == {0.0, 1.0}
        assert all(each["result"]["score"] == float(value(each["text"]) == value(each["truth"])) for each in answers)


def test_each_data_set_has_its_own_validation_number(files, trained):
    run, asked = trained
    (line, *_) = [json.loads(text)["data"] for text in (run.out / "verl_metrics.jsonl").read_text().splitlines()]
    for name in files:
        (key,) = [key for key in line if key.startswith(f"val-core/{name}/acc/mean@")]
        assert 0 <= line[key] <= 1
    assert min(line[f"val-core/{name}/acc/mean@1"] for name in ("sums", "numbers")) > 0.2
