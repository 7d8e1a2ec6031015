"""The rows of a training file as questions: several rows may be one question (same identity, see types.question_id)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DistinctQuestions:
    """N different questions, each described by its first row."""

    ids: list[str]
    texts: list[str]
    answers: list[str] | None
    """Ground truths; None unless every question has one."""


@dataclass(frozen=True)
class Questions:
    """The rows of a data set in its order.

    Attributes:
        ids: identity of each row's question.
        texts: what the question says.
        truths: the ground truth, None where the row has none.
        variants: what a row asks beside its text (images, arguments of tools), as a fingerprint; may be left out.
        sources: verl's `data_source` of each row; may be left out.
    """

    ids: Sequence[str]
    texts: Sequence[str]
    truths: Sequence[Any]
    variants: Sequence[str] = ()
    sources: Sequence[str] = ()

    @property
    def conflicts(self) -> dict[str, int]:
        """Questions whose rows have different ground truths, and how many."""
        seen: dict[str, set[str]] = {}
        for question, truth in zip(self.ids, self.truths, strict=True):
            seen.setdefault(question, set()).add(repr(truth))
        return {question: len(truths) for question, truths in seen.items() if len(truths) > 1}

    @property
    def merged(self) -> dict[str, tuple[int, int]]:
        """Questions whose rows ask different things, with the first row and the first one that differs from it.

        Only the first row of a question is trained on: the others would be lost.
        """
        first: dict[str, int] = {}
        found: dict[str, tuple[int, int]] = {}
        for row, (question, variant) in enumerate(zip(self.ids, self.variants, strict=False)):
            other = first.setdefault(question, row)
            if variant != self.variants[other]:
                found.setdefault(question, (other, row))
        return found

    def distinct(self) -> DistinctQuestions:
        """The distinct questions, in the order of their first rows."""
        first = {question: row for row, question in reversed(list(enumerate(self.ids)))}
        rows = sorted(first.values())
        known = all(self.truths[row] is not None for row in rows)
        return DistinctQuestions(
            ids=[self.ids[row] for row in rows],
            texts=[self.texts[row] for row in rows],
            answers=[str(self.truths[row]) for row in rows] if known else None,
        )
