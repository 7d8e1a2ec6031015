"""Mistakes with data_prep/build_questions.py."""

from __future__ import annotations

from pathlib import Path

from tests.unit.bad_input.case import OUT, Case, cut, tool

OWN = ("jsonl", "--local-file", "own.jsonl", "--question-column", "q", "--answer-column", "a")
MESSAGES, TEXTS = ("--question-column", "prompt"), ("--question-column", "extra_info.question")


def build(*arguments: str):
    return tool("build_questions", *arguments)


BUILD_QUESTIONS = [
    Case("data set unknown", build("maths", *OUT), ("'maths' is unknown", "choose one of", "math500")),
    Case("no output", build("math500"), ("--output", "--help")),
    Case("option misspelt", build(*OWN, *OUT, "--seeed", "1"), ("--seeed", "--help")),
    Case("no own file", build("jsonl", *OUT), ("jsonl needs --local-file",)),
    Case("no question column", build(*OWN[:3], *OUT), ("jsonl needs --question-column",)),
    Case(
        "columns for a known set",
        build("math500", *OUT, "--answer-column", "a"),
        ("--answer-column goes with jsonl", "math500"),
    ),
    Case("own file missing", build("jsonl", "--local-file", "no.jsonl", *OWN[3:], *OUT), ("no such file", "no.jsonl")),
    Case("own file empty", build(*OWN, *OUT), ("'own.jsonl' is empty",), cut("own.jsonl", 0)),
    Case("own file cut off", build(*OWN, *OUT), ("'own.jsonl', line 2 is not JSON",), cut("own.jsonl", 30)),
    Case("own file binary", build(*OWN, *OUT), ("'own.jsonl'", "UTF-8"), lambda: Path("own.jsonl").write_bytes(b"\xff\xfe")),
    Case(
        "column missing",
        build(*OWN[:3], "--question-column", "x", "--answer-column", "a", *OUT),
        ("no column 'x'", "it has a, q"),
    ),
    Case(
        "suffix unknown",
        build("jsonl", "--local-file", "taken", *OWN[3:], *OUT),
        ("'taken' ends in no suffix", "give a .parquet"),
    ),
    Case("output is a folder", build(*OWN, "--output", "taken"), ("output 'taken' is a directory", "give a file name")),
    Case(
        "output is a manifest", build(*OWN, "--output", "x.json"), ("output 'x.json' ends in .json", "choose another suffix")
    ),
    Case(
        "manifest's name taken",
        build(*OWN, "--output", "embeddings.parquet"),
        ("embeddings.json", "give the output", "another name"),
    ),
    Case("none kept", build(*OWN, *OUT, "--max-questions", "0"), ("--max-questions 0", "at least 1")),
    Case("threshold", build(*OWN, *OUT, "--near-threshold", "0"), ("--near-threshold 0", "above 0")),
    Case("levels reversed", build(*OWN, *OUT, "--levels", "5", "3"), ("--levels 5 3", "must not be larger")),
    Case(
        "length no number", build(*OWN, *OUT, "--filter-overlong", "t", "long"), ("--filter-overlong", "'long'", "above 0")
    ),
    Case("nothing to compare with", build(*OWN, *OUT, "--drop-contaminated"), ("--drop-contaminated needs --evaluation",)),
    Case("evaluation missing", build(*OWN, *OUT, "--evaluation", "no.parquet"), ("no such file", "no.parquet")),
    Case(
        "evaluation cut off",
        build(*OWN, *OUT, "--evaluation", "questions.parquet"),
        ("'questions.parquet'", "make it again"),
        cut("questions.parquet", 99),
    ),
    Case(
        "own parquet cut off",
        build("parquet", "--local-file", "labels.parquet", *OWN[3:], *OUT),
        ("'labels.parquet'", "make it again"),
        cut("labels.parquet", 500),
    ),
    Case("no permission", build(*OWN, "--output", "/sys/q.parquet"), ("no permission: '/sys/q.parquet'", "another place")),
    Case("revision of a file", build(*OWN, *OUT, "--revision", "main"), ("--revision main and --local-file exclude",)),
    Case(
        "objects for text",
        build("parquet", "--local-file", "questions.parquet", *MESSAGES, "--answer-column", "reward_model", *OUT),
        ("column 'prompt' holds lists of objects with content, role", "written as column.field"),
    ),
    Case(
        "object for an answer",
        build("parquet", "--local-file", "questions.parquet", *TEXTS, "--answer-column", "reward_model", *OUT),
        ("column 'reward_model' holds objects with ground_truth, style", "written as column.field"),
    ),
    Case("level for a known set", build("math500", *OUT, "--level-column", "l"), ("--level-column goes with jsonl",)),
    Case(
        "not conversations",
        build("orz", "--local-file", "pairs.json", *OUT),
        ("no question of orz is left", "two turns"),
        lambda: Path("pairs.json").write_text('[[1, 2], ["a", "b"], "c", {"0": 1}]'),
    ),
    Case("workers", build(*OWN, *OUT, "--workers", "0"), ("--workers 0", "at least 1")),
]
