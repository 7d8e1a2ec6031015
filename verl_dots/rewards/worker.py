"""The worker process: reads one JSON request per line, writes one JSON reply per line.

Started by pool.py as ``python -m verl_dots.rewards.worker``. A comparison can run for ever or ask for all memory there
is (``10^{10^{10}}``), and no exception reaches Python code inside a long multiplication. So the limits are the kernel's:
when a request has used up its processor time the kernel ends the process, and the pool, finding the pipe closed, starts
another. The worker therefore also ends if the process that asked is gone. Processor time, not elapsed time: a busy
machine must not turn right answers into wrong ones.

Request: ``{"pairs": [[gold, pred], ...], "seconds": s}`` (is one pair equal?) or ``{"parse": text, "seconds": s}``.
Reply: ``{"value": true | false | null, "last": bool}``: null where memory ran out, ``last`` if the worker ends now.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

MEMORY_LIMIT = 2 << 30
"""Bytes of address space, after the libraries are loaded."""

MAX_RESIDENT = 1 << 30
"""A worker that has grown beyond this ends after its reply: caches grow, and near the limit right answers would fail."""

MAX_REQUESTS = 20_000


def main() -> None:
    """Serve until the requests end."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever a library prints must not look like a reply
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends this process, whatever the parent does with that signal
    from verl_dots.rewards import equivalence

    equivalence.equal("\\frac{1}{2}", "0.5")  # load what is loaded lazily, outside any time limit
    _limit_memory()
    _send(replies, {"value": True, "last": False})
    for served, line in enumerate(sys.stdin, start=1):
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # at its end SIGPROF ends the process
        value = _answer(equivalence, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = served >= MAX_REQUESTS or _resident() > MAX_RESIDENT or value is None
        _send(replies, {"value": value, "last": last})
        if last:
            return


def _answer(equivalence: Any, request: dict[str, Any]) -> bool | None:
    try:
        if "parse" in request:
            return equivalence.parses(request["parse"])
        return any(equivalence.equal(gold, pred) for gold, pred in request["pairs"])
    except MemoryError:
        return None
    except Exception:  # sympy on hostile input: the answer cannot be compared, so it is not the right one
        return False


def _limit_memory() -> None:
    if sys.platform == "linux":  # macOS does not let a process limit its address space
        used = _pages(0) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_LIMIT, used + MEMORY_LIMIT))


def _resident() -> int:
    """Bytes. Not Linux's ``ru_maxrss``: a child inherits its parent's peak through fork and exec; Ray workers are big."""
    if sys.platform == "linux":
        return _pages(1) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _pages(field: int) -> int:
    """0: address space, 1: resident."""
    with open("/proc/self/statm", encoding="ascii") as statm:
        return int(statm.read().split()[field])


def _send(replies: Any, reply: dict[str, Any]) -> None:
    replies.write(json.dumps(reply) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()
