"""data_prep/build_questions.py on a user's own files: which column holds what is said on the command line."""

import pyarrow.parquet as pq
import pytest
from build_questions import main

from tests.data_prep.conftest import SAMPLES, build

COLUMNS = ("--question-column", "meta.q", "--answer-column", "truth.value")


def test_columns_are_named_by_the_user(run, tmp_path):
    rows, manifest, _ = build(
        run, "jsonl", "own.jsonl", tmp_path / "q.parquet", *COLUMNS,
        "--level-column", "difficulty", "--success-rate-column", "rate", "--answer-kind", "exact",
    )  # fmt: skip
    assert [row["extra_info"]["question"] for row in rows] == ["What is $2^5$?", "What is $3^3$?"]
    assert [row["reward_model"]["ground_truth"] for row in rows] == ["32", "27"]
    assert [row["extra_info"]["level"] for row in rows] == [1.0, 3.0]
    assert [row["extra_info"]["success_rate"] for row in rows] == [0.9, 0.25]
    assert {row["extra_info"]["answer_kind"] for row in rows} == {"exact"}
    assert {row["data_source"] for row in rows} == {"own"}
    assert manifest["unusable"] == {"no question": 1}


def test_a_file_in_verls_schema_can_be_built_again(run, tmp_path):
    rows, _, _ = build(run, "deepmath", "deepmath.jsonl", tmp_path / "a.parquet")
    columns = ("--question-column", "extra_info.question", "--answer-column", "reward_model.ground_truth")
    code, _, err = run(main, "parquet", "--local-file", tmp_path / "a.parquet", "--output", tmp_path / "b.parquet", *columns)
    assert code == 0, err
    again = pq.read_table(tmp_path / "b.parquet").to_pylist()
    assert [row["extra_info"]["question_id"] for row in again] == [row["extra_info"]["question_id"] for row in rows]


def test_a_success_rate_out_of_range(run, tmp_path):
    (tmp_path / "x.jsonl").write_text('{"q": "1+1", "a": "2", "rate": 40}\n')
    code, _, err = run(
        main, "jsonl", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet",
        "--question-column", "q", "--answer-column", "a", "--success-rate-column", "rate",
    )  # fmt: skip
    assert code == 2
    assert "between 0 and 1" in err


@pytest.mark.parametrize("missing", ["--local-file", "--question-column", "--answer-column"])
def test_what_it_needs(run, tmp_path, missing):
    given = {"--local-file": SAMPLES / "own.jsonl", "--question-column": "meta.q", "--answer-column": "truth.value"}
    del given[missing]
    options = [word for pair in given.items() for word in pair]
    code, _, err = run(main, "jsonl", "--output", tmp_path / "q.parquet", *options)
    assert (code, err.count("\n")) == (2, 1)
    assert missing in err
