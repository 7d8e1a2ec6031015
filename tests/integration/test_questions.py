"""Identity of rows, embeddings and predictor on a data set that verl itself loaded (no Ray needed)."""

import io
import os
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from PIL import Image

from tests.integration.compose import OVERLAY, composed
from tests.integration.runs import ROOT, TASK
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.types import Group, question_id

pytestmark = pytest.mark.verl


@pytest.fixture(scope="module")
def task():
    command = [sys.executable, "data_prep/build_arithmetic.py", "--output", TASK, "--pool", "x"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, env={**os.environ, "VERL_PLATFORM": "cpu"})
    return TASK


def pool_of(files, task, tmp_path, *overrides):
    """Our pool over verl's own data set of `files`."""
    from verl_dots.integration.questions import Pool

    dataset, config, dots = loaded(files, task, *overrides)
    return Pool.build(dataset, config, dots, tmp_path / "questions")


def loaded(files, task, *overrides):
    """verl's own data set of `files`, the configuration, and the `dots` block."""
    from verl.trainer.ppo.utils import create_rl_dataset
    from verl.utils import hf_tokenizer

    from verl_dots.integration.check import check

    base = ["algorithm.adv_estimator=grpo", "data.train_batch_size=16", "data.max_prompt_length=16"]
    config = composed(*OVERLAY, *base, "actor_rollout_ref.rollout.n=8")
    config.merge_with(OmegaConf.from_dotlist(list(overrides)))
    dots = check(config)
    dataset = create_rl_dataset([str(files)], config.data, hf_tokenizer(f"{task}/model"), None, is_train=True)
    return dataset, config, dots


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


def test_the_banner_counts_rows_where_they_are_not_the_questions(task, tmp_path):
    from verl_dots.integration.questions import banner
    from verl_dots.replay import RolloutReplay

    frame = pd.read_parquet(f"{task}/train.parquet").head(20)
    for rows, says in ((frame, "active: 20 questions,"), (pd.concat([frame, frame.head(3)]), "23 rows, 20 questions,")):
        rows.to_parquet(tmp_path / "rows.parquet", index=False)
        pool = pool_of(tmp_path / "rows.parquet", task, tmp_path)
        assert says in banner(pool.config, "dots_decoupled", pool, RolloutReplay.from_config(pool.config))


@pytest.mark.parametrize(
    ("loss", "block", "says"),
    [
        ("dots_decoupled", {}, "loss dots_decoupled, weights cut at 2.0"),
        ("dots_decoupled", {"max_weight": None}, "loss dots_decoupled, weights not cut"),
        ("dots_decoupled", {"behaviour": "rollout"}, "loss dots_decoupled, weights of algorithm.rollout_correction"),
        ("dots_behaviour", {}, "loss dots_behaviour"),  # which has no weights
    ],
)
def test_the_banner_says_what_bounds_the_weights_of_replayed_tokens(loss, block, says):
    from verl_dots.config import DotsConfig
    from verl_dots.integration.questions import banner
    from verl_dots.replay import RolloutReplay

    dots = DotsConfig.from_mapping({"replay": block}).resolve(16)
    assert banner(dots, loss, None, RolloutReplay.from_config(dots)).rstrip().endswith(says)


def test_verls_loader_goes_on_from_our_state_and_ours_from_verls(task, tmp_path):
    """Selection switched off or on at a resume: `data.pt` was written by the other loader."""
    from torch.utils.data import RandomSampler
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.utils.dataset.rl_dataset import collate_fn

    from verl_dots.integration.questions import Pool

    dataset, config, dots = loaded(f"{task}/train.parquet", task)
    pool = Pool.build(dataset, config, dots, tmp_path)
    ours, fetched = pool.dataloader(dataset), {}
    pool.refresh(1, 4)
    pool.sampler.request(4)
    next(iter(ours))
    for batch_size in (1, 16):  # verl's, and with the replay alone
        verls = StatefulDataLoader(
            dataset, batch_size=batch_size, num_workers=0, collate_fn=collate_fn, sampler=RandomSampler(dataset)
        )
        verls.load_state_dict(ours.state_dict())
        assert len(next(iter(verls))["raw_prompt"]) == batch_size
        fetched[batch_size] = verls.state_dict()
    ours = pool.dataloader(dataset)
    ours.load_state_dict(fetched[16])
    draws = pool.sampler.request(3)
    assert [info["question_id"] for info in next(iter(ours))["extra_info"]] == [draw.question_id for draw in draws]


def same_text(task, folder, third, **columns):
    """A file of 4 rows: the third, with `third` in its extra_info, has the text of the first."""
    frame = pd.read_parquet(f"{task}/train.parquet").iloc[[0, 1, 0, 2]].reset_index(drop=True)
    frame["extra_info"] = [{"question": info["question"], "tools_kwargs": {"t": 1}} for info in frame.extra_info]
    frame.at[2, "extra_info"] = {**frame.extra_info[2], **third}
    for name, values in columns.items():
        frame[name] = values
    frame.to_parquet(folder / "same.parquet")
    return folder / "same.parquet"


def picture(colour, size=4):
    """An image as parquet holds it, without a path."""
    stream = io.BytesIO()
    Image.new("RGB", (size, size), colour).save(stream, "PNG")
    return [{"bytes": stream.getvalue(), "path": None}]


def test_one_text_with_different_images_or_tool_arguments_is_refused(task, tmp_path):
    red, blue = picture("red"), picture("blue")
    for file in (
        same_text(task, tmp_path, {}, images=[red, red, blue, red]),
        same_text(task, tmp_path, {"tools_kwargs": {"t": 2}}),
        same_text(task, tmp_path, {"interaction_kwargs": {"name": "x"}}),
    ):
        with pytest.raises(ValueError, match=r"^1 question ids .*rows 0 and 2 .*extra_info.question_id") as caught:
            pool_of(file, task, tmp_path)
        assert "\n" not in str(caught.value)


def test_one_text_with_the_same_image_or_an_id_of_its_own_is_accepted(task, tmp_path):
    red, blue = picture("red"), picture("blue")
    assert len(pool_of(same_text(task, tmp_path, {}, images=[red, blue, red, blue]), task, tmp_path).sampler.pool) == 3
    file = same_text(task, tmp_path, {"question_id": "f" * 32}, images=[red, red, blue, red])
    assert len(pool_of(file, task, tmp_path).sampler.pool) == 4


def test_an_image_is_known_by_its_bytes_wherever_it_came_from():
    from verl_dots.integration.rows import fingerprint

    (red,), (blue,) = picture("red"), picture("blue")
    assert fingerprint([red]) == fingerprint([{**red, "path": "elsewhere.png"}]) != fingerprint([blue])
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1}) != fingerprint({"a": 1, "b": [3]})
    assert fingerprint([{"bytes": None, "path": "a.png"}]) != fingerprint([{"bytes": None, "path": "b.png"}])


@pytest.mark.parametrize("identity", ["question_id", "question", "messages"])
def test_fetched_rows_are_the_drawn_questions_or_the_run_ends(identity, task, tmp_path):
    from verl.utils import tensordict_utils as tu

    from verl_dots.integration.questions import Pool
    from verl_dots.integration.rows import check_fetched

    frame = pd.read_parquet(f"{task}/train.parquet").head(20)
    kept = {"question_id": ("question_id", "question"), "question": ("question",), "messages": ("index",)}[identity]
    infos = [{key: info[key] for key in kept if key in info} for info in frame.extra_info]
    frame["extra_info"] = [{"index": i, **info} for i, info in enumerate(infos)]
    frame.to_parquet(tmp_path / "few.parquet")
    dataset, config, dots = loaded(tmp_path / "few.parquet", task)
    pool = Pool.build(dataset, config, dots, tmp_path / "questions")
    pool.sampler.refresh(None, 8)
    fetched = iter(pool.dataloader(dataset))
    draws = pool.sampler.request(8)
    batch = tu.get_tensordict(next(fetched))
    check_fetched(draws, batch, "prompt")
    with pytest.raises(RuntimeError, match=f"question {draws[1].question_id} was drawn, but row") as caught:
        check_fetched([draws[1], draws[0], *draws[2:]], batch, "prompt")
    assert draws[0].question_id in str(caught.value)


def test_shares_of_success_are_counted_at_the_bounds_and_left_out_beyond_them():
    from verl_dots.integration.stepstate import success_histogram

    def group(*rewards):
        return Group("u", "q", 0, "selected", ("u_0_0",), tuple(float(np.float32(reward)) for reward in rewards), True)

    shares = success_histogram([group(0.7, 0.7), group(0.1, 0.1), group(0.1, 0.7)], (0.1, 0.7))
    assert {name: round(share, 3) for name, share in shares.items() if share} == {
        "dots/observed_0": 0.333,
        "dots/observed_mid": 0.333,
        "dots/observed_1": 0.333,
    }
    assert success_histogram([group(-1.0, 1.0)], (0.0, 1.0)) == {}


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
