"""Do the questions, the embeddings and the predictor belong together."""

from __future__ import annotations

import re
from collections.abc import Sequence

from verl_dots.config import PredictorConfig
from verl_dots.diagnosis.finding import Finding, fail, ok, warn
from verl_dots.difficulty.build import build_predictor
from verl_dots.embeddings import EmbeddingTable

_PROBED = 256
"""Questions a predictor is built for; whether it fits does not depend on how many."""


def check_questions(ids: Sequence[str], conflicts: dict[str, int]) -> list[Finding]:
    """Identities of the rows of the training files.

    Args:
        ids: one per row.
        conflicts: ids whose rows have different ground truths, and how many.
    """
    distinct = len(set(ids))
    twice = len(ids) - distinct
    repeated = f", {twice} rows repeat one of them" if twice else ""
    findings = [ok("questions", f"{distinct:,} questions in {len(ids):,} rows{repeated} (before verl's length filter)")]
    if conflicts:
        first = next(iter(conflicts))
        findings.append(
            warn(
                "questions",
                f"{len(conflicts)} questions have different ground truths (first {first}): each counts as one question",
                "write the identity you mean to extra_info.question_id (data_prep/build_questions.py does)",
            )
        )
    return findings


def check_predictor(config: PredictorConfig, ids: Sequence[str], texts: Sequence[str]) -> list[Finding]:
    """Embeddings exist, hold every question, and fit the predictor's checkpoint.

    Args:
        config: the `dots.predictor` block.
        ids: one per row of the training files; `texts` likewise.
    """
    topic = "predictor"
    text_of = dict(zip(reversed(ids), reversed(texts), strict=True))
    pool = list(text_of)[::-1]
    try:
        if config.embeddings is not None:
            EmbeddingTable.open(config.embeddings).index(pool)
        some = pool[:_PROBED]
        _, name = build_predictor(config, some, [text_of[question] for question in some])
    except (ValueError, OSError) as error:
        message = " ".join(str(error).split())
        head, separator, remedy = message.rpartition(": ")
        fallback = "make it anew, or set dots.predictor.embeddings=null and checkpoint=null"
        return [fail(topic, head if separator else message, remedy if separator else fallback)]
    name = re.sub(r" \(\d+\.\d s\)", "", name)  # how long these few took says nothing
    return [ok(topic, f"{name}{'; every question has a vector' if config.embeddings else ''}")]
