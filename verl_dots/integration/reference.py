"""Reference rollouts of `reference.mode: fresh`: wait with a time limit, and leave nothing behind that could hang a step.

verl's `ReplayBuffer.sample` waits for ever for a prompt that stays "running", so the wait is our own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection

from verl_dots.integration import rows, store

logger = logging.getLogger(__name__)

TERMINAL = ("finished", "failure")
ABORT_GRACE_S = 60.0
"""Seconds that aborted requests get to return before the rollout servers are taken for dead."""


def wait_for(uids: Collection[str], timeout_s: float, poll_s: float, abort: Callable[[], None]) -> set[str]:
    """Wait until the prompts `uids` are terminal, at most `timeout_s`; then abort the rest and discard their rows.

    Returns:
        The uids that ended in time.

    Raises:
        RuntimeError: aborted requests do not return, so the rollout servers hang and every later step would too.
    """
    done = _poll(uids, timeout_s, poll_s)
    late = set(uids) - done
    if late:
        logger.warning(
            "dots: %d of %d reference questions were not rolled out within dots.reference.timeout_s=%s and are left out",
            len(late), len(uids), timeout_s,
        )  # fmt: skip
        abort()
        stuck = late - _poll(late, ABORT_GRACE_S, poll_s)
        if stuck:
            raise RuntimeError(
                f"{len(stuck)} reference rollouts did not return within {ABORT_GRACE_S:.0f} s after they were aborted: "
                "the rollout servers hang, restart the run from its last checkpoint"
            )
        discard(late)
    return done


def _poll(uids: Collection[str], timeout_s: float, poll_s: float) -> set[str]:
    deadline = time.monotonic() + timeout_s
    while True:
        tags = store.row_tags()
        done = {uid for uid in uids if tags.get(uid, {}).get("status") in TERMINAL}
        if len(done) == len(uids) or time.monotonic() >= deadline:
            return done
        time.sleep(poll_s)


def collect(uids: Collection[str]) -> tuple[list[str], list[dict]]:
    """Keys and tags of the rows of finished prompts; removes the prompts' own status entries, as verl's `sample` does."""
    tags = store.row_tags()
    store.clear(uid for uid in uids if uid in tags)
    found = {key: tag for key, tag in tags.items() if not tag.get("is_prompt") and rows.uid_of(key) in uids}
    return list(found), list(found.values())


def discard(uids: Collection[str]) -> None:
    """Remove prompts and every row of theirs."""
    keys, _ = collect(uids)
    store.clear(keys)
