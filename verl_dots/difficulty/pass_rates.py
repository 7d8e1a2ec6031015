"""Label files: how often each policy solved each question. What `data_prep/collect_pass_rates.py` writes.

Columns `question_id`, `successes`, `trials`, and optionally `policy`. The observations that a run writes
(`questions/part-*.parquet`) have these columns too: a policy version is a policy.

Shapes: P policies, N questions.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from verl_dots.files import read_parquet


@dataclass(frozen=True)
class PassRates:
    """Successes and trials of P policies on N questions; trials are 0 where a policy was not asked."""

    question_ids: tuple[str, ...]
    policies: tuple[str, ...]
    successes: np.ndarray  # (P, N) float64
    trials: np.ndarray  # (P, N) float64

    def failure_logits(self) -> np.ndarray:
        """Log odds of failure (P, N), smoothed by half a success and half a failure; NaN where unknown."""
        failures = self.trials - self.successes
        with np.errstate(invalid="ignore"):
            return np.where(self.trials > 0, np.log((failures + 0.5) / (self.successes + 0.5)), np.nan)

    def failure_rates(self) -> np.ndarray:
        """Failure rates (P, N) as counted; NaN where unknown."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(self.trials > 0, 1 - self.successes / self.trials, np.nan)

    def take(self, questions: np.ndarray) -> PassRates:
        """Only some of the questions."""
        ids = tuple(self.question_ids[i] for i in questions)
        return PassRates(ids, self.policies, self.successes[:, questions], self.trials[:, questions])


def read_pass_rates(paths: Sequence[str | os.PathLike]) -> PassRates:
    """Read label files; the same question under the same policy is added up. A file without `policy` is a policy itself.

    Raises:
        ValueError: a column is missing, or a count is missing or impossible. One line that names file, question and value.
        FileNotFoundError: there is no such file.
    """
    assert paths
    keys = pd.concat([_read(path) for path in paths], ignore_index=True)
    questions = keys["question_id"].unique()
    policies = np.sort(keys["policy"].unique())
    column = {question: i for i, question in enumerate(questions)}
    place = np.searchsorted(policies, keys["policy"].to_numpy()), keys["question_id"].map(column).to_numpy()
    successes, trials = np.zeros((2, len(policies), len(questions)))
    np.add.at(successes, place, keys["successes"].to_numpy(dtype=float))
    np.add.at(trials, place, keys["trials"].to_numpy(dtype=float))
    return PassRates(tuple(questions), tuple(policies), successes, trials)


def _read(path: str | os.PathLike) -> pd.DataFrame:
    """One file's columns `question_id`, `policy`, `successes`, `trials`, checked."""
    frame = read_parquet(path, ["question_id", "successes", "trials"])
    good = (frame["trials"] >= 1) & (frame["successes"] >= 0) & (frame["successes"] <= frame["trials"])
    if not good.all():  # also catches missing values
        row = frame[~good].iloc[0]
        raise ValueError(
            f"{os.fspath(path)!r} has {int((~good).sum())} impossible rows, first {row['successes']:g} successes in "
            f"{row['trials']:g} trials of question {row['question_id']}: successes must lie in [0, trials], trials >= 1"
        )
    policy = frame["policy"].astype(str) if "policy" in frame.columns else Path(path).stem
    columns = {"question_id": frame["question_id"].astype(str), "policy": policy}
    return frame.assign(**columns)[["question_id", "policy", "successes", "trials"]]
