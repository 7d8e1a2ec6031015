"""Every call to TransferQueue, verl's row store; the only module that imports it.

Token tensors of replayed groups stay in the store where the rollout put them. What a replacement of TransferQueue must
offer is what this module uses: rows by text key with tags, named per-token fields that can be added to some rows later, a
read of chosen fields in a given row order, removal by key, and a handle to a batch of rows (`KVBatchMeta`: keys, tags,
fields, extra_info) that verl's workers resolve themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

from verl_dots.integration import rows
from verl_dots.types import Group

Rows = KVBatchMeta

_NOTHING = "dots-nothing-to-clear"


def processes() -> dict[str, ray.actor.ActorHandle]:
    """TransferQueue's controller and the storage units of this run, by name; none of them is replaced when it dies."""
    found = {"TransferQueueController": ray.get_actor("TransferQueueController", namespace="transfer_queue")}
    units = [name for name in ray.util.list_named_actors() if name.startswith("TransferQueueStorageUnit#")]
    return {**found, **{name: ray.get_actor(name) for name in units}}


def handle(keys: Sequence[str], tags: Sequence[dict], extra_info: dict[str, Any] | None = None) -> Rows:
    """A batch of rows for verl's trainer and workers. Without `fields`, workers fetch every field all its rows have."""
    return KVBatchMeta(partition_id=rows.PARTITION, keys=list(keys), tags=list(tags), extra_info=dict(extra_info or {}))


def lookup(keys: Sequence[str], extra_info: dict[str, Any] | None = None) -> Rows:
    """A batch of rows that are in the store, with the tags they have there."""
    tags = row_tags()
    return handle(keys, [tags[key] for key in keys], extra_info)


def read(keys: Sequence[str], fields: Sequence[str]) -> TensorDict:
    """Chosen fields of the rows, in the order of `keys`; a field that some row lacks is left out by TransferQueue."""
    return tq.kv_batch_get(keys=list(keys), partition_id=rows.PARTITION, select_fields=list(fields))


def write(keys: Sequence[str], fields: dict[str, Any] | TensorDict, tags: Sequence[dict] | None = None) -> Rows:
    """Add or replace fields of the rows (and create rows that do not exist); returns the handle with all their fields."""
    values = fields if isinstance(fields, TensorDict) else TensorDict(fields, batch_size=len(keys))
    return tq.kv_batch_put(
        keys=list(keys), partition_id=rows.PARTITION, fields=values, tags=None if tags is None else list(tags)
    )


def clear(keys: Iterable[str]) -> int:
    """Remove rows; TransferQueue refuses an empty list. Returns how many."""
    keys = list(keys)
    if keys:
        tq.kv_clear(keys=keys, partition_id=rows.PARTITION)
    return len(keys)


def keys_to_clear(keys: Sequence[str]) -> list[str]:
    """`keys`, or the key of a row made for the purpose: verl's `fit` clears a list that must not be empty."""
    if keys:
        return list(keys)
    tq.kv_put(key=_NOTHING, partition_id=rows.PARTITION, tag={"status": "success"})
    return [_NOTHING]


def row_tags() -> dict[str, dict[str, Any]]:
    """Every row and prompt of the training partition by key, with its tag."""
    return (tq.kv_list(rows.PARTITION) or {}).get(rows.PARTITION, {})


def check_held(groups: Iterable[Group]) -> None:
    """That the rows of retained groups are still there: a version of verl that clears them otherwise must not go unnoticed.

    Raises:
        RuntimeError: a row is gone.
    """
    held = {key for group in groups for key in group.keys}
    if held and (gone := held - row_tags().keys()):
        raise RuntimeError(
            f"{len(gone)} rows of replayed groups are gone from verl's store (first {min(gone)}): something cleared them, "
            "perhaps this version of verl; set dots.replay.enable=false or use verl 0.9.1"
        )


def rewards(keys: Sequence[str]) -> list[float]:
    """The unscaled reward of each row: verl puts it on the last response token.

    Raises:
        ValueError: a row has none, because the reward function returned None for it, or its reward is NaN or infinite.
    """
    data = read(keys, [rows.REWARD])
    if rows.REWARD not in data.keys():
        raise ValueError("a rollout has no reward: the reward function must return a number for every answer, not None")
    found = [float(row.sum()) for row in data[rows.REWARD].unbind()]
    wrong = next((reward for reward in found if not math.isfinite(reward)), None)
    if wrong is not None:
        raise ValueError(f"a rollout has the reward {wrong}: the reward function must return a finite number")
    return found


def copy_field(keys: Sequence[str], source: str, target: str) -> None:
    """Write field `source` of the rows under the name `target`."""
    write(keys, {target: read(keys, [source])[source]})


def row_sums(keys: Sequence[str], field: str) -> torch.Tensor:
    """A field of equal length in every row as a matrix (len(keys), width); TransferQueue may hand it out as jagged."""
    return torch.stack(list(read(keys, [field])[field].unbind()))
