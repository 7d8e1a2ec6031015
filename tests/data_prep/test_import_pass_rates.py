"""data_prep/collect_pass_rates.py --import: counts that somebody published become labels under our question ids."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from collect_pass_rates import main
from rollouts import labels as labels_format

from tests.data_prep.conftest import SAMPLES
from verl_dots.types import question_id


class TestPublished:
    ROWS = [
        {"question": "What is $1+1$?", "failures": 3, "attempts": 4, "solved": 1},
        {"question": "What is $2+2$?", "failures": 0, "attempts": 4, "solved": 4},
        {"question": " What is $1+1$?\n", "failures": 1, "attempts": 2, "solved": 1},
    ]

    def import_rows(self, run, tmp_path, rows, *more):
        (tmp_path / "rates.jsonl").write_text("\n".join(map(json.dumps, rows)))
        arguments = ("--import", tmp_path / "rates.jsonl", "--output", tmp_path / "labels.parquet", "--policy", "m")
        return run(main, *arguments, *more)

    @pytest.mark.parametrize(
        "columns",
        [
            ("--failures-column", "failures", "--attempts-column", "attempts"),
            ("--successes-column", "solved", "--attempts-column", "attempts"),
        ],
    )
    def test_counts_become_labels_and_repeats_add_up(self, run, tmp_path, columns):
        code, out, err = self.import_rows(run, tmp_path, self.ROWS, *columns)
        assert code == 0, err
        labels = pd.read_parquet(tmp_path / "labels.parquet")
        assert labels["question_id"].tolist() == [question_id("What is $1+1$?"), question_id("What is $2+2$?")]
        assert labels[["successes", "trials"]].values.tolist() == [[2, 6], [4, 4]]
        assert labels["mean_length"].isna().all()
        assert pq.read_schema(tmp_path / "labels.parquet").remove_metadata().equals(labels_format.SCHEMA)
        assert "2 questions, m solves 66.7%" in out

    def test_one_number_of_attempts(self, run, tmp_path):
        code, _, err = self.import_rows(run, tmp_path, self.ROWS, "--successes-column", "solved", "--attempts", 8)
        assert code == 0, err
        assert pd.read_parquet(tmp_path / "labels.parquet")["trials"].tolist() == [16, 8]

    def test_several_files(self, run, tmp_path):
        for name, rows in (("a", self.ROWS[:2]), ("b", self.ROWS[2:])):
            pd.DataFrame(rows).to_parquet(tmp_path / f"{name}.parquet")
        code, _, err = run(
            main, "--import", tmp_path / "a.parquet", tmp_path / "b.parquet", "--output", tmp_path / "labels.parquet",
            "--policy", "m", "--failures-column", "failures", "--attempts-column", "attempts",
        )  # fmt: skip
        assert code == 0, err
        assert pd.read_parquet(tmp_path / "labels.parquet")["trials"].tolist() == [6, 4]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"failures": 5}, "1 rows with 'failures' outside 0 to the attempts, the first is row 0: 5"),
            ({"failures": -1}, "outside 0 to the attempts"),
            ({"failures": None}, "not a number"),
            ({"failures": "many"}, "not a number"),
            ({"attempts": 0, "failures": 0}, "'attempts' below 1"),
            ({"attempts": 4.5}, "'attempts' not whole"),
            ({"question": ""}, "without a question"),
            ({"question": None}, "without a question"),
        ],
    )
    def test_impossible_counts(self, run, tmp_path, change, words):
        rows = [{**self.ROWS[0], **change}, *self.ROWS[1:]]
        columns = ("--failures-column", "failures", "--attempts-column", "attempts")
        code, _, err = self.import_rows(run, tmp_path, rows, *columns)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert not (tmp_path / "labels.parquet").exists()

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ((), "exactly one of --failures-column and --successes-column"),
            (("--failures-column", "failures"), "exactly one of --attempts-column and --attempts"),
            (("--failures-column", "fails", "--attempts", 4), "no column 'fails': it has attempts, failures, question"),
            (("--failures-column", "failures", "--attempts", 4, "--question-column", "q"), "no column 'q'"),
        ],
    )
    def test_columns(self, run, tmp_path, columns, words):
        code, _, err = self.import_rows(run, tmp_path, self.ROWS, *columns)
        assert (code, err.count("\n")) == (2, 1)
        assert words in err

    def test_ids_join_with_question_files(self, run, tmp_path):
        """The point of the id: labels published elsewhere meet the questions of a training file."""
        from build_questions import main as build

        assert run(build, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", tmp_path / "q.parquet")[0] == 0
        questions = pd.read_parquet(tmp_path / "q.parquet")["extra_info"]
        rows = [{"question": f"  {info['question']} ", "failures": 1, "attempts": 2} for info in questions]
        columns = ("--failures-column", "failures", "--attempts-column", "attempts")
        assert self.import_rows(run, tmp_path, rows, *columns)[0] == 0
        ids = pd.read_parquet(tmp_path / "labels.parquet")["question_id"].tolist()
        assert ids == [info["question_id"] for info in questions]

    def test_a_policy_is_needed(self, run, tmp_path):
        code, _, err = run(main, "--import", "x.parquet", "--output", tmp_path / "l.parquet")
        assert code == 2
        assert "--policy" in err
