"""Rewards that verl can call: is the last answer of a response the right one?

In verl's YAML::

    reward.custom_reward_function.path: pkg://verl_dots.rewards
    reward.custom_reward_function.name: compute_score
    reward.custom_reward_function.reward_kwargs: {time_limit: 5.0, workers: 2}     # optional

Three kinds of answer, named by ``extra_info.answer_kind``, which ``data_prep/build_questions.py`` writes:

* ``math``: equal as mathematics (fractions, radicals, intervals, sets, units, per cent), through math-verify;
* ``choice``: the right letter;
* ``exact``: the right characters.

    extract.py     response -> the text of its answer                  linear in the length of the response
    normalise.py   LaTeX spellings of one thing -> one spelling        decides the large majority of answers
    equivalence.py are two LaTeX strings equal?                        math-verify; only ever runs in a worker
    worker.py      the worker process, bounded in processor time and memory
    pool.py        a few workers, one request at a time each; usable from threads, Ray actors and forked processes

Nothing that a model wrote is ever evaluated as code: math-verify's plain-expression extractor, which goes through sympy's
``parse_expr`` and so through ``eval``, is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_dots.rewards import extract, normalise
from verl_dots.rewards.pool import shared_pool

KINDS = ("math", "choice", "exact")
DEFAULT_TIME_LIMIT = 5.0
MAX_LOGGED_ANSWER = 200


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: str | float | Sequence[str],
    extra_info: Mapping[str, Any] | None = None,
    *,
    kind: str | None = None,
    require_boxed: bool = False,
    time_limit: float = DEFAULT_TIME_LIMIT,
    workers: int = 2,
    **_: Any,
) -> dict[str, float | str]:
    """Score one response; verl's ``custom_reward_function`` (verl/trainer/ppo/reward.py).

    Args:
        data_source: unused here; verl passes it, and groups validation metrics by it.
        solution_str: the decoded response, of any length and content.
        ground_truth: the right answer; a list means that any of them is right.
        extra_info: the row's ``extra_info``; its ``answer_kind`` says how to compare.
        kind: one of :data:`KINDS`, overrides ``answer_kind``. Without either: ``math``.
        require_boxed: whether an answer outside ``\\boxed{}`` counts for nothing.
        time_limit: seconds of processor time for one comparison. A comparison that takes longer scores 0.
        workers: worker processes of this process, shared by its threads.

    Returns:
        ``score`` and ``acc``, both 0.0 or 1.0; ``pred``, the answer found (empty if none, at most 200 characters: verl
        takes the majority vote over it); ``timed_out``, 1.0 if a limit of time or memory ended the comparison. The same
        keys for every row, as verl's reward loop requires.

    Raises:
        ValueError: ``kind`` is not one of :data:`KINDS`. Never because of what a response says.
    """
    kind = kind or (extra_info or {}).get("answer_kind") or "math"
    golds = _golds(ground_truth)
    timed_out = False
    if kind == "math":
        pred = extract.math_answer(solution_str, require_boxed=require_boxed)
        right, timed_out = _equal_mathematics(golds, pred, time_limit, workers)
    elif kind == "choice":
        pred = extract.choice_answer(solution_str, require_boxed=require_boxed)
        right = pred != "" and any(pred == extract.choice_of_key(gold) for gold in golds)
    elif kind == "exact":
        pred = solution_str.strip()
        right = any(pred == gold.strip() for gold in golds)
    else:
        raise ValueError(f"answer kind {kind!r} is unknown: choose one of {', '.join(KINDS)}")
    score = float(right)
    return {"score": score, "acc": score, "pred": pred[:MAX_LOGGED_ANSWER], "timed_out": float(timed_out)}


def can_be_scored(
    ground_truth: str, kind: str = "math", time_limit: float = DEFAULT_TIME_LIMIT, workers: int = 1
) -> bool:
    """Whether a ground truth can be compared at all: it scores 1 against itself and is neither empty nor endless."""
    text = str(ground_truth).strip()
    if kind == "choice":
        return extract.choice_of_key(text) != ""
    if kind == "exact":
        return text != ""
    if not text or len(text) > extract.MAX_ANSWER_CHARS:
        return False
    if normalise.is_number(text) or normalise.is_wording(text):
        return True
    return shared_pool(workers).parses(normalise.for_parsing(normalise.without_percent(text)[0]), time_limit)


def _golds(ground_truth: str | float | Sequence[str]) -> list[str]:
    """The right answers as strings; parquet gives lists back as numpy arrays."""
    if hasattr(ground_truth, "tolist"):
        ground_truth = ground_truth.tolist()
    many = ground_truth if isinstance(ground_truth, list | tuple) else [ground_truth]
    return [str(gold) for gold in many if gold is not None and str(gold).strip()]


def _equal_mathematics(golds: list[str], pred: str, time_limit: float, workers: int) -> tuple[bool, bool]:
    """``(equal to one of golds, a limit was hit)``: by spelling where that decides, otherwise in a worker."""
    if not pred:
        return False, False
    undecided = []
    for gold in golds:
        verdict = normalise.compare(gold, pred)
        if verdict:
            return True, False
        if verdict is None and len(gold) <= extract.MAX_ANSWER_CHARS:
            undecided.append(gold)
    timed_out = False
    for gold in undecided:
        equal = shared_pool(workers).equal(normalise.readings(gold, pred), time_limit)
        if equal:
            return True, False
        timed_out = timed_out or equal is None
    return False, timed_out
