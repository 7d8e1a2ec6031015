"""One finding of the doctor, and how findings are printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rich.console import Console
from rich.text import Text

Level = Literal["ok", "warn", "fail"]

_MARKS = {"ok": ("ok", "green"), "warn": ("warning", "yellow"), "fail": ("FAIL", "bold red")}


@dataclass(frozen=True)
class Finding:
    """What was looked at and what it means.

    Attributes:
        level: `ok`; `warn` for what works but may not be meant; `fail` for what ends or hangs the run.
        topic: one or two words that name the part.
        message: what was found, with the values.
        remedy: what to do; every `fail` has one.

    >>> fail("storage", "4,352 rows do not fit 1,000", "set total_storage_size=8000").level
    'fail'
    """

    level: Level
    topic: str
    message: str
    remedy: str = ""

    def __post_init__(self) -> None:
        assert self.remedy or self.level != "fail", f"no remedy for: {self.message}"


def ok(topic: str, message: str) -> Finding:
    """All is well."""
    return Finding("ok", topic, message)


def warn(topic: str, message: str, remedy: str = "") -> Finding:
    """Works, but may not be meant."""
    return Finding("warn", topic, message, remedy)


def fail(topic: str, message: str, remedy: str) -> Finding:
    """Ends or hangs the run."""
    return Finding("fail", topic, message, remedy)


def failed(findings: Iterable[Finding]) -> bool:
    """Whether one of them is a `fail`."""
    return any(finding.level == "fail" for finding in findings)


def show(findings: Iterable[Finding], console: Console) -> None:
    """One line per finding and an indented one per remedy; colours only where there is a terminal."""
    for finding in findings:
        word, colour = _MARKS[finding.level]
        line = Text(f"{word:<8}", style=colour) + Text(f"{finding.topic:<14} ", style="bold") + Text(finding.message)
        console.print(line, soft_wrap=True)
        if finding.remedy:
            console.print(Text(f"{'':<23}-> {finding.remedy}"), soft_wrap=True)
