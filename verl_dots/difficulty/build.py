"""Which predictor a run gets, from the `dots.predictor` block: the choice the user makes with two file names."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from verl_dots.config import PredictorConfig
from verl_dots.difficulty.features import lexical_features
from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.difficulty.predictor import Predictor
from verl_dots.embeddings import EmbeddingTable


def build_predictor(config: PredictorConfig, pool: Sequence[str], texts: Sequence[str]) -> tuple[Predictor, str]:
    """The predictor for the questions `pool` (ids) with `texts`, and one phrase that describes it.

    Raises:
        ValueError: the embeddings lack a question of the pool, or the checkpoint does not fit them.
    """
    vectors, source = pool_vectors(config.embeddings, pool, texts)
    if config.checkpoint is None:
        return KernelPredictor(vectors), f"kernel attention over {source}, fitted at each refresh"
    raise ValueError(f"dots.predictor.checkpoint={config.checkpoint} cannot be read by this version")


def pool_vectors(embeddings: str | None, pool: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, str]:
    """Vectors (N, D) of the pool: from the embeddings file, or lexical features computed from the texts."""
    if embeddings is not None:
        table = EmbeddingTable.open(embeddings)
        return table.rows(pool), f"{table.dim} dimensions of {table.model}"
    start = time.monotonic()
    vectors = lexical_features(texts)
    return vectors, f"{vectors.shape[1]} lexical features ({time.monotonic() - start:.1f} s)"
