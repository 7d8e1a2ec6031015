"""Published pass rates, in whatever columns, -> labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sources.reading import check_columns, read_local

from verl_dots.types import question_id


def import_file(
    path: str,
    *,
    question: str,
    policy: str,
    failures: str | None,
    successes: str | None,
    attempts: str | int,
) -> pd.DataFrame:
    """Labels from one file; a question that occurs more than once has its successes and trials added up.

    Args:
        path: a .parquet, .jsonl or .json file.
        question: column of the question's text.
        policy: name of the model that was measured.
        failures: column of how often it failed; or
        successes: column of how often it succeeded. Exactly one of the two.
        attempts: column of how often it was asked, or one number for all.

    Raises:
        ValueError: a column is missing, or a count is missing, negative or larger than the attempts.
    """
    assert (failures is None) != (successes is None)
    rows = read_local(path)
    needed = [question, failures or successes] + ([attempts] if isinstance(attempts, str) else [])
    check_columns(rows, [(name,) for name in needed], repr(path))
    frame = pd.DataFrame(rows)
    texts = _texts(frame[question], path, question)
    trials = _counts(frame[attempts], path, attempts) if isinstance(attempts, str) else np.full(len(frame), float(attempts))
    counted = _counts(frame[failures or successes], path, failures or successes)
    _check(trials >= 1, path, f"{attempts!r} below 1", trials)
    _check(trials == np.floor(trials), path, f"{attempts!r} not whole", trials)
    _check((counted >= 0) & (counted <= trials), path, f"{failures or successes!r} outside 0 to the attempts", counted)
    labels = pd.DataFrame(
        {
            "question_id": [question_id(text) for text in texts],
            "successes": trials - counted if failures else counted,
            "trials": trials,
        }
    )
    return labels.groupby("question_id", sort=False, as_index=False).sum().assign(policy=policy, mean_length=np.nan)


def combine(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """One table of several files; the same question under the same policy is added up."""
    together = pd.concat(parts, ignore_index=True)
    return (
        together.groupby(["question_id", "policy"], sort=False, as_index=False)[["successes", "trials"]]
        .sum()
        .assign(mean_length=np.nan)
    )


def _texts(column: pd.Series, path: str, name: str) -> list[str]:
    bad = [row for row, text in enumerate(column) if not isinstance(text, str) or not text.strip()]
    if bad:
        raise ValueError(f"{path!r} has {len(bad)} rows without a question in column {name!r}, the first is row {bad[0]}")
    return list(column)


def _counts(column: pd.Series, path: str, name: str) -> np.ndarray:
    numbers = pd.to_numeric(column, errors="coerce").to_numpy(dtype=float)  # (N,)
    _check(np.isfinite(numbers), path, f"{name!r} not a number", column.to_numpy())
    return numbers


def _check(good: np.ndarray, path: str, what: str, values: np.ndarray) -> None:
    if not good.all():
        row = int(np.argmin(good))
        raise ValueError(f"{path!r} has {int((~good).sum())} rows with {what}, the first is row {row}: {values[row]}")
