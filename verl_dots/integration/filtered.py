"""What verl's group filter throws away was generated all the same (`algorithm.filter_groups`, possible with selection off).

verl's `ReplayBuffer.sample` (verl/trainer/ppo/v1/replay_buffer.py, 0.9.1) removes such groups, and the surplus of its
refills, before the trainer sees a batch.
"""

from __future__ import annotations

from collections.abc import Callable

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_dots.integration import rows


def count(replay_buffer: ReplayBuffer, record: Callable[[int, int], None]) -> None:
    """Call `record(groups, response_tokens)` whenever `replay_buffer` discards groups of the training partition.

    A group of which nothing is left to discard, because all of its sessions failed, does not count.
    """
    clear = replay_buffer._clear_groups

    def count_and_clear(partition_id: str, uids: set[str]) -> None:
        tags = {key: tag for key, tag in replay_buffer.partitions[partition_id].items() if rows.uid_of(key) in uids}
        if partition_id == rows.PARTITION and tags:
            record(len({rows.uid_of(key) for key in tags}), rows.response_tokens(tags.values()))
        clear(partition_id, uids)

    replay_buffer._clear_groups = count_and_clear
