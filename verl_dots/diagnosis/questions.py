"""Do the questions, the embeddings and the predictor belong together."""

from __future__ import annotations

import re

from verl_dots.config import PredictorConfig
from verl_dots.diagnosis.finding import Finding, fail, ok, warn
from verl_dots.difficulty.build import build_predictor
from verl_dots.embeddings import EmbeddingTable
from verl_dots.files import one_line
from verl_dots.questions import DistinctQuestions, Questions

_PROBED = 256
"""Questions a predictor is built for; whether it fits does not depend on how many."""


def check_questions(questions: Questions) -> list[Finding]:
    """Identities of the rows of the training files."""
    rows, distinct = len(questions.ids), len(set(questions.ids))
    twice = rows - distinct
    repeated = f", {twice} rows repeat one of them" if twice else ""
    findings = [ok("questions", f"{distinct:,} questions in {rows:,} rows{repeated} (before verl's length filter)")]
    if merged := questions.merged:
        question, (first, other) = next(iter(merged.items()))
        message = (
            f"{len(merged)} question ids have rows with different images or tool arguments (first {question}, rows {first} "
            f"and {other}): only the first row would be trained on"
        )
        findings.append(fail("questions", message, "write another extra_info.question_id to each of these rows"))
    if conflicts := questions.conflicts:
        first = next(iter(conflicts))
        findings.append(
            warn(
                "questions",
                f"{len(conflicts)} questions have different ground truths (first {first}): each counts as one question",
                "write the identity you mean to extra_info.question_id (data_prep/build_questions.py does)",
            )
        )
    return findings


def check_predictor(config: PredictorConfig, pool: DistinctQuestions) -> list[Finding]:
    """Embeddings exist, hold every question, and fit the predictor's checkpoint."""
    topic = "predictor"
    try:
        if config.embeddings is not None:
            EmbeddingTable.open(config.embeddings).index(pool.ids)
        answers = pool.answers and pool.answers[:_PROBED]
        _, name = build_predictor(config, DistinctQuestions(pool.ids[:_PROBED], pool.texts[:_PROBED], answers))
    except (ValueError, OSError) as error:
        message = one_line(error)
        head, separator, remedy = message.rpartition(": ")
        fallback = "make it anew, or set dots.predictor.embeddings=null and checkpoint=null"
        return [fail(topic, head if separator else message, remedy if separator else fallback)]
    name = re.sub(r" \(\d+\.\d s\)", "", name)  # how long these few took says nothing
    return [ok(topic, f"{name}{'; every question has a vector' if config.embeddings else ''}")]
