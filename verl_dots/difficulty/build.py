"""Which predictor a run gets, from the `dots.predictor` block: the choice the user makes with two file names."""

from __future__ import annotations

import time

import numpy as np

from verl_dots.config import PredictorConfig
from verl_dots.difficulty.features import LEXICAL, join_blocks, lexical_features
from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.difficulty.predictor import Predictor
from verl_dots.embeddings import EmbeddingTable
from verl_dots.questions import DistinctQuestions


def build_predictor(config: PredictorConfig, pool: DistinctQuestions) -> tuple[Predictor, str]:
    """The predictor for the questions of `pool`, and one phrase that describes it.

    Without a checkpoint, lexical features stand beside the embeddings, unless the file holds them already: they know
    what embeddings of meaning do not (length, digits, operators). Ground truths, where they are known, enter them too:
    whether an answer is a number or a long formula says much about how often it is missed.

    Raises:
        ValueError: the embeddings lack a question of the pool, or the checkpoint does not fit them.
    """
    if config.embeddings is None:
        vectors, source = _lexical(pool)
        return KernelPredictor(vectors), f"kernel attention over {source}, fitted at each refresh"
    table = EmbeddingTable.open(config.embeddings)
    index = table.index(pool.ids)
    vectors, side = pool_rows(table, index), table.side[index]
    source = f"{table.dim} dimensions of {table.model}" + "".join(f", {name}" for name in table.side_names)
    if config.checkpoint is None:
        if LEXICAL not in table.manifest.get("features", ()):
            lexical, what = _lexical(pool)
            vectors, source = join_blocks(vectors, lexical), f"{source} and {what}"
        return KernelPredictor(vectors, side), f"kernel attention over {source}, fitted at each refresh"
    from verl_dots.difficulty.checkpoint import load_checkpoint  # torch only where it is needed
    from verl_dots.difficulty.trained import TrainedPredictor

    members = load_checkpoint(config.checkpoint, table)
    return TrainedPredictor(members, vectors, side), f"attention trained offline over {source}"


def _lexical(pool: DistinctQuestions) -> tuple[np.ndarray, str]:
    start = time.monotonic()
    vectors = lexical_features(pool.texts, pool.answers)
    return vectors, f"{vectors.shape[1]} lexical features ({time.monotonic() - start:.1f} s)"


def pool_rows(table: EmbeddingTable, index: np.ndarray) -> np.ndarray:
    """The pool's vectors, float16 (N, D): the memory map itself where the file is the pool in its order."""
    if len(index) == len(table) and np.array_equal(index, np.arange(len(table))):
        return table.vectors
    return table.vectors[index]
