"""Identity of rows, embeddings and predictor on a data set that verl itself loaded (no Ray needed)."""

import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf

from tests.integration.compose import OVERLAY, composed
from tests.integration.runs import ROOT, TASK
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.types import question_id

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def task():
    command = [sys.executable, "data_prep/build_arithmetic.py", "--output", TASK, "--pool", "x"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "VERL_PLATFORM": "cpu"})
    return TASK


def pool_of(files, task, tmp_path, *overrides):
    """Our pool over verl's own data set of `files`."""
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils import hf_tokenizer

    from verl_dots.integration.check import check
    from verl_dots.integration.questions import Pool

    base = ["algorithm.adv_estimator=grpo", "data.train_batch_size=16", "data.max_prompt_length=16"]
    config = composed(*OVERLAY, *base, "actor_rollout_ref.rollout.n=8")
    config.merge_with(OmegaConf.from_dotlist(list(overrides)))
    dots = check(config)
    dataset = create_rl_dataset([str(files)], config.data, hf_tokenizer(f"{task}/model"), None, is_train=True)
    return Pool.build(dataset, config, dots, tmp_path / "questions")


def test_pool_is_the_distinct_questions_in_order(task, tmp_path):
    pool = pool_of(f"{task}/train.parquet", task, tmp_path)
    frame = pd.read_parquet(f"{task}/train.parquet")
    assert pool.sampler.pool == [info["question_id"] for info in frame.extra_info]
    assert pool.sampler.pool[0] == question_id(frame.extra_info[0]["question"])


def test_duplicates_share_an_identity_and_conflicting_answers_are_one_warning(task, tmp_path, caplog):
    frame = pd.read_parquet(f"{task}/train.parquet").head(20)
    twice = pd.concat([frame, frame.head(3)], ignore_index=True)
    twice.at[20, "reward_model"] = {**twice.at[20, "reward_model"], "ground_truth": "another"}
    twice.to_parquet(tmp_path / "twice.parquet")
    pool = pool_of(tmp_path / "twice.parquet", task, tmp_path)
    assert len(pool.sampler.pool) == 20
    warnings = [record.getMessage() for record in caplog.records if "ground truths" in record.getMessage()]
    assert len(warnings) == 1 and pool.sampler.pool[0] in warnings[0]


def test_embeddings_that_lack_questions_name_one_how_many_and_the_command(task, tmp_path):
    table = EmbeddingTable.open(f"{task}/embeddings.safetensors")
    pool = pool_of(f"{task}/train.parquet", task, tmp_path).sampler.pool
    few = pool[:-7]
    write_embeddings(tmp_path / "few.safetensors", few, np.asarray(table.rows(few)), model="test")
    with pytest.raises(ValueError) as caught:
        pool_of(f"{task}/train.parquet", task, tmp_path, f"dots.predictor.embeddings={tmp_path}/few.safetensors")
    message = str(caught.value)
    assert "\n" not in message
    assert pool[-7] in message and "7 of the 2048 questions" in message and "data_prep/embed_questions.py" in message


def test_with_all_embeddings_the_model_is_named_in_the_banner(task, tmp_path):
    pool = pool_of(f"{task}/train.parquet", task, tmp_path, f"dots.predictor.embeddings={task}/embeddings.safetensors")
    assert "dimensions of" in pool.predictor_name


def test_a_question_longer_than_a_prompt_may_be_is_left_out_by_verls_filter_before_ids_are_taken(task, tmp_path):
    frame = pd.read_parquet(f"{task}/train.parquet").head(20)
    text = "1+2" + "*3" * 18 + "="
    frame.at[3, "prompt"] = [{"role": "user", "content": text}]
    frame.at[3, "extra_info"] = {**frame.at[3, "extra_info"], "question": text, "question_id": question_id(text)}
    frame.to_parquet(tmp_path / "long.parquet")
    unfiltered = pool_of(tmp_path / "long.parquet", task, tmp_path).sampler.pool
    filtered = pool_of(tmp_path / "long.parquet", task, tmp_path, "data.filter_overlong_prompts=true").sampler.pool
    assert filtered == [question for question in unfiltered if question != question_id(text)]
    assert len(filtered) == 19
