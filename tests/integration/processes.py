"""The processes of a run that a test started, found from its root: what a fault is aimed at."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.integration.runs import stop


def command_line(pid: int) -> str | None:
    """Command line of a process, None where it has ended."""
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") or None
    except (FileNotFoundError, ProcessLookupError):
        return None


def descendants(root: int) -> dict[int, str]:
    """Command line by pid of every living process below `root`."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            stat = (entry / "stat").read_text()
            names[int(entry.name)] = command_line(int(entry.name)) or ""
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended while we looked
        children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: dict[int, str] = {}
    waiting = [root]
    while waiting:
        for pid in children.get(waiting.pop(), []):
            found[pid] = names.get(pid, "")
            waiting.append(pid)
    return found


def send(root: int, actor: str, number: signal.Signals) -> int:
    """Send a signal to the one Ray actor of class `actor` below `root`; returns its pid."""
    matches = [pid for pid, name in descendants(root).items() if f"ray::{actor}" in name]
    assert len(matches) == 1, (actor, sorted(descendants(root).values()))
    os.kill(matches[0], number)
    return matches[0]


def wait_until(condition, process, timeout_s: float = 600.0, every_s: float = 0.02) -> None:
    """Wait until `condition()` holds, while the run lives."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert process.poll() is None, f"the run ended with code {process.returncode} before the fault"
        assert time.monotonic() < deadline, f"no fault within {timeout_s} s"
        time.sleep(every_s)


def end(process) -> None:
    """End a run and all it started, stopped processes too (a stopped one does not notice that Ray is gone)."""
    ours = descendants(process.pid)
    stop(process)
    for pid, name in ours.items():
        if (command_line(pid) or "").startswith(name[:5] or "-"):  # the rest of a Ray worker's name says what it does
            os.kill(pid, signal.SIGKILL)


def ended(process, timeout_s: float) -> tuple[int, float]:
    """Exit code of a run and how long it took to end."""
    start = time.monotonic()
    process.communicate(timeout=timeout_s)
    return process.returncode, time.monotonic() - start
