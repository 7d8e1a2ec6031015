"""The one record between the source formats and verl's."""

from __future__ import annotations

from dataclasses import dataclass

from verl_dots.types import question_id


class Unusable(Exception):
    """A row without which the data set is better off; the message is the reason, counted in the manifest."""


@dataclass(frozen=True)
class Question:
    """One question of a data set.

    Attributes:
        text: the question as asked, stripped; its identity (``question_id``) is computed from it.
        answer: the ground truth, as short as the source allows.
        split: the split of the source it comes from.
        kind: how an answer is compared (``verl_dots.rewards.KINDS``).
        subject: the source's topic, if it names one.
        level: the source's own difficulty, larger is harder, in the source's scale (MATH 1 to 5, DeepMath about -1 to 9).
        success_rate: published success rate of some model, in [0, 1].
        source_id: how the source itself names the row.
    """

    text: str
    answer: str
    split: str
    kind: str = "math"
    subject: str | None = None
    level: float | None = None
    success_rate: float | None = None
    source_id: str | None = None

    @property
    def id(self) -> str:
        """Identity of the question (32 hex digits)."""
        return question_id(self.text)
