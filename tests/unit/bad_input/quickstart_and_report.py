"""Mistakes with the quickstart and its questions, with `watch`, and with the report of a run."""

from __future__ import annotations

from pathlib import Path

from tests.unit.bad_input.case import Case, script, tool


def arithmetic(*arguments: str):
    return tool("build_arithmetic", "--output", "task", "--cache", "cache", *arguments)


QUICKSTART = [
    Case("pool", arithmetic("--pool", "w"), ("--pool", "'w'", "choose from")),
    Case("size no number", arithmetic("--train-size", "many"), ("--train-size", "'many'")),
    Case("size 0", arithmetic("--train-size", "0"), ("--train-size 0", "must be 1 to 1000000")),
    Case("more than there are", arithmetic("--train-size", "99999999"), ("--train-size 99999999", "must be 1 to 1000000")),
    Case("heads", arithmetic("--width", "64", "--heads", "5"), ("width 64", "heads (5)", "change one")),
    Case("output is a file", tool("build_arithmetic", "--output", "own.jsonl"), ("--output 'own.jsonl'", "give a folder")),
    Case("no permission for a task", tool("build_arithmetic", "--output", "/sys/task"), ("no permission: '/sys/task'",)),
    Case("threads", arithmetic("--threads", "0"), ("--threads 0", "must be 1 to")),
    Case(
        "watch nothing", tool("verl_dots.cpu.watch", "--out", "o", "--steps", "1"), ("no command given", "put it after --")
    ),
    Case("watch steps", tool("verl_dots.cpu.watch", "--out", "o", "--steps", "x", "--", "true"), ("--steps", "'x'")),
    Case(
        "method",
        script("recipes/quickstart_cpu.sh", METHOD="dapo"),
        ("METHOD 'dapo' is unknown", "use grpo, dots, rr or dots_rr"),
    ),
    Case(
        "preset",
        script("recipes/quickstart_cpu.sh", PRESET="best"),
        ("PRESET 'best' is unknown", "use default, paper or released"),
    ),
]


REPORTS = [
    Case("report of nothing", tool("verl_dots.report", "no_run"), ("no such file or folder: 'no_run'",)),
    Case(
        "report of a folder without metrics",
        tool("verl_dots.report", "taken"),
        ("no metrics in 'taken'", "give a run folder"),
    ),
    Case(
        "report of text",
        tool("verl_dots.report", "x.jsonl"),
        ("x.jsonl, line 1: not JSON",),
        lambda: Path("x.jsonl").write_text("x\ny\n"),
    ),
    Case("report of questions", tool("verl_dots.report", "own.jsonl"), ("own.jsonl, line 1: no step", "step")),
    Case("report without run", tool("verl_dots.report"), ("RUN", "--help")),
]
