"""The whole chain as a user types it, with the quickstart's model on the CPU: a file of one's own -> questions -> embeddings
-> pass rates -> predictor -> its evaluation -> the run that takes it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.data_prep.conftest import read_json
from tests.data_prep.sums import COLUMNS, script, task, write_sums
from verl_dots.config import PredictorConfig
from verl_dots.difficulty.build import build_predictor
from verl_dots.difficulty.pass_rates import read_pass_rates
from verl_dots.embeddings import EmbeddingTable
from verl_dots.questions import DistinctQuestions
from verl_dots.types import question_id

QUESTIONS, HELD_OUT, ROLLOUTS, REFERENCE = 480, 0.3, 8, 64


@dataclass
class Chain:
    """Every stage's output, and what its last stage printed."""

    folder: Path
    rows: list[dict]
    trained: dict
    untrained: dict

    def __truediv__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    questions, embeddings, labels = folder / "sums.parquet", folder / "vectors.safetensors", folder / "labels.parquet"
    predictor, unseen, model = folder / "predictor.safetensors", folder / "unseen.parquet", task() / "model"
    rows = write_sums(folder / "own.jsonl", "train", QUESTIONS)
    kind = ("--answer-kind", "exact", "--system-prompt", "none")
    script("build_questions", "jsonl", "--local-file", folder / "own.jsonl", *COLUMNS, *kind, "--output", questions)
    script("embed_questions", "--questions", questions, "--model", model, "--output", embeddings)
    rollouts = ("--rollouts", ROLLOUTS, "--max-tokens", 13, "--batch-size", 512, "--dtype", "float32", "--policy", "small")
    script("collect_pass_rates", "--questions", questions, "--model", model, *rollouts, "--output", labels)
    held = ("--holdout-questions", HELD_OUT, "--holdout-labels", unseen, "--reference-size", REFERENCE)
    script("fit_predictor", "--labels", labels, "--embeddings", embeddings, *held, "--output", predictor)
    judge = ("--labels", unseen, "--embeddings", embeddings, "--reference-size", REFERENCE, "--json")
    trained = json.loads(script("evaluate_predictor", *judge, "--checkpoint", predictor))
    return Chain(folder, rows, trained, json.loads(script("evaluate_predictor", *judge)))


def test_every_stage_is_about_the_same_questions(chain):
    ids = [question_id(row["q"]) for row in chain.rows]
    infos = pd.read_parquet(chain / "sums.parquet")["extra_info"]
    assert [info["question_id"] for info in infos] == ids
    assert EmbeddingTable.open(chain / "vectors.safetensors").question_ids == ids
    assert pd.read_parquet(chain / "labels.parquet")["question_id"].tolist() == ids
    unseen = pd.read_parquet(chain / "unseen.parquet")["question_id"]
    assert len(unseen) == round(HELD_OUT * QUESTIONS)
    assert set(unseen) < set(ids)


def test_manifests_name_the_stage_before(chain):
    questions = read_json(chain / "sums.json")["output"]["sha256"]
    assert read_json(chain / "vectors.json")["questions"]["sha256"] == questions
    assert read_json(chain / "labels.json")["question_file"]["sha256"] == questions
    (labels,) = read_json(chain / "predictor.json")["labels"]
    assert labels["sha256"] == read_json(chain / "labels.json")["output"]["sha256"]


def test_a_missing_level_stays_missing_and_the_others_stay_whole(chain):
    levels = [info["level"] for info in pd.read_parquet(chain / "sums.parquet")["extra_info"]]
    assert [None if level is None else int(level) for level in levels] == [row.get("steps") for row in chain.rows]
    assert levels.count(None) == QUESTIONS // 3


@pytest.fixture(scope="module")
def model():
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(task() / "model", dtype=torch.float64).eval()


def test_the_vectors_are_the_models_own_hidden_states(chain, model):
    """Averaged over the tokens of the bare question, though the model has a chat template and was made to continue text."""
    from verl_dots.cpu.arithmetic.measure import embed_questions

    own = embed_questions(model, [row["q"] for row in chain.rows])
    own /= np.linalg.norm(own, axis=1, keepdims=True)
    assert np.abs(EmbeddingTable.open(chain / "vectors.safetensors").vectors - own).max() < 2e-3  # float16 near 1


def test_the_pass_rates_are_the_models_own(chain, model):
    """Measured a second time by the decoder of the CPU rollout server: other code, other random numbers."""
    from verl_dots.cpu.arithmetic.measure import success_rates

    rows = chain.rows[:120]
    answers = [row["truth"]["digits"] for row in rows]
    other = success_rates(model, [row["q"] for row in rows], answers, samples=ROLLOUTS, seed=3)
    ours = 1 - read_pass_rates([chain / "labels.parquet"]).failure_rates()[0, : len(rows)]
    assert ours.std() > 0.2  # hard and easy ones: otherwise a correlation would mean nothing
    assert abs(ours.mean() - other.mean()) < 0.1  # standard error of the difference: at most .02
    assert np.corrcoef(ours, other)[0, 1] > 0.85


def test_the_predictor_knows_which_unseen_questions_are_hard(chain):
    assert chain.trained["questions"] == round(HELD_OUT * QUESTIONS)
    assert chain.trained["pearson_mean"] > 0.75
    assert chain.untrained["pearson_mean"] > 0.6  # one that learns from the reference set alone
    assert chain.trained["calibration_error"] < 0.2


def test_a_run_takes_the_checkpoint(chain):
    """As the trainer does it: the pool of the training file, labels of a few of its questions, everything predicted."""
    ids = [question_id(row["q"]) for row in chain.rows]
    files = PredictorConfig(embeddings=str(chain / "vectors.safetensors"), checkpoint=str(chain / "predictor.safetensors"))
    pool = DistinctQuestions(ids, [row["q"] for row in chain.rows], [row["truth"]["digits"] for row in chain.rows])
    predictor, name = build_predictor(files, pool)
    assert name.startswith("attention trained offline over 64 dimensions")
    rates = read_pass_rates([chain / "labels.parquet"])
    reference, rest = np.arange(REFERENCE), np.arange(REFERENCE, QUESTIONS)
    seen = rates.successes[0, reference], rates.trials[0, reference]
    predicted = predictor.predict(reference, *seen, np.zeros(REFERENCE)).difficulty
    assert predicted.min() >= 0 and predicted.max() <= 1
    assert np.corrcoef(predicted[rest], rates.failure_rates()[0, rest])[0, 1] > 0.5
