"""The data sets that build_questions.py knows: where they are, what their rows look like, what the paper does with them.

A revision is a commit of the hub repository. Where none is pinned, ``main`` is read and the commit it stood for goes into
the manifest; ``--revision`` takes another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sources import converters
from sources.question import Question

MATH_SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)


@dataclass(frozen=True)
class DataSet:
    """One published data set.

    Attributes:
        name: what the user types; also the rows' ``data_source``.
        hub: repository on the hub.
        revision: commit read by default.
        splits: splits read by default, in this order.
        convert: a row of its format -> a Question.
        columns: what a row must have: one name out of each tuple.
        configs: configurations to read, all of them; (None,) if the repository has one only.
        ignored: columns that are not read: long, and not used.
        file: a file of the repository to read instead of going through its configurations.
        levels: default of ``--levels``.
        ability: verl's ``ability`` column.
        drop_unscorable: whether answers that cannot be scored are left out by default.
        paper: what the paper does with it, for ``--help`` and the README.
    """

    name: str
    hub: str
    splits: tuple[str, ...]
    convert: Callable[[Any, str], Question]
    columns: tuple[tuple[str, ...], ...]
    revision: str = "main"
    configs: tuple[str | None, ...] = (None,)
    ignored: tuple[str, ...] = ()
    file: str | None = None
    levels: tuple[int, int] | None = None
    ability: str = "math"
    drop_unscorable: bool = False
    paper: str = ""


PROBLEM_AND_ANSWER = (("problem", "question"), ("answer", "solution", "expected_answer"))

DATA_SETS = {
    each.name: each
    for each in (
        DataSet(
            name="math",
            hub="EleutherAI/hendrycks_math",
            revision="21a5633873b6a120296cce3e2df9d5550074f4a3",
            configs=MATH_SUBJECTS,
            splits=("train", "test"),
            convert=converters.problem_and_answer,
            columns=(*PROBLEM_AND_ANSWER, ("level", "difficulty")),
            levels=(3, 5),
            paper="train and test merged, levels 3 to 5, nothing of MATH-500",
        ),
        DataSet(
            name="deepscaler",
            hub="agentica-org/DeepScaleR-Preview-Dataset",
            revision="b6ae8c60f5c1f2b594e2140b91c49c9ad0949e29",
            splits=("train",),
            convert=converters.problem_and_answer,
            columns=PROBLEM_AND_ANSWER,
            paper="10,240 questions drawn at random",
        ),
        DataSet(
            name="orz",
            hub="Open-Reasoner-Zero/orz_math_57k_collection",
            file="orz_math_57k_collection.json",
            splits=("train",),
            convert=converters.orz,
            columns=(),
            paper="8,192 questions drawn at random",
        ),
        DataSet(
            name="deepmath",
            hub="zwhe99/DeepMath-103K",
            revision="5cf055d1fe3d7a2eb19719ac020211469736ae44",
            splits=("train",),
            convert=converters.deepmath,
            columns=(("question",), ("final_answer",)),
            ignored=("r1_solution_1", "r1_solution_2", "r1_solution_3"),
            paper="8,192 questions drawn at random",
        ),
        DataSet(
            name="scp25k",
            hub="EricLu/SCP-116K",
            splits=("train",),
            convert=converters.scp,
            columns=(
                ("problem", "question"),
                (
                    "answer",
                    "ground_truth",
                    "final_answer",
                    "extract_solution",
                    "matched_solution",
                    "extracted_solution",
                    "solution",
                ),
            ),
            ignored=("r1_response", "r1_reasoning_content", "o1_solution", "qwq_solution"),
            ability="science",
            drop_unscorable=True,
            paper="the 25,000 science questions of ProRL (arXiv 2505.24864), made from SCP-116K",
        ),
        DataSet(
            name="gsm8k",
            hub="openai/gsm8k",
            revision="740312add88f781978c0658806c59bc2815b9866",
            configs=("main",),
            splits=("train",),
            convert=converters.gsm8k,
            columns=(("question",), ("answer",)),
            paper="evaluation on its test split (--split test)",
        ),
        DataSet(
            name="math500",
            hub="HuggingFaceH4/MATH-500",
            revision="6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be",
            splits=("test",),
            convert=converters.problem_and_answer,
            columns=PROBLEM_AND_ANSWER,
            paper="evaluation",
        ),
        DataSet(
            name="minerva",
            hub="math-ai/minervamath",
            splits=("test",),
            convert=converters.problem_and_answer,
            columns=PROBLEM_AND_ANSWER,
            ability="science",
            paper="evaluation",
        ),
        DataSet(
            name="olympiadbench",
            hub="Hothan/OlympiadBench",
            revision="91184b52131e7fc9455fef848035173aea8cc01a",
            configs=("OE_TO_maths_en_COMP",),
            splits=("train",),  # the benchmark's only split is named so
            convert=converters.olympiadbench,
            columns=(("question",), ("final_answer", "answer")),
            paper="evaluation",
        ),
        DataSet(
            name="aime24",
            hub="HuggingFaceH4/aime_2024",
            revision="2fe88a2f1091d5048c0f36abc874fb997b3dd99a",
            splits=("train",),  # the benchmark's only split is named so
            convert=converters.problem_and_answer,
            columns=PROBLEM_AND_ANSWER,
            paper="left out of its averages: 30 questions vary too much",
        ),
        DataSet(
            name="amc23",
            hub="math-ai/amc23",
            revision="80815d37005feb82cd7f8fbc6901d5d3eff43057",
            splits=("test",),
            convert=converters.problem_and_answer,
            columns=PROBLEM_AND_ANSWER,
            paper="left out of its averages: 40 questions vary too much",
        ),
    )
}

OWN_FILES = ("jsonl", "parquet")
"""Names under which a user's own file is read, with the columns the user names."""
