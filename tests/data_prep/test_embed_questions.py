"""data_prep/embed_questions.py as a user runs it: models, lexical features, side features, resuming, mistakes."""

import json

import embed_questions
import huggingface_hub.constants
import numpy as np
import pandas as pd
import pytest
import torch
from encoding import encoder

from tests.data_prep.tiny_models import tiny_causal_model
from verl_dots.difficulty.features import lexical_features
from verl_dots.embeddings import EmbeddingTable
from verl_dots.types import question_id

COUNT = 40


@pytest.fixture
def questions(tmp_path):
    """A file in verl's schema with one repeated question and a success rate that one question lacks."""
    texts = [f"What is {i} + {i * i} ?" for i in range(COUNT)] + ["What is 0 + 0 ?"]
    frame = pd.DataFrame(
        {
            "prompt": [[{"role": "system", "content": "think"}, {"role": "user", "content": text}] for text in texts],
            "reward_model": [{"style": "rule", "ground_truth": str(i)} for i in range(len(texts))],
            "extra_info": [
                {"question": text, "success_rate": None if i == 3 else i / COUNT} for i, text in enumerate(texts)
            ],
        }
    )
    path = tmp_path / "questions.parquet"
    frame.to_parquet(path)
    return path, texts[:COUNT]


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(encoder, "SHARD", 16)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return tiny_causal_model(tmp_path_factory.mktemp("model"))


def test_a_causal_model_is_pooled_by_the_mean_of_its_hidden_states(tmp_path, run, questions, model_path, small_shards):
    path, texts = questions
    code, out, err = run(
        embed_questions.main, "--questions", path, "--model", model_path, "--output", tmp_path / "e.safetensors",
        "--devices", "cpu", "--batch-size", 4,
    )  # fmt: skip
    assert code == 0, err
    table = EmbeddingTable.open(tmp_path / "e.safetensors")
    assert table.question_ids == [question_id(text) for text in texts]
    assert f"{COUNT} questions" in out
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(model_path), AutoModel.from_pretrained(model_path).eval()
    for row in (0, 17, 39):
        with torch.no_grad():
            hidden = model(**tokenizer(texts[row], return_tensors="pt")).last_hidden_state[0]
        expected = hidden.mean(dim=0).numpy()
        expected /= np.linalg.norm(expected)
        np.testing.assert_allclose(table.vectors[row].astype(float), expected, atol=2e-3)
    assert not (tmp_path / "e.parts").exists()


def test_a_run_that_was_killed_continues_and_gives_the_same_file(
    tmp_path, run, questions, model_path, small_shards, monkeypatch
):
    path, _ = questions
    command = ("--questions", path, "--model", model_path, "--devices", "cpu", "--output")
    assert run(embed_questions.main, *command, tmp_path / "whole.safetensors")[0] == 0
    written = []
    original = encoder.Shards.write

    def dies_at_the_second(self, number, vectors):
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(number)
        original(self, number, vectors)

    monkeypatch.setattr(encoder.Shards, "write", dies_at_the_second)
    assert run(embed_questions.main, *command, tmp_path / "killed.safetensors")[0] == 130
    assert not (tmp_path / "killed.safetensors").exists()
    resumed = []
    monkeypatch.setattr(
        encoder.Shards, "write", lambda self, number, vectors: (resumed.append(number), original(self, number, vectors))
    )
    assert run(embed_questions.main, *command, tmp_path / "killed.safetensors")[0] == 0
    assert written == [0] and resumed == [1, 2]
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "killed.safetensors").read_bytes()


def test_parts_made_with_other_settings_are_not_mixed_in(
    tmp_path, run, questions, model_path, small_shards, monkeypatch
):
    path, _ = questions
    command = ("--questions", path, "--model", model_path, "--devices", "cpu", "--output", tmp_path / "e.safetensors")
    original = encoder.Shards.write

    def dies_after_the_first(self, number, vectors):
        original(self, number, vectors)
        raise KeyboardInterrupt

    monkeypatch.setattr(encoder.Shards, "write", dies_after_the_first)
    assert run(embed_questions.main, *command)[0] == 130
    code, _, err = run(embed_questions.main, *command, "--max-length", 5)
    assert code == 2 and "max_length None, not 5" in err and err.count("\n") == 1


def test_a_model_that_cannot_be_loaded_is_no_obstacle_to_the_right_one(tmp_path, run, questions, model_path):
    """Nothing of the attempt is kept, or its model would be the one to continue with."""
    command = ("--questions", questions[0], "--devices", "cpu", "--output", tmp_path / "e.safetensors", "--model")
    assert run(embed_questions.main, *command, tmp_path / "no_model")[0] == 2
    assert run(embed_questions.main, *command, model_path)[0] == 0


def test_lexical_features_of_question_and_answer(tmp_path, run, questions):
    path, texts = questions
    output = tmp_path / "lexical.safetensors"
    assert run(embed_questions.main, "--questions", path, "--features", "lexical", "--output", output)[0] == 0
    table = EmbeddingTable.open(output)
    expected = lexical_features(texts, [str(i) for i in range(COUNT)])
    np.testing.assert_allclose(table.rows(table.question_ids), expected, atol=5e-3)
    assert table.manifest["features"] == ["lexical"]


def test_other_questions_are_described_in_the_same_way(tmp_path, run, questions):
    """The same question has the same vector in two files that share a basis, and their models have the same name."""
    path, texts = questions
    first, second = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    pd.DataFrame({"question": ["new one", texts[5]], "answer": ["7", "5"]}).to_parquet(tmp_path / "other.parquet")
    run(embed_questions.main, "--questions", path, "--features", "lexical", "--output", first)
    basis = tmp_path / "a.lexical.safetensors"
    code, _, err = run(
        embed_questions.main, "--questions", tmp_path / "other.parquet", "--features", "lexical",
        "--lexical-basis", basis, "--output", second,
    )  # fmt: skip
    assert code == 0, err
    one, two = EmbeddingTable.open(first), EmbeddingTable.open(second)
    assert one.model == two.model
    np.testing.assert_allclose(one.rows([question_id(texts[5])]), two.rows([question_id(texts[5])]), atol=1e-3)


def test_vectors_of_an_earlier_file_get_company(tmp_path, run, questions, model_path):
    path, texts = questions
    base, output = tmp_path / "base.safetensors", tmp_path / "all.safetensors"
    run(embed_questions.main, "--questions", path, "--model", model_path, "--devices", "cpu", "--output", base)
    code, _, err = run(
        embed_questions.main, "--questions", path, "--embeddings", base, "--features", "lexical",
        "--side", "extra_info.success_rate", "--output", output,
    )  # fmt: skip
    assert code == 0, err
    before, after = EmbeddingTable.open(base), EmbeddingTable.open(output)
    np.testing.assert_array_equal(after.vectors[:, : before.dim], before.vectors)
    assert after.dim > before.dim and after.model.startswith(f"{before.model}+lexical:")
    assert after.side_names == ("extra_info.success_rate",)
    assert np.isnan(after.side[3, 0]) and after.side[8, 0] == pytest.approx(8 / COUNT)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ([], "nothing to embed with"),
        (["--model", "m", "--embeddings", "e"], "exclude each other"),
        (["--features", "lexical", "--side", "extra_info.colour"], "has no value in that column"),
        (["--features", "lexical", "--side", "colour"], "no column 'colour' for --side colour"),
        (["--features", "lexical", "--side", "extra_info.question"], "is not a number"),
        (["--features", "lexical", "--side", "a", "a"], "name each column once"),
        (["--model", "no/such-model", "--devices", "cpu"], "--model 'no/such-model' cannot be loaded"),
        (["--embeddings", "no.safetensors"], "no embeddings file 'no.safetensors'"),
        (["--features", "lexical", "--lexical-basis", "no.safetensors"], "lexical basis 'no.safetensors' cannot be read"),
        (["--lexical-basis", "x", "--model", "m"], "go with --features lexical"),
        (["--model", "m", "--batch-size", "0"], "--batch-size 0"),
    ],
)
def test_mistakes_are_one_line(tmp_path, run, questions, options, says, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # the variable was read at its import
    code, _, err = run(embed_questions.main, "--questions", questions[0], "--output", tmp_path / "e.safetensors", *options)
    assert code == 2 and says in err and err.count("\n") == 1
    assert not (tmp_path / "e.safetensors").exists()


def test_an_output_of_another_kind_is_refused(tmp_path, run, questions):
    code, _, err = run(embed_questions.main, "--questions", questions[0], "--features", "lexical", "--output", "e.npy")
    assert code == 2 and "must end in .safetensors" in err


def test_questions_without_text_are_refused(tmp_path, run):
    pd.DataFrame({"question": ["a", " "]}).to_parquet(tmp_path / "q.parquet")
    code, _, err = run(
        embed_questions.main, "--questions", tmp_path / "q.parquet", "--features", "lexical",
        "--output", tmp_path / "e.safetensors",
    )  # fmt: skip
    assert code == 2 and "1 empty questions, the first in row 1" in err


@pytest.mark.long
def test_two_devices_share_the_work(tmp_path, run, questions, model_path):
    path, _ = questions
    command = ("--questions", path, "--model", model_path, "--output")
    run(embed_questions.main, *command, tmp_path / "one.safetensors", "--devices", "cpu")
    code, _, err = run(embed_questions.main, *command, tmp_path / "two.safetensors", "--devices", "cpu", "cpu")
    assert code == 0, err
    one, two = (EmbeddingTable.open(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    np.testing.assert_allclose(one.vectors.astype(float), two.vectors.astype(float), atol=1e-3)


def test_manifest_names_the_questions(tmp_path, run, questions):
    run(embed_questions.main, "--questions", questions[0], "--features", "lexical", "--output", tmp_path / "e.safetensors")
    manifest = json.loads((tmp_path / "e.json").read_text())
    assert manifest["questions"]["sha256"] and manifest["count"] == COUNT
