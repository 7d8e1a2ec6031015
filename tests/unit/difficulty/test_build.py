"""verl_dots.difficulty.build: two file names choose the predictor, and everything they need is checked."""

import dataclasses

import numpy as np
import pytest

from verl_dots.config import PredictorConfig
from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.build import build_predictor, pool_rows
from verl_dots.difficulty.checkpoint import save_checkpoint
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.questions import DistinctQuestions
from verl_dots.types import question_id

TEXTS = [f"{i}+{i % 7}*{i % 5}=" for i in range(60)]
IDS = [question_id(text) for text in TEXTS]
POOL = DistinctQuestions(IDS, TEXTS, None)


def predicts(predictor) -> np.ndarray:
    index = np.arange(20)
    return predictor.predict(index, index % 9.0, np.full(20, 8.0), np.zeros(20)).difficulty


@pytest.fixture
def files(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(60, 5))
    write_embeddings(tmp_path / "e.safetensors", IDS, vectors, model="a-model")
    save_checkpoint(
        tmp_path / "p.safetensors", [AttentionModel(AttentionSettings(dim=5, width=8))], embedding_model="a-model"
    )
    return str(tmp_path / "e.safetensors"), str(tmp_path / "p.safetensors")


def test_without_files_lexical_features_are_used_and_answers_enter_them():
    predictor, what = build_predictor(PredictorConfig(), POOL)
    assert "lexical features" in what and "kernel" in what
    with_answers, _ = build_predictor(PredictorConfig(), dataclasses.replace(POOL, answers=[str(i % 3) for i in range(60)]))
    assert predicts(predictor).shape == (60,)
    assert not np.array_equal(predicts(predictor), predicts(with_answers))


def test_with_embeddings_the_kernel_sees_both(files):
    predictor, what = build_predictor(PredictorConfig(embeddings=files[0]), POOL)
    assert "5 dimensions of a-model and" in what and "lexical" in what
    assert predicts(predictor).shape == (60,)


def test_a_file_that_holds_lexical_features_gets_no_second_ones(tmp_path):
    write_embeddings(
        tmp_path / "l.safetensors", IDS, np.eye(60), model="lexical:0", extra={"features": ["lexical"]}
    )
    _, what = build_predictor(PredictorConfig(embeddings=str(tmp_path / "l.safetensors")), POOL)
    assert what.startswith("kernel attention over 60 dimensions of lexical:0,")


def test_with_a_checkpoint_the_trained_predictor_is_used(files):
    predictor, what = build_predictor(PredictorConfig(*files), POOL)
    assert "trained offline" in what
    assert np.isfinite(predicts(predictor)).all()


def test_a_pool_in_another_order_gets_its_own_rows(files):
    table = EmbeddingTable.open(files[0])
    index = table.index(IDS[::-1])
    np.testing.assert_array_equal(pool_rows(table, index), table.vectors[::-1])
    assert pool_rows(table, table.index(IDS)) is table.vectors


def test_questions_without_vector_are_named(files):
    with pytest.raises(ValueError, match="lacks 1 of the 2 questions, first ffff"):
        build_predictor(PredictorConfig(embeddings=files[0]), DistinctQuestions([IDS[0], "f" * 32], ["a", "b"], None))
