"""The question log of a run (`dots/questions/part-*.parquet`) as columns, and what can be read off it.

Shapes: O observations (groups rolled out), Q distinct questions among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verl_dots.files import one_line
from verl_dots.types import question_id_of_row, question_text

SOURCES = ("selected", "explored", "reference")
_COLUMNS = ["question_id", "step", "source", "successes", "trials", "predicted"]


@dataclass(frozen=True)
class QuestionTable:
    """Every group of a run, in the order of the files. Compact: five million groups take 85 MB.

    Attributes:
        ids: the Q question ids, in order of first appearance.
        question: (O,) int32, index into `ids`.
        step: (O,) int32.
        source: (O,) int8, index into `SOURCES`.
        difficulty: (O,) float32, observed failure rate in [0, 1].
        predicted: (O,) float32, predicted failure rate, NaN where nothing was predicted.
        trials: (O,) int16, rollouts of the group.
    """

    ids: list[str]
    question: np.ndarray
    step: np.ndarray
    source: np.ndarray
    difficulty: np.ndarray
    predicted: np.ndarray
    trials: np.ndarray

    def __len__(self) -> int:
        return len(self.step)

    def of_source(self, *sources: str) -> np.ndarray:
        """Mask (O,) of the groups rolled out for one of these reasons."""
        return np.isin(self.source, [SOURCES.index(source) for source in sources])


def read_question_log(folder: Path) -> QuestionTable | None:
    """All parts of a question log; None where there are none.

    Raises:
        ValueError: a part is not a parquet file with the columns of `verl_dots.difficulty.observations.SCHEMA`.
    """
    number: dict[str, int] = {}
    columns: dict[str, list[np.ndarray]] = {name: [] for name in QuestionTable.__dataclass_fields__ if name != "ids"}
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            part = pq.read_table(path, columns=_COLUMNS)
        except (pa.ArrowException, OSError, KeyError) as error:
            raise ValueError(f"{path} is not a part of a question log: {one_line(error)}") from None
        for name, values in _part_columns(part, number).items():
            columns[name].append(values)
    if not columns["step"]:
        return None
    return QuestionTable(list(number), **{name: np.concatenate(parts) for name, parts in columns.items()})


def _part_columns(part: pa.Table, number: dict[str, int]) -> dict[str, np.ndarray]:
    encoded = part["question_id"].combine_chunks().dictionary_encode()
    codes = np.array([number.setdefault(text, len(number)) for text in encoded.dictionary.to_pylist()], np.int32)
    trials = part["trials"].to_numpy()
    source = np.array([SOURCES.index(text) for text in part["source"].to_pylist()], np.int8)
    return {
        "question": codes[encoded.indices.to_numpy()],
        "step": part["step"].to_numpy().astype(np.int32),
        "source": source,
        "difficulty": (1.0 - part["successes"].to_numpy() / trials).astype(np.float32),
        "predicted": part["predicted"].to_numpy(zero_copy_only=False).astype(np.float32),
        "trials": trials.astype(np.int16),
    }


@dataclass(frozen=True)
class Favourite:
    """A question that a run came back to."""

    question_id: str
    times: int
    first_step: int
    last_step: int
    first_difficulty: float
    last_difficulty: float
    sources: dict[str, int]


def favourites(table: QuestionTable, most: int = 12) -> list[Favourite]:
    """The questions rolled out most often for training, most often first (ties: the earlier one)."""
    training = np.flatnonzero(table.of_source("selected", "explored"))
    times = np.bincount(table.question[training], minlength=len(table.ids))  # (Q,)
    found = []
    for question in np.argsort(-times, kind="stable")[:most]:
        if not times[question]:
            break
        rows = training[table.question[training] == question]
        rows = rows[np.argsort(table.step[rows], kind="stable")]
        by_source = np.bincount(table.source[rows], minlength=len(SOURCES))
        found.append(
            Favourite(
                table.ids[question],
                int(times[question]),
                int(table.step[rows[0]]),
                int(table.step[rows[-1]]),
                float(table.difficulty[rows[0]]),
                float(table.difficulty[rows[-1]]),
                {name: int(count) for name, count in zip(SOURCES, by_source, strict=True) if count},
            )
        )
    return found


@dataclass(frozen=True)
class Calibration:
    """Predicted against observed difficulty over bins of the prediction; empty bins are left out.

    Attributes:
        predicted: (B,) mean prediction of the bin.
        observed: (B,) mean observed difficulty.
        error: (B,) standard error of that mean.
        count: (B,) groups.
        pearson: correlation over all groups, NaN where one side is constant.
        expected_error: mean |predicted - observed| over bins, weighted by count.
    """

    predicted: np.ndarray
    observed: np.ndarray
    error: np.ndarray
    count: np.ndarray
    pearson: float
    expected_error: float


def calibration(table: QuestionTable, sources: Iterable[str], bins: int = 10, minimum: int = 8) -> Calibration | None:
    """Calibration over the predicted groups of these sources; None below `minimum` of them."""
    chosen = table.of_source(*sources) & ~np.isnan(table.predicted)
    predicted, observed = table.predicted[chosen].astype(float), table.difficulty[chosen].astype(float)
    if len(predicted) < minimum:
        return None
    place = np.minimum((predicted * bins).astype(int), bins - 1)
    count = np.bincount(place, minlength=bins)
    used = count > 0

    def mean(values: np.ndarray) -> np.ndarray:
        return np.bincount(place, weights=values, minlength=bins)[used] / count[used]

    mean_observed = mean(observed)
    variance = np.maximum(mean(observed**2) - mean_observed**2, 0.0)
    varied = predicted.std() > 1e-9 and observed.std() > 1e-9
    return Calibration(
        predicted=mean(predicted),
        observed=mean_observed,
        error=np.sqrt(variance / count[used]),
        count=count[used],
        pearson=float(np.corrcoef(predicted, observed)[0, 1]) if varied else float("nan"),
        expected_error=float((np.abs(mean(predicted) - mean_observed) * count[used]).sum() / count.sum()),
    )


def question_texts(path: Path, wanted: set[str]) -> dict[str, str]:
    """Texts of the wanted questions from a question file in verl's schema (parquet with `prompt` and `extra_info`).

    Raises:
        ValueError: not a parquet file with these columns.
        FileNotFoundError: there is no such file.
    """
    if not path.exists():
        raise FileNotFoundError(2, "no such file", str(path))
    texts: dict[str, str] = {}
    try:
        file = pq.ParquetFile(path)
        columns = [name for name in ("prompt", "extra_info") if name in file.schema_arrow.names]
        if "prompt" not in columns:
            raise ValueError(f"{path} has no column prompt: give the question file that verl trained on")
        for batch in file.iter_batches(batch_size=4096, columns=columns):
            for row in batch.to_pylist():
                identity = question_id_of_row(row.get("extra_info"), row["prompt"])
                if identity in wanted:
                    texts[identity] = question_text(row.get("extra_info"), row["prompt"])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a readable parquet file: {one_line(error)}") from None
    return texts
