"""Log-probs of some rows of a batch, computed by verl's own methods; and the bookkeeping of behaviour log-probs and weights.

Two facts of verl 0.9.1 make a part of a batch special: the rows must divide by the data-parallel ranks, and by the
micro-batch that `infer_batch` takes from the batch's `extra_info` when it is there (verl/workers/engine_workers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from verl_dots.integration import rows, store
from verl_dots.integration.store import Rows
from verl_dots.integration.worker import MAX_WEIGHT
from verl_dots.loss import summarise_weights


def on_part(
    batch: Rows,
    keys: Sequence[str],
    compute: Callable[[Rows], object],
    *,
    ranks: int,
    micro_batch_size: int | None,
    eos_token_id: int,
) -> None:
    """Run `compute` (a log-prob method of verl's trainer, which writes its result to the store) on the rows `keys` only.

    Args:
        batch: the batch that holds them; its `extra_info` (temperature, ...) goes along.
        keys: rows to compute; at least one.
        compute: called with the handle of these rows, padded where they do not divide by `ranks`.
        ranks: data-parallel size.
        micro_batch_size: verl's `log_prob_micro_batch_size_per_gpu`; None with dynamic batch sizes.
        eos_token_id: for verl's padding rows.
    """
    part = batch.select_keys(list(keys))
    padded = upsample_batch_to_divisible_size(part, ranks, eos_token_id)
    padded.extra_info.update(batch.extra_info)
    if micro_batch_size is not None:
        padded.extra_info["micro_batch_size_per_gpu"] = math.gcd(len(padded) // ranks, micro_batch_size)
    compute(padded)
    store.clear(set(padded.keys) - set(keys))


def write_weights(worker_group, batch: Rows, replayed: set[str], max_weight: float | None) -> tuple[Rows, dict[str, float]]:
    """Let the workers write the replay weights of every row, and read back how large they are on the replayed ones.

    Every row gets the field: TransferQueue hands out only fields that all requested rows have.

    Returns:
        A handle without a field list, so that workers fetch the weights too; metrics of the replayed tokens.
    """
    request = store.handle(batch.keys, batch.tags, {MAX_WEIGHT: max_weight})
    request.fields = [rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS, rows.RESPONSE_MASK]
    output = worker_group.compute_replay_weights(request)
    assert len(output) == len(batch), (len(output), len(batch))
    keys = [key for key in batch.keys if key in replayed]
    metrics = summarise_weights(store.row_sums(keys, rows.WEIGHT_SUMS)) if keys else {}
    return store.handle(batch.keys, batch.tags, batch.extra_info), metrics
