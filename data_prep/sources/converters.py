"""One row of a source -> one :class:`Question`. One function per format, and what they share.

Each function takes a row (a mapping of the source's columns) and the name of its split, returns a Question, and raises
:class:`Unusable` with a short reason where there is nothing to train on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sources.question import Question, Unusable
from verl_dots.rewards.extract import last_boxed, math_answer
from verl_dots.rewards.normalise import unwrap

Row = Mapping[str, Any]


def text_of(row: Row, *columns: str) -> str:
    """The first non-empty text among ``columns``; numbers are written without a superfluous ``.0``; lists are joined."""
    for column in columns:
        value = row.get(column)
        if hasattr(value, "tolist"):  # parquet's lists are numpy arrays
            value = value.tolist()
        if isinstance(value, list | tuple):
            value = ", ".join(unwrap(str(item)) for item in value if item is not None)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not None and value == value and str(value).strip():
            return str(value).strip()
    return ""


def number_of(row: Row, *columns: str) -> float | None:
    """The first number among ``columns``: ``"Level 5"`` is 5, "N/A" is None."""
    match = re.search(r"-?\d+(?:\.\d+)?", text_of(row, *columns))
    return float(match.group()) if match else None


def make(row: Row, split: str, text: str, answer: str, **fields: Any) -> Question:
    """A Question from what a converter has found.

    Raises:
        Unusable: no question or no answer.
    """
    if not text:
        raise Unusable("no question")
    if not answer:
        raise Unusable("no answer")
    if any("\ud800" <= character <= "\udfff" for character in text + answer):
        raise Unusable("half a surrogate pair: not valid Unicode")
    fields.setdefault("source_id", text_of(row, "unique_id", "id", "ID", "url") or None)
    return Question(text=text, answer=unwrap(answer), split=split, **fields)


def problem_and_answer(row: Row, split: str) -> Question:
    """``problem`` (or ``question``) and ``answer``, otherwise the last box of ``solution``.

    MATH in its forms (hendrycks_math, MATH-500, DeepScaleR's copy), DeepScaleR, AIME, AMC, Minerva.
    """
    answer = text_of(row, "answer", "expected_answer") or (last_boxed(text_of(row, "solution")) or "")
    return make(
        row,
        split,
        text_of(row, "problem", "question"),
        answer,
        subject=text_of(row, "subject", "type") or None,
        level=number_of(row, "level", "difficulty"),
    )


def gsm8k(row: Row, split: str) -> Question:
    """``question``, and ``answer``: a worked solution that ends in ``#### 18``."""
    solution = text_of(row, "answer")
    answer = solution.rpartition("####")[2].strip() if "####" in solution else ""
    return make(row, split, text_of(row, "question"), answer.replace(",", ""))


def orz(row: Any, split: str) -> Question:
    """A conversation: ``[{from: human, value}, {from: assistant, ground_truth: {value}}]``.

    The JSON file is a list of such lists; read through ``datasets`` the turns become columns "0" and "1".
    """
    turns = row if isinstance(row, list) else _turns(row)
    if len(turns) < 2 or not all(isinstance(turn, Mapping) for turn in turns[:2]):
        raise Unusable("not a conversation of two turns")
    truth = turns[1].get("ground_truth") or {}
    return make({}, split, text_of(turns[0], "value"), text_of(truth, "value"))


def _turns(row: Row) -> list[Any]:
    if not isinstance(row, Mapping):
        return []
    for column in ("conversations", "messages", "conversation"):
        if row.get(column) is not None:
            return list(row[column])
    return [row.get("0"), row.get("1")]


def deepmath(row: Row, split: str) -> Question:
    """``question``, ``final_answer``, ``difficulty`` (about -1 to 9), ``topic``."""
    return make(
        row,
        split,
        text_of(row, "question"),
        text_of(row, "final_answer"),
        subject=text_of(row, "topic") or None,
        level=number_of(row, "difficulty"),
    )


def olympiadbench(row: Row, split: str) -> Question:
    """``question`` with its ``context``, and ``final_answer``, a list. Questions that need an image are left out."""
    if text_of(row, "modality") not in ("", "Text-only") or any(
        row.get(column) is not None for column in row if column.startswith("image_")
    ):
        raise Unusable("needs an image")
    question = "\n".join(filter(None, [text_of(row, "context"), text_of(row, "question")]))
    return make(
        row,
        split,
        question if text_of(row, "question") else "",
        text_of(row, "final_answer", "answer"),
        subject=text_of(row, "subfield", "subject") or None,
    )


def scp(row: Row, split: str) -> Question:
    """``problem``, ``domain``, and a short answer if there is one, otherwise the answer at the end of a worked solution.

    The 25,000 questions of ProRL (arXiv 2505.24864), which the paper trains on, have answers extracted by a language model
    (columns ``problem`` and ``answer``); SCP-116K itself has solutions of several sentences. From those we take what is
    boxed or announced, and only if it is short: a paragraph cannot be scored.
    """
    answer = text_of(row, "answer", "ground_truth", "final_answer")
    if not answer:
        solution = text_of(row, "extract_solution", "matched_solution", "extracted_solution", "solution")
        answer = math_answer(solution)
        if len(answer) > MAX_EXTRACTED_ANSWER:
            raise Unusable("no short answer in the solution")
    kind = "choice" if re.fullmatch(r"\(?[A-J]\)?\.?", answer) else "math"
    domain = text_of(row, "domain", "subject") or None
    return make(row, split, text_of(row, "problem", "question"), answer, subject=domain, kind=kind)


MAX_EXTRACTED_ANSWER = 80


def own_file(
    question: str, answer: str, level: str | None, subject: str | None, success_rate: str | None
) -> Callable[[Row, str], Question]:
    """A converter for a user's file, from the names of its columns; ``a.b`` is field ``b`` of column ``a``.

    The converter raises ValueError where a success rate lies outside [0, 1], or a column holds objects instead of text.
    """

    def convert(row: Row, split: str) -> Question:
        rate = number_of(row_at(row, success_rate), success_rate) if success_rate else None
        if rate is not None and not 0 <= rate <= 1:
            raise ValueError(f"column {success_rate!r} holds {rate:g}: a success rate lies between 0 and 1")
        return make(
            row,
            split,
            text_of(row_at(row, question), question),
            text_of(row_at(row, answer), answer),
            level=number_of(row_at(row, level), level) if level else None,
            subject=(text_of(row_at(row, subject), subject) or None) if subject else None,
            success_rate=rate,
        )

    return convert


def row_at(row: Row, column: str) -> Row:
    """``{column: value}`` for a dotted column name; the value is None if there is no such field.

    Raises:
        ValueError: the value is an object or a list of objects, such as chat messages.
    """
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    first = value[0] if isinstance(value, list | tuple | np.ndarray) and len(value) else value
    if isinstance(first, Mapping):
        kind = "objects" if first is value else "lists of objects"
        raise ValueError(
            f"column {column!r} holds {kind} with {', '.join(sorted(map(str, first)))}: name a field that holds text, "
            "written as column.field"
        )
    return {column: value}
