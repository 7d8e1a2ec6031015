"""A few comparison workers, shared by the threads of one process.

verl scores answers in an executor's threads inside Ray actors (verl/experimental/reward_loop). There signals do not reach, a
``multiprocessing`` child may be forbidden (daemonic processes), and a fork copies locks that other threads hold. So a worker
is an ordinary child process, spoken to in lines of JSON over pipes: no signals, no pickling, no ``__main__`` imported again.
Pipes must not be shared after a fork, so a forked child starts with no workers.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

STARTUP_SECONDS = 120.0
"""How long the libraries may take to load on a busy machine."""

PATIENCE = 20.0
"""Elapsed time allowed per second of processor time. Reached only if the machine starves the worker."""


class WorkerDied(Exception):
    """The worker ended, or was ended, before it replied."""


class Worker:
    """One worker process; one request at a time."""

    def __init__(self) -> None:
        # Unbuffered: a buffer copied by a fork would be written twice.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "verl_dots.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        self._buffer = b""
        self.last = False
        try:
            self._read(STARTUP_SECONDS)
        except WorkerDied as error:
            # Not a matter of the answer: without this every answer would silently score 0.
            raise RuntimeError(
                f"the answer worker did not start (exit code {self._process.poll()}); "
                f"try: {sys.executable} -m verl_dots.rewards.worker"
            ) from error

    def ask(self, request: dict[str, Any]) -> bool | None:
        """The reply to one request.

        Raises:
            WorkerDied: a limit of time or memory was hit. The worker is gone.
        """
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self.close()
            raise WorkerDied from error
        return self._read(request["seconds"] * PATIENCE + 1.0)

    def _read(self, seconds: float) -> bool | None:
        """One reply within ``seconds`` of elapsed time."""
        deadline = time.monotonic() + seconds
        output = self._process.stdout.fileno()
        waiting = select.poll()  # not select(): a Ray worker may have descriptors above 1,023
        waiting.register(output, select.POLLIN | select.POLLHUP)
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not waiting.poll(left * 1000):
                break
            chunk = os.read(output, 1 << 16)
            if not chunk:
                break
            self._buffer += chunk
        else:
            line, _, self._buffer = self._buffer.partition(b"\n")
            reply = json.loads(line)
            self.last = reply["last"]
            return reply["value"]
        self.close()
        raise WorkerDied

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def _python_path() -> str:
    """``PYTHONPATH`` with which a child finds this package however its parent did (Ray adds to ``sys.path`` only)."""
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))


class Pool:
    """At most ``size`` workers, started when first needed, the most recently used one first."""

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"reward workers must be at least 1, got {size}")
        self._places: queue.LifoQueue[Worker | None] = queue.LifoQueue()
        for _ in range(size):
            self._places.put(None)

    def equal(self, pairs: list[tuple[str, str]], time_limit: float) -> bool | None:
        """Whether one pair of (gold, answer) is equal; None if a limit was hit first."""
        return self._ask({"pairs": pairs, "seconds": time_limit})

    def parses(self, text: str, time_limit: float) -> bool:
        """Whether ``text`` can be read as mathematics within the limit."""
        return self._ask({"parse": text, "seconds": time_limit}) is True

    def _ask(self, request: dict[str, Any]) -> bool | None:
        worker = self._places.get()
        try:
            worker = worker or Worker()
            value = worker.ask(request)
            if worker.last:
                worker.close()
                worker = None
            return value
        except WorkerDied:
            worker = None
            return None
        finally:
            self._places.put(worker)

    def close(self) -> None:
        """End the idle workers."""
        while True:
            try:
                worker = self._places.get_nowait()
            except queue.Empty:
                return
            if worker is not None:
                worker.close()


_pools: dict[int, Pool] = {}
_lock = threading.Lock()


def shared_pool(size: int) -> Pool:
    """The pool of ``size`` workers that the threads of this process share."""
    with _lock:
        if size not in _pools:
            _pools[size] = Pool(size)
        return _pools[size]


def close_all() -> None:
    """End all idle workers of this process."""
    with _lock:
        for each in _pools.values():
            each.close()
        _pools.clear()


def _forget() -> None:
    """In a forked child: the workers and the lock belong to the parent."""
    global _pools, _lock
    _pools, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forget)
atexit.register(close_all)
