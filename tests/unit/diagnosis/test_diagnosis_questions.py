"""Questions, embeddings and predictor: do they belong together."""

import numpy as np
import pytest

from verl_dots.config import PredictorConfig
from verl_dots.diagnosis.questions import check_predictor, check_questions
from verl_dots.embeddings import write_embeddings
from verl_dots.questions import DistinctQuestions, Questions
from verl_dots.types import question_id

TEXTS = [f"What is {a} + {b}?" for a in range(6) for b in range(6)]
IDS = [question_id(text) for text in TEXTS]
POOL = DistinctQuestions(IDS, TEXTS, None)


@pytest.fixture
def embeddings(tmp_path):
    path = tmp_path / "questions.safetensors"
    vectors = np.random.default_rng(0).standard_normal((len(IDS), 12))
    write_embeddings(path, IDS, vectors, model="test encoder")
    return str(path)


def test_repeated_questions_are_counted_and_conflicts_named():
    (line,) = check_questions(Questions(IDS + IDS[:3], TEXTS + TEXTS[:3], ["1"] * 39))
    assert line.message.startswith("36 questions in 39 rows, 3 rows repeat one of them")
    findings = check_questions(Questions([*IDS, IDS[0]], [*TEXTS, TEXTS[0]], ["1"] * 36 + ["2"]))
    assert [finding.level for finding in findings] == ["ok", "warn"] and IDS[0] in findings[1].message


def test_questions_that_differ_in_what_their_text_does_not_show_are_wrong():
    findings = check_questions(Questions([*IDS, IDS[0]], [*TEXTS, TEXTS[0]], ["1"] * 37, [""] * 36 + ["image"]))
    assert [finding.level for finding in findings] == ["ok", "fail"]
    assert IDS[0] in findings[1].message and "rows 0 and 36" in findings[1].message


def test_embeddings_that_hold_every_question(embeddings):
    (line,) = check_predictor(PredictorConfig(embeddings=embeddings), POOL)
    assert line.level == "ok"
    assert "12 dimensions of test encoder" in line.message and "every question has a vector" in line.message


def test_without_embeddings_features_are_computed():
    (line,) = check_predictor(PredictorConfig(), POOL)
    assert line.level == "ok" and "lexical features" in line.message


@pytest.mark.parametrize("path", ["absent.safetensors", "/nowhere/x.safetensors"])
def test_missing_embeddings(path):
    (line,) = check_predictor(PredictorConfig(embeddings=path), POOL)
    assert (line.level, line.topic) == ("fail", "predictor")
    assert line.message == f"no embeddings file {path!r}"
    assert line.remedy == f"run python data_prep/embed_questions.py --questions FILE --output {path}"


def test_embeddings_that_lack_questions(embeddings):
    more = ["What is 9 + 9?", "What is 8 + 8?"]
    ids = IDS + [question_id(text) for text in more]
    (line,) = check_predictor(PredictorConfig(embeddings=embeddings), DistinctQuestions(ids, TEXTS + more, None))
    assert line.level == "fail"
    assert f"lacks 2 of the 38 questions, first {ids[-2]}" in line.message
    assert "embed_questions.py" in line.remedy


def test_a_checkpoint_that_is_none(embeddings, tmp_path):
    path = tmp_path / "predictor.safetensors"
    path.write_bytes(b"no checkpoint")
    (line,) = check_predictor(PredictorConfig(embeddings=embeddings, checkpoint=str(path)), POOL)
    assert line.level == "fail" and "no predictor checkpoint" in line.message and "fit_predictor.py" in line.remedy
