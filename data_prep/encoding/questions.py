"""Question files -> distinct questions with their texts, answers and numeric columns.

Either verl's schema, as build_questions.py writes it (`prompt`, `reward_model`, `extra_info`), or any parquet file with a
column `question` and perhaps `answer`.

Shapes: N distinct questions, S side columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from verl_dots.files import read_parquet
from verl_dots.types import question_id, question_id_of_row


@dataclass(frozen=True)
class Questions:
    """N distinct questions in the order of the file."""

    ids: list[str]
    texts: list[str]
    answers: list[str] | None  # None unless every question has one
    side: np.ndarray  # (N, S) float32, NaN where a value is missing


def read_questions(path: Path, side: Sequence[str] = ()) -> Questions:
    """Read a question file; of rows with the same question the first counts.

    Args:
        path: a parquet file.
        side: numeric columns; columns inside others are written `extra_info.level`.

    Raises:
        ValueError: neither `prompt` nor `question` is a column, a question is empty, or a side column is missing, is not
            numeric, or has no value at all.
        FileNotFoundError: there is no such file.
    """
    frame = read_parquet(path)
    if "prompt" in frame.columns:
        infos = frame["extra_info"] if "extra_info" in frame.columns else [None] * len(frame)
        ids = [question_id_of_row(info, prompt) for info, prompt in zip(infos, frame["prompt"], strict=True)]
        texts = [_text(info, prompt) for info, prompt in zip(infos, frame["prompt"], strict=True)]
        models = frame["reward_model"] if "reward_model" in frame.columns else [None] * len(frame)
        answers = [(model or {}).get("ground_truth") for model in models]
    elif "question" in frame.columns:
        texts = [text if isinstance(text, str) else "" for text in frame["question"]]
        ids = [question_id(text) for text in texts]
        answers = list(frame["answer"]) if "answer" in frame.columns else [None] * len(frame)
    else:
        raise ValueError(f"{str(path)!r} has neither a column 'prompt' nor 'question': it has {', '.join(frame.columns)}")
    empty = [row for row, text in enumerate(texts) if not text.strip()]
    if empty:
        raise ValueError(f"{str(path)!r} has {len(empty)} empty questions, the first in row {empty[0]}")
    columns = [_numbers(frame, name, path) for name in side]
    first = sorted({question: row for row, question in reversed(list(enumerate(ids)))}.values())
    known = all(answer is not None and answer == answer for answer in answers)
    return Questions(
        ids=[ids[row] for row in first],
        texts=[texts[row] for row in first],
        answers=[str(answers[row]) for row in first] if known else None,
        side=np.stack(columns, axis=1)[first] if columns else np.zeros((len(first), 0), np.float32),
    )


def _text(info: Mapping[str, Any] | None, prompt: Sequence[Mapping] | str) -> str:
    """What is embedded: the question itself, otherwise what the user says in the prompt."""
    if info and info.get("question"):
        return str(info["question"])
    if isinstance(prompt, str):
        return prompt
    said = [str(message.get("content", "")) for message in prompt if message.get("role") == "user"]
    return "\n\n".join(said or [str(message.get("content", "")) for message in prompt])


def _numbers(frame: pd.DataFrame, name: str, path: Path) -> np.ndarray:
    """One side column, float32 (rows,), NaN where missing."""
    outer, _, inner = name.partition(".")
    if outer not in frame.columns:
        raise ValueError(f"{str(path)!r} has no column {outer!r} for --side {name}: it has {', '.join(frame.columns)}")
    values = frame[outer]
    if inner:
        values = pd.Series([value.get(inner) if isinstance(value, Mapping) else None for value in values])
    numbers = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, copy=True)
    text = [value for value, number in zip(values, numbers, strict=True) if isinstance(value, str) and number != number]
    if text:
        raise ValueError(f"--side {name}: {text[0]!r} in {str(path)!r} is not a number")
    numbers[~np.isfinite(numbers)] = np.nan
    if np.isnan(numbers).all():
        raise ValueError(f"--side {name}: {str(path)!r} has no value in that column")
    return numbers.astype(np.float32)
