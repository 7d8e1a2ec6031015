"""What is left out of a data set, and what is only reported. Each step returns the questions kept and a report.

A report is what the manifest says of the step: counts, and a few examples by question id.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from sources.near import bare, near_duplicates, ngrams, words
from sources.progress import Progress
from sources.question import Question
from verl_dots.rewards import can_be_scored
from verl_dots.rewards.normalise import spelling

EXAMPLES = 50
"""How many questions a report lists at most."""

Report = dict[str, Any]


def check_levels(questions: Sequence[Question], lowest: float, highest: float) -> tuple[list[Question], Report]:
    """Keep questions whose level lies in [lowest, highest]; those without a level go."""
    kept = [q for q in questions if q.level is not None and lowest <= q.level <= highest]
    by_level = Counter("none" if q.level is None else f"{q.level:g}" for q in questions)
    report = {"kept": [lowest, highest], "dropped": len(questions) - len(kept), "levels": dict(sorted(by_level.items()))}
    return kept, report


def check_answers(
    questions: Sequence[Question], *, drop: bool, workers: int, progress: Progress
) -> tuple[list[Question], Report]:
    """Report, and with ``drop`` leave out, questions whose ground truth the rewards cannot compare with anything.

    Such a question mostly scores 0 whatever the model does; only an answer in the very same letters scores 1.
    """
    keys = list(dict.fromkeys((q.answer, q.kind) for q in questions))
    with ThreadPoolExecutor(workers) as executor:
        verdicts = progress(executor.map(lambda key: can_be_scored(*key, workers=workers), keys), "answers", len(keys))
        usable = dict(zip(keys, verdicts, strict=True))
    bad = [q for q in questions if not usable[q.answer, q.kind]]
    report = {
        "count": len(bad),
        "dropped": len(bad) if drop else 0,
        "examples": [{"question_id": q.id, "answer": q.answer[:200]} for q in bad[:EXAMPLES]],
    }
    return [q for q in questions if usable[q.answer, q.kind]] if drop else list(questions), report


def check_duplicates(
    questions: Sequence[Question], *, drop: str, threshold: float, progress: Progress
) -> tuple[list[Question], Report]:
    """Report duplicates, and leave out the later ones.

    Args:
        questions: in the order of the source; the first of several stays.
        drop: ``"none"``, ``"exact"`` or ``"near"`` (which includes exact): near duplicates with the same answer.
        threshold: similarity from which on questions are near duplicates (near.py).
        progress: wraps an iteration in a progress bar.

    Exact duplicates have the same question id. Where their answers differ, at least one is wrong: the ids are listed. Near
    duplicates with other answers are variants ("a regular pentagon", "a regular hexagon") and always stay.
    """
    groups: dict[str, list[int]] = defaultdict(list)
    for position, question in enumerate(questions):
        groups[question.id].append(position)
    repeats = {position for positions in groups.values() for position in positions[1:]}
    answers = {id_: {spelling(questions[position].answer) for position in where} for id_, where in groups.items()}
    conflicts = [id_ for id_, different in answers.items() if len(different) > 1]
    firsts = [positions[0] for positions in groups.values()]
    like = near_duplicates([questions[position].text for position in firsts], threshold, progress)
    alike = [(firsts[later], firsts[earlier]) for later, earlier in like.items()]
    near = [(a, b) for a, b in alike if spelling(questions[a].answer) == spelling(questions[b].answer)]
    dropped = {"none": set(), "exact": repeats, "near": repeats | {later for later, _ in near}}[drop]
    report = {
        "exact": len(repeats),
        "exact_with_other_answers": len(conflicts),
        "near": len(near),
        "variants_with_other_answers": len(alike) - len(near),
        "near_threshold": threshold,
        "dropped": len(dropped),
        "conflicting_ids": conflicts[:EXAMPLES],
        "near_pairs": [[questions[a].id, questions[b].id] for a, b in near[:EXAMPLES]],
    }
    return [q for position, q in enumerate(questions) if position not in dropped], report


def check_contamination(
    questions: Sequence[Question], evaluation: dict[str, Sequence[str]], *, size: int, drop: bool
) -> tuple[list[Question], Report]:
    """Report, and with ``drop`` leave out, questions that overlap with evaluation sets.

    Args:
        questions: the questions to check.
        evaluation: name of an evaluation set -> its questions' texts.
        size: words in a row that must be shared. A question with fewer words must be shared as a whole.
        drop: leave the overlapping ones out.
    """
    seen: dict[str, str] = {}
    shorts: dict[str, str] = {}
    for name, texts in evaluation.items():
        for text in texts:
            if len(words(text)) >= size:
                seen.update(dict.fromkeys(ngrams(text, size), name))
            else:
                shorts[bare(text)] = name
    shorts.pop("", None)  # a question of nothing but punctuation
    overlaps: dict[int, str] = {}
    for position, question in enumerate(questions):
        found = next((seen[gram] for gram in sorted(ngrams(question.text, size)) if gram in seen), None)
        found = found or shorts.get(bare(question.text))
        if found:
            overlaps[position] = found
    report = {
        "ngram": size,
        "evaluation": {name: len(texts) for name, texts in evaluation.items()},
        "overlaps": dict(sorted(Counter(overlaps.values()).items())),
        "dropped": len(overlaps) if drop else 0,
        "ids": [questions[position].id for position in list(overlaps)[:EXAMPLES]],
    }
    return [q for position, q in enumerate(questions) if not (drop and position in overlaps)], report


def check_lengths(
    questions: Sequence[Question], lengths: Iterable[int], limit: int
) -> tuple[list[Question], Report]:
    """Leave out questions whose prompt has more than ``limit`` tokens; ``lengths`` are the prompts' in order."""
    lengths = list(lengths)
    kept = [q for q, length in zip(questions, lengths, strict=True) if length <= limit]
    return kept, {"limit": limit, "dropped": len(questions) - len(kept), "longest": max(lengths, default=0)}


def sample(questions: Sequence[Question], size: int, seed: int) -> list[Question]:
    """``size`` questions drawn uniformly without replacement, in the order of the source; all if there are fewer."""
    if size >= len(questions):
        return list(questions)
    chosen = np.random.default_rng(seed).choice(len(questions), size=size, replace=False)
    return [questions[position] for position in sorted(chosen)]
