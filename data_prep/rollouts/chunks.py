"""The work cut into chunks of questions, each written to a file of its own as soon as it is done.

A run that was stopped continues with the chunks that are missing. Several processes or machines share the work by taking
every n-th chunk. A chunk has its own seed and depends on the settings only, not on who made it or when, so the work can be
divided in any way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from common.plan import Plan

from verl_dots.files import atomic_path, read_parquet


@dataclass(frozen=True)
class Shard:
    """The ``index``-th of ``count`` equal parts of the work, ``0 <= index < count``."""

    index: int = 0
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Shard:
        """From ``"2/8"``: the third of eight, as a Slurm array numbers its tasks.

        Raises:
            ValueError: it is not of that form, or out of range.
        """
        index, slash, count = text.partition("/")
        if not (slash and index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            raise ValueError(f"--shard {text!r}: give i/n with 0 <= i < n, for example 0/8 to 7/8")
        return cls(int(index), int(count))

    def split(self, parts: int) -> list[Shard]:
        """This part divided again, without overlap."""
        return [Shard(self.index + self.count * part, self.count * parts) for part in range(parts)]

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"


class Chunks:
    """The chunk files of one run, in the folder ``X.parts`` beside its output ``X.parquet``."""

    def __init__(self, output: Path, questions: int, size: int, settings: dict[str, Any]) -> None:
        """Look at the folder, which appears with the first chunk.

        Raises:
            ValueError: it holds chunks made with other settings.
        """
        self.folder = output.with_suffix(".parts")
        self.size = size
        self.questions = questions
        self.count = -(-questions // size)
        self._plan = Plan(self.folder, {**settings, "questions": questions, "chunk_size": size})

    def missing(self, shard: Shard = Shard()) -> list[int]:  # noqa: B008, frozen
        """Numbers of a shard's chunks that are not there yet."""
        return [number for number in range(shard.index, self.count, shard.count) if not self._path(number).exists()]

    def rows(self, number: int) -> slice:
        """The questions of a chunk."""
        return slice(number * self.size, min((number + 1) * self.size, self.questions))

    def write(self, number: int, labels: pd.DataFrame) -> None:
        """Keep the labels of a finished chunk.

        Raises:
            ValueError: another run has begun to fill the folder with other settings.
        """
        self._plan.claim()
        with atomic_path(self._path(number)) as temporary:
            labels.to_parquet(temporary)

    def read(self) -> pd.DataFrame:
        """The labels of all chunks, in the order of the questions."""
        assert not self.missing()
        return pd.concat(self._parts(), ignore_index=True)

    def _parts(self) -> Iterator[pd.DataFrame]:
        for number in range(self.count):
            yield read_parquet(self._path(number))

    def _path(self, number: int) -> Path:
        return self.folder / f"chunk-{number:06d}.parquet"


def seed_of(seed: int, chunk: int) -> int:
    """The sampling seed of a chunk, in [0, 2^31)."""
    return int(np.random.SeedSequence([seed, chunk]).generate_state(1)[0] >> 1)
