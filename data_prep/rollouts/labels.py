"""The labels: one row per question and policy, how often the policy solved the question.

    question_id  str      verl_dots.types.question_id of the question's text
    policy       str      name of the model
    successes    float64  sum of its rewards, each scaled to [0, 1]; the count of right answers if rewards are 0 or 1
    trials       int32    rollouts, at least 1
    mean_length  float64  tokens per response; null if not known
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet

SCHEMA = pa.schema(
    [
        ("question_id", pa.string()),
        ("policy", pa.string()),
        ("successes", pa.float64()),
        ("trials", pa.int32()),
        ("mean_length", pa.float64()),
    ]
)


def write(path: Path, labels: pd.DataFrame) -> None:
    """Write the table; the columns are those of :data:`SCHEMA`."""
    pyarrow.parquet.write_table(pa.Table.from_pandas(labels, schema=SCHEMA, preserve_index=False), path)


def summary(labels: pd.DataFrame) -> dict[str, float]:
    """What the manifest and the user are told: how many are informative for a group of that many rollouts."""
    rates = labels["successes"] / labels["trials"]
    return {
        "questions": len(labels),
        "mean_success_rate": round(float(rates.mean()), 4),
        "never_solved": round(float((rates == 0).mean()), 4),
        "always_solved": round(float((rates == 1).mean()), 4),
    }
