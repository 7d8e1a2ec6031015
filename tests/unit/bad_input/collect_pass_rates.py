"""Mistakes with data_prep/collect_pass_rates.py."""

from __future__ import annotations

from tests.unit.bad_input.case import OUT, Case, cut, tool

ROLL = ("--questions", "questions.parquet", "--model", "no/model", "--engine", "transformers", *OUT)
IMPORT = ("--import", "labels.parquet", *OUT)
IMPORTED = (*IMPORT, "--policy", "m", "--failures-column", "f", "--attempts", "8")


def rates(*arguments: str):
    return tool("collect_pass_rates", *arguments)


PASS_RATES = [
    Case("no questions", rates("--model", "m", *OUT), ("--questions is missing",)),
    Case("no model", rates("--questions", "questions.parquet", *OUT), ("--model is missing",)),
    Case("rollouts", rates(*ROLL, "--rollouts", "0"), ("--rollouts 0", "at least 1")),
    Case("rollouts no number", rates(*ROLL, "--rollouts", "eight"), ("--rollouts", "'eight'")),
    Case("top-p", rates(*ROLL, "--top-p", "0"), ("--top-p 0", "above 0")),
    Case("temperature", rates(*ROLL, "--temperature", "-1"), ("--temperature -1", "must not be negative")),
    Case("reward range", rates(*ROLL, "--reward-range", "1", "0"), ("--reward-range", "the first must be smaller")),
    Case("reward without colon", rates(*ROLL, "--reward", "score"), ("--reward 'score'", "no colon")),
    Case("reward module missing", rates(*ROLL, "--reward", "no_such:f"), ("--reward 'no_such:f'", "No module named")),
    Case("shard", rates(*ROLL, "--shard", "3/2"), ("3/2",)),
    Case("engine", rates(*ROLL[:5], "magic", *OUT), ("--engine", "magic", "transformers")),
    Case("question file missing", rates("--questions", "no.parquet", *ROLL[2:]), ("no such file", "no.parquet")),
    Case(
        "no question file",
        rates("--questions", "labels.parquet", *ROLL[2:]),
        ("'labels.parquet' has no column 'prompt'", "it has"),
    ),
    Case("import without policy", rates(*IMPORT, "--failures-column", "f", "--attempts", "8"), ("--import needs --policy",)),
    Case(
        "import of both",
        rates(*IMPORT, "--policy", "m", "--attempts", "8"),
        ("exactly one of --failures-column and --successes",),
    ),
    Case("question file empty", rates(*ROLL), ("'questions.parquet' is empty",), cut("questions.parquet", 0)),
    Case("question file cut off", rates(*ROLL), ("'questions.parquet'", "make it again"), cut("questions.parquet", 99)),
    Case("model that is none", rates(*ROLL, "--model", "taken"), ("the tokenizer of 'taken' cannot be loaded",)),
    Case("no permission for labels", rates(*ROLL, "--output", "/sys/l.parquet"), ("no permission: '/sys/l.parquet'",)),
    Case("import empty", rates(*IMPORTED), ("'labels.parquet' is empty",), cut("labels.parquet", 0)),
    Case("import cut off", rates(*IMPORTED), ("'labels.parquet'", "make it again"), cut("labels.parquet", 500)),
    Case(
        "import without column",
        rates(*IMPORTED, "--question-column", "q"),
        ("labels.parquet", "'q'"),
    ),
]
