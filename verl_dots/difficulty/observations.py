"""What rollouts showed: the log of observations, its windows, its diagnostics, and its files.

:class:`ObservationLog` is the memory of a run and lives in its checkpoints. :class:`QuestionLog` appends the same records
to ``questions/part-*.parquet`` of the run's directory, which is what `data_prep/fit_predictor.py` learns from later.

Shapes: O observations so far, K observations of a window.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from verl_dots.files import atomic_path, read_parquet
from verl_dots.types import Observation

Which = Literal["all", "explored", "reference"]

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("step", pa.int64()),
        ("source", pa.string()),
        ("policy", pa.string()),
        ("successes", pa.float64()),
        ("trials", pa.int32()),
        ("predicted", pa.float64()),
    ]
)
"""Columns of every file of observations. `policy` names the policy version that answered: step - 1, as text, so that a file
of observations is also a file of labels. `predicted` is null where nothing was predicted."""


@dataclass(frozen=True)
class ObservationArrays:
    """The log as columns, in the order of arrival. `question` indexes `question_ids`."""

    question_ids: list[str]
    question: np.ndarray  # (O,) int64
    step: np.ndarray  # (O,) int64
    successes: np.ndarray  # (O,) float64
    trials: np.ndarray  # (O,) float64
    predicted: np.ndarray  # (O,) float64, NaN where nothing was predicted


class ObservationLog:
    """Every observation of a run, in the order of arrival (steps never decrease).

    >>> log = ObservationLog()
    >>> log.append([Observation("a" * 32, 1, "explored", 3.0, 8), Observation("b" * 32, 1, "selected", 4.0, 8)])
    >>> [seen.question_id[0] for seen in log.window(2)], [seen.question_id[0] for seen in log.window(2, "explored")]
    (['a', 'b'], ['a'])
    """

    def __init__(self) -> None:
        self._seen: list[Observation] = []
        self._questions: dict[str, int] = {}
        self._rows: list[tuple[int, int, float, int, float]] = []
        self._arrays: ObservationArrays | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def append(self, observations: Iterable[Observation]) -> None:
        """Add observations of one or several steps, oldest first.

        Raises:
            ValueError: an observation is impossible (no trials, successes outside [0, trials], a step in the past).
        """
        for seen in observations:
            if not (seen.trials >= 1 and -1e-6 <= seen.successes <= seen.trials + 1e-6):
                raise ValueError(
                    f"observation of question {seen.question_id} at step {seen.step} has {seen.successes} successes in "
                    f"{seen.trials} trials: successes must lie in [0, trials], trials be at least 1"
                )
            if self._seen and seen.step < self._seen[-1].step:
                raise ValueError(
                    f"observation of question {seen.question_id} is of step {seen.step}, but step {self._seen[-1].step} "
                    "has been recorded: append them in the order of steps"
                )
            number = self._questions.setdefault(seen.question_id, len(self._questions))
            predicted = float("nan") if seen.predicted is None else seen.predicted
            self._seen.append(seen)
            self._rows.append((number, seen.step, seen.successes, seen.trials, predicted))
            self._arrays = None

    def window(self, size: int, which: Which = "all") -> list[Observation]:
        """The most recent `size` groups, oldest first: all, or only the explored or the reference ones."""
        found: list[Observation] = []
        for seen in reversed(self._seen):
            if len(found) == size:
                break
            if which == "all" or seen.source == which:
                found.append(seen)
        return found[::-1]

    def reference(self, size: int) -> list[Observation]:
        """The most recent `size` groups that were rolled out only as labels, oldest first."""
        return self.window(size, "reference")

    def arrays(self) -> ObservationArrays:
        """The whole log as columns."""
        if self._arrays is None:
            table = np.array(self._rows, dtype=np.float64).reshape(-1, 5)  # (O, 5)
            self._arrays = ObservationArrays(
                question_ids=list(self._questions),
                question=table[:, 0].astype(np.int64),
                step=table[:, 1].astype(np.int64),
                successes=table[:, 2],
                trials=table[:, 3],
                predicted=table[:, 4],
            )
        return self._arrays

    def tracking(self, last: int = 256, minimum: int = 32) -> dict[str, float]:
        """How well recent predictions held: `dots/pearson` and `dots/calibration_error` over the `last` explored groups.

        Only explored groups (an unbiased sample of the pool) that were predicted before their rollout count. Empty below
        `minimum` of them; `dots/pearson` is absent as well where one side is constant and no correlation exists.
        """
        recent: list[Observation] = []
        for seen in reversed(self._seen):
            if len(recent) == last:
                break
            if seen.source == "explored" and seen.predicted is not None:
                recent.append(seen)
        if len(recent) < minimum:
            return {}
        predicted = np.array([seen.predicted for seen in recent])
        observed = np.array([seen.difficulty for seen in recent])
        metrics = {"dots/calibration_error": calibration_error(predicted, observed)}
        if predicted.std() > 1e-12 and observed.std() > 1e-12:
            metrics["dots/pearson"] = float(np.corrcoef(predicted, observed)[0, 1])
        return metrics

    def to_parquet(self, path: str | os.PathLike) -> None:
        """Write the whole log, whole or not at all."""
        with atomic_path(path) as temporary:
            pq.write_table(to_table(self._seen), temporary)

    @classmethod
    def from_parquet(cls, path: str | os.PathLike) -> ObservationLog:
        """Read what :meth:`to_parquet` wrote.

        Raises:
            ValueError: not a readable parquet file, a missing column, or impossible observations.
            FileNotFoundError: there is no such file.
        """
        log = cls()
        try:
            log.append(read_observations(path))
        except ValueError as error:
            named = str(path) in str(error)
            raise error if named else ValueError(f"{str(path)!r}: {error}") from error
        return log


class QuestionLog:
    """Appends observations to `part-{first step}.parquet` files of a directory, `steps_per_part` steps each.

    A part appears when it is complete; :meth:`flush` writes what is waiting (at a checkpoint, at the end), so that a part
    may hold fewer steps.
    """

    def __init__(self, directory: str | os.PathLike, steps_per_part: int = 10) -> None:
        assert steps_per_part >= 1
        self.directory = Path(directory)
        self.steps_per_part = steps_per_part
        self._waiting: list[Observation] = []
        self._first: int | None = None

    def append(self, step: int, observations: Sequence[Observation]) -> None:
        """Add the observations of one finished step; steps come in order."""
        self._first = step if self._first is None else self._first
        self._waiting.extend(observations)
        if step - self._first + 1 >= self.steps_per_part:
            self.flush()

    def flush(self) -> None:
        """Write the steps that are waiting as one part."""
        if self._waiting:
            with atomic_path(self._part(self._first)) as temporary:
                pq.write_table(to_table(self._waiting), temporary)
        self._waiting, self._first = [], None

    def cut(self, after_step: int) -> None:
        """Remove everything later than `after_step`, for a run that resumes from that step."""
        self._waiting, self._first = [], None
        for path in self.parts():
            found = read_observations(path)
            kept = [seen for seen in found if seen.step <= after_step]
            if not kept:
                path.unlink()
            elif len(kept) < len(found):
                with atomic_path(path) as temporary:
                    pq.write_table(to_table(kept), temporary)

    def parts(self) -> list[Path]:
        """The files written so far, in the order of steps."""
        return sorted(self.directory.glob("part-*.parquet"))

    def _part(self, step: int) -> Path:
        return self.directory / f"part-{step:08d}.parquet"


def to_table(observations: Sequence[Observation]) -> pa.Table:
    """Observations as a table of :data:`SCHEMA`."""
    columns = {name: [getattr(seen, name, None) for seen in observations] for name in SCHEMA.names}
    columns["policy"] = [str(seen.step - 1) for seen in observations]
    return pa.table(columns, schema=SCHEMA)


def read_observations(path: str | os.PathLike) -> list[Observation]:
    """The observations of one file, in its order.

    Raises:
        ValueError: not a readable parquet file, or a missing column.
        FileNotFoundError: there is no such file.
    """
    if _has_no_rows(path):
        return []  # a checkpoint before the first observation
    frame = read_parquet(path, ["question_id", "step", "source", "successes", "trials", "predicted"])
    for name, kinds in (("step", "iu"), ("successes", "iuf"), ("trials", "iu"), ("predicted", "fO")):
        if getattr(frame[name].dtype, "kind", "O") not in kinds:
            raise ValueError(f"{str(path)!r} has a column {name!r} of type {frame[name].dtype}: give a log of observations")
    rows = zip(
        *(frame[name].tolist() for name in ("question_id", "step", "source", "successes", "trials", "predicted")),
        strict=True,
    )
    return [Observation(*row[:5], predicted=None if row[5] is None or row[5] != row[5] else row[5]) for row in rows]


def _has_no_rows(path: str | os.PathLike) -> bool:
    try:
        return pq.read_metadata(path).num_rows == 0
    except (pa.ArrowException, OSError, ValueError):
        return False  # `read_parquet` says what is wrong with it


def calibration_error(predicted: np.ndarray, observed: np.ndarray, bins: int = 10) -> float:
    """Expected calibration error: mean |mean predicted - mean observed| over `bins` equal bins of `predicted` in [0, 1].

    Bins are weighted by how many of the (K,) values they hold.
    """
    place = np.minimum((np.asarray(predicted) * bins).astype(int), bins - 1)
    gap = np.bincount(place, weights=np.asarray(predicted) - np.asarray(observed), minlength=bins)
    return float(np.abs(gap).sum() / len(place))
