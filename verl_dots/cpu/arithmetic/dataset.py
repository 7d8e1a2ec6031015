"""The task's questions as rows of verl's data sets."""

import numpy as np

from verl_dots.cpu.arithmetic.task import POOLS, Problems, draw_distinct, running_values
from verl_dots.types import question_id

DATA_SOURCE = "arithmetic"


def draw_split(pool: str, train_size: int, val_size: int, seed: int) -> tuple[Problems, Problems]:
    """Training and validation problems of a pool, all distinct.

    Raises ValueError for an unknown pool, or sizes that are not positive or larger than the pool.
    """
    if pool not in POOLS:
        raise ValueError(f"pool {pool!r} is unknown: use one of {', '.join(POOLS)}")
    if min(train_size, val_size) < 1:
        raise ValueError(f"train size {train_size} and val size {val_size} must be at least 1")
    problems = draw_distinct(POOLS[pool], train_size + val_size, np.random.default_rng([seed, 2]))
    return problems[:train_size], problems[train_size:]


def rows(problems: Problems, split: str) -> list[dict]:
    """Rows in verl's schema. `extra_info.grade` is the number of operations, 1 to 6."""
    answers = problems.answers(running_values(problems))
    return [
        {
            "data_source": DATA_SOURCE,
            "prompt": [{"role": "user", "content": question}],
            "ability": "arithmetic",
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {
                "index": index,
                "split": split,
                "question": question,
                "question_id": question_id(question),
                "grade": int(grade),
            },
        }
        for index, (question, answer, grade) in enumerate(zip(problems.questions(), answers, problems.length, strict=True))
    ]
