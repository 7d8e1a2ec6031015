"""Bounds on verl's waits: for rollouts, and for the answers of its row store.

verl's `ReplayBuffer.sample` (verl/trainer/ppo/v1/replay_buffer.py, 0.9.1) polls until every submitted prompt is finished or
failed. A prompt never is when its reward function or rollout engine hangs, or when the agent-loop worker that serves it
dies: the worker's tasks die with it and nobody marks them as failed. Left alone, a run then waits for ever.

TransferQueue (0.1.11) sends its requests over ZMQ. When the controller has died, or the Ray node it was on, no answer comes
and its clients wait for ever; for a storage unit they give up after 200 s, request by request.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_dots.files import one_line

PING_EVERY_S = 10.0
"""Seconds between two looks whether the agent-loop workers and the store's processes are alive."""
LAST_WORDS_S = 2.0
"""Seconds until Ray has carried what this process printed to the driver."""


def bound(
    replay_buffer: ReplayBuffer,
    limit_s: float | None,
    workers: Callable[[], Sequence],
    describe: Callable[[str], str],
) -> None:
    """Make `replay_buffer.sample` raise instead of waiting for ever.

    Args:
        replay_buffer: verl's; its method `_wait_for_next_poll`, which sleeps between two polls, gets a check in front.
        limit_s: seconds without any progress (a prompt started, a rollout finished) after which to give up; None: never.
        workers: handles of the agent-loop workers; asked for while waiting, since verl makes them late.
        describe: uid of a prompt -> how to call it in the error.

    Raises:
        RuntimeError: from `sample`: an agent-loop worker has died, or `limit_s` passed without progress.
    """
    watch = _Watch(limit_s, workers, describe)
    sleep = replay_buffer._wait_for_next_poll

    def look_and_sleep(partition_id: str, last_debug_time: float) -> float:
        pending, running = replay_buffer.pending_keys[partition_id], replay_buffer.running_keys[partition_id]
        watch.look((frozenset(pending | running), len(pending), len(replay_buffer.partitions[partition_id])))
        return sleep(partition_id, last_debug_time)

    replay_buffer._wait_for_next_poll = look_and_sleep


@contextlib.contextmanager
def needing(actors: Mapping[str, ray.actor.ActorHandle]) -> Iterator[None]:
    """Inside, the death of one of `actors` (by name) ends this process with one line and exit code 1.

    The process and not the call, because the main thread may be waiting where no exception can reach it. verl's driver then
    ends with an error, and Ray ends the rest of the run.
    """
    left = threading.Event()
    thread = threading.Thread(target=_end_with, args=(actors, left), name="dots-store-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        left.set()


def _end_with(actors: Mapping[str, ray.actor.ActorHandle], left: threading.Event) -> None:
    while not left.wait(PING_EVERY_S):
        for name, actor in actors.items():
            try:
                ray.get(actor.__ray_ready__.remote())
            except ActorUnavailableError:
                continue  # a connection broke; if the actor is gone, the next look says so
            except ActorDiedError as error:
                if left.is_set():  # verl ends them itself once training is over
                    return
                line = f"verl-dots: error: {name} has died ({one_line(error)[:300]}): resume from the last checkpoint"
                print(line, file=sys.stderr, flush=True)
                time.sleep(LAST_WORDS_S)
                os._exit(1)


class _Watch:
    def __init__(self, limit_s: float | None, workers: Callable[[], Sequence], describe: Callable[[str], str]) -> None:
        self._limit_s, self._workers, self._describe = limit_s, workers, describe
        self._seen: tuple | None = None
        self._since = self._pinged = time.monotonic()
        self._pings: list[ray.ObjectRef] = []

    def look(self, seen: tuple[frozenset[str], int, int]) -> None:
        """`seen`: uids of unfinished prompts, how many of them wait to be started, and rows in the store."""
        now = time.monotonic()
        if seen != self._seen:
            self._seen, self._since = seen, now
        if now - self._pinged >= PING_EVERY_S:
            self._pinged = now
            self._ping()
        if self._limit_s is not None and now - self._since >= self._limit_s:
            prompts = sorted(seen[0])
            raise RuntimeError(
                f"no rollout has finished for {now - self._since:.0f} s (dots.stall_timeout_s={self._limit_s:g}) and "
                f"{len(prompts)} prompts still run, first {', '.join(map(self._describe, prompts[:3]))}: the reward "
                "function or the rollout engine hangs, see the log; then resume from the last checkpoint"
            )

    def _ping(self) -> None:
        if not self._pings:
            self._pings = [worker.__ray_ready__.remote() for worker in self._workers()]
        answered, self._pings = ray.wait(self._pings, num_returns=len(self._pings), timeout=0) if self._pings else ([], [])
        try:
            ray.get(answered)
        except ActorUnavailableError:
            return  # a connection broke; if the worker is gone, the next look says so
        except ActorDiedError as error:
            raise RuntimeError(
                f"an agent-loop worker has died ({one_line(error)[:300]}) and its rollouts will never finish: "
                "resume from the last checkpoint"
            ) from error
