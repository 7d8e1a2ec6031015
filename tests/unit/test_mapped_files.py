"""An embeddings file that somebody cuts while a run has it mapped: the run ends at once, or never looked at the file again.

Our writers replace files and never rewrite them in place, so that only another program can do this.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.types import question_id

ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = 4096
PROGRAM = """
import os, sys
import numpy as np
from verl_dots.config import PredictorConfig
from verl_dots.difficulty.build import build_predictor
from verl_dots.questions import DistinctQuestions
from verl_dots.types import question_id

path, part = sys.argv[1], int(sys.argv[2])
texts = [f"question {i}" for i in range(int(sys.argv[3]))]
pool = DistinctQuestions([question_id(text) for text in texts][:part], texts[:part], None)
predictor, _ = build_predictor(PredictorConfig(embeddings=path), pool)
os.truncate(path, 4096)
print("cut", flush=True)
index = np.arange(40)
predictor.predict(index, index % 9.0, np.full(40, 8), np.zeros(40))
print("predicted")
"""


@pytest.fixture
def embeddings(tmp_path):
    ids = [question_id(f"question {i}") for i in range(QUESTIONS)]
    vectors = np.random.default_rng(0).normal(size=(QUESTIONS, 64))
    path = tmp_path / "x.safetensors"
    write_embeddings(path, ids, vectors, model="m", extra={"features": ["lexical"]})
    assert len(EmbeddingTable.open(path)) == QUESTIONS
    return path


def cut_while_used(path: Path, questions: int) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROGRAM, str(path), str(questions), str(QUESTIONS)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


def test_a_mapped_file_that_is_cut_ends_the_process_at_the_next_prediction(embeddings):
    done = cut_while_used(embeddings, QUESTIONS)  # the pool is the file in its order: the map itself is used
    assert done.stdout.split() == ["cut"]
    assert done.returncode == -signal.SIGBUS


def test_a_pool_that_is_a_part_of_the_file_was_copied_and_goes_on(embeddings):
    done = cut_while_used(embeddings, QUESTIONS // 2)
    assert done.stdout.split() == ["cut", "predicted"], done.stderr
    assert done.returncode == 0
