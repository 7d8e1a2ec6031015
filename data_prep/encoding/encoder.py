"""Texts -> vectors by sentence-transformers, shard by shard, so that a run that was killed continues.

Any model of sentence-transformers works as it is; of any other language model (the paper takes Qwen2.5-Math-1.5B-Instruct)
we take the mean of its last hidden states over the tokens of the question alone.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from common.plan import Plan
from common.quiet import quieten
from tqdm import tqdm

from verl_dots.files import atomic_path, one_line

SHARD = 2_048
"""Texts encoded between two files."""


@dataclass(frozen=True)
class EncoderSettings:
    """What changes the vectors, and so which shards may be continued."""

    model: str
    max_length: int | None
    dtype: str


class Shards:
    """The folder `X.parts` beside the output `X.safetensors`: one array per shard."""

    def __init__(self, output: Path, ids: Sequence[str], settings: EncoderSettings) -> None:
        """Look at the folder, which appears with the first shard.

        Raises:
            ValueError: it holds shards of other questions or settings.
        """
        self.folder = output.with_suffix(".parts")
        self.count = -(-len(ids) // SHARD)
        which = {"questions": len(ids), "first": ids[0], "last": ids[-1], "shard": SHARD}
        self._plan = Plan(self.folder, {**asdict(settings), **which})

    def path(self, number: int) -> Path:
        """File of a shard."""
        return self.folder / f"shard-{number:06d}.npy"

    def missing(self) -> list[int]:
        """Shards that are not there yet."""
        return [number for number in range(self.count) if not self.path(number).exists()]

    def write(self, number: int, vectors: np.ndarray) -> None:
        """Write one shard, whole or not at all.

        Raises:
            ValueError: another run has begun to fill the folder with other settings.
        """
        self._plan.claim()
        with atomic_path(self.path(number)) as temporary:
            np.save(temporary, vectors, allow_pickle=False)

    def read(self) -> np.ndarray:
        """All vectors, float16 (N, D)."""
        return np.concatenate([np.load(self.path(number), allow_pickle=False) for number in range(self.count)])

    def remove(self) -> None:
        """Delete the folder, once the output is written."""
        shutil.rmtree(self.folder)


def encode(
    texts: Sequence[str], shards: Shards, settings: EncoderSettings, *, batch_size: int, devices: Sequence[str]
) -> np.ndarray:
    """Vectors of unit length, float16 (N, D), of texts, cut to the model's `max_length` tokens.

    Raises:
        ValueError: the model cannot be loaded.
    """
    missing = shards.missing()
    if missing:
        model = _load(settings, devices)
        with _pool(model, devices) as pool, tqdm(total=len(texts), desc="questions", disable=None) as bar:
            bar.update(len(texts) - sum(len(texts[number * SHARD : (number + 1) * SHARD]) for number in missing))
            for number in missing:
                chunk = list(texts[number * SHARD : (number + 1) * SHARD])
                vectors = model.encode(
                    chunk, batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False, pool=pool
                )
                shards.write(number, np.asarray(vectors, dtype=np.float16))
                bar.update(len(chunk))
    return shards.read()


def _load(settings: EncoderSettings, devices: Sequence[str]):
    """The model on the first device, with padding and length settled."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.util import is_sentence_transformer_model

    quieten()
    try:
        model = SentenceTransformer(
            settings.model, device=devices[0], model_kwargs={"torch_dtype": getattr(torch, settings.dtype)}
        )
        if len(model) == 2 and not is_sentence_transformer_model(settings.model):  # a language model and its pooling
            _take_the_mean(model)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"--model {settings.model!r} cannot be loaded: {one_line(error)}") from error
    if settings.max_length is not None:
        model.max_seq_length = settings.max_length
    tokenizer = model.tokenizer
    if getattr(tokenizer, "pad_token", "") is None:  # causal models often have none; padding is masked in the mean
        tokenizer.pad_token = tokenizer.eos_token
    return model


def _take_the_mean(model) -> None:
    """Pool a model that sentence-transformers does not know by the mean, and give it the bare text.

    Left to itself, from version 5 on the library takes the last token of a causal model and puts the text into its chat
    template: then the vectors would mostly tell of the template's end.
    """
    transformer, pooling = model
    model[1] = type(pooling)(pooling.pooling_output_dimension, pooling_mode="mean")
    getattr(transformer, "modality_config", {}).pop("message", None)


@contextlib.contextmanager
def _pool(model, devices: Sequence[str]) -> Iterator[dict | None]:
    """One process per device where there are several."""
    if len(devices) == 1:
        yield None
        return
    pool = model.start_multi_process_pool(list(devices))
    try:
        yield pool
    finally:
        model.stop_multi_process_pool(pool)
