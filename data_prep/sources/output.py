"""Questions -> verl's parquet schema (verl/utils/dataset/rl_dataset.py).

The schema is one and the same for every data set, empty fields included: verl concatenates its training files, and files
whose ``extra_info`` differ cannot be concatenated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from sources.question import Question

SYSTEM_PROMPTS = {
    "paper": "Let's think step by step and output the final answer within \\boxed{}.",  # arXiv 2506.05316, table 5
    "qwen": "Please reason step by step, and put your final answer within \\boxed{}.",  # Qwen2.5-Math's model card
    "none": "",
}

SCHEMA = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct(
                [
                    ("index", pa.int64()),  # position in this file
                    ("question_id", pa.string()),  # verl_dots.types.question_id of the question's text
                    ("question", pa.string()),
                    ("split", pa.string()),  # split of the source
                    ("answer_kind", pa.string()),  # how verl_dots.rewards compares
                    ("subject", pa.string()),
                    ("level", pa.float64()),  # the source's difficulty, larger is harder
                    ("success_rate", pa.float64()),  # published success rate of some model, [0, 1]
                    ("source_id", pa.string()),
                ]
            ),
        ),
    ]
)

ROWS_PER_WRITE = 4096


def messages(question: Question, system_prompt: str) -> list[dict[str, str]]:
    """The chat messages of a prompt; no system message if ``system_prompt`` is empty."""
    system = [{"role": "system", "content": system_prompt}] if system_prompt else []
    return [*system, {"role": "user", "content": question.text}]


def row(index: int, question: Question, *, data_source: str, ability: str, system_prompt: str) -> dict[str, Any]:
    """One row of verl's schema."""
    return {
        "data_source": data_source,
        "prompt": messages(question, system_prompt),
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": question.answer},
        "extra_info": {
            "index": index,
            "question_id": question.id,
            "question": question.text,
            "split": question.split,
            "answer_kind": question.kind,
            "subject": question.subject,
            "level": question.level,
            "success_rate": question.success_rate,
            "source_id": question.source_id,
        },
    }


def write(path: Path, questions: Sequence[Question], **columns: str) -> None:
    """Write all rows to ``path``; ``columns`` are :func:`row`'s keywords."""
    with pyarrow.parquet.ParquetWriter(path, SCHEMA) as writer:
        for batch in _batches(questions, columns):
            writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))


def _batches(questions: Sequence[Question], columns: dict[str, str]) -> Iterator[list[dict[str, Any]]]:
    for start in range(0, len(questions), ROWS_PER_WRITE):
        chunk = questions[start : start + ROWS_PER_WRITE]
        yield [row(start + offset, question, **columns) for offset, question in enumerate(chunk)]
