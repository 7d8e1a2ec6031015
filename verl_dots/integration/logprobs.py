"""Log-probs of the policies that a step needs: old, behaviour, reference; and the weights of replayed rows.

The mixin `BehaviourLogProbs` overrides the log-prob methods of verl's trainer; the functions below do its work. Two facts of
verl 0.9.1 make a part of a batch special: the rows must divide by the data-parallel ranks, and by the micro-batch that
`infer_batch` takes from the batch's `extra_info` when it is there (verl/workers/engine_workers.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size

from verl_dots.integration import check, rows, store
from verl_dots.integration.store import Rows
from verl_dots.integration.worker import MAX_WEIGHT
from verl_dots.loss import summarise_weights


class BehaviourLogProbs:
    """Put before verl's trainer among the bases; uses `dots`, `form` and `now` of DotsTrainer."""

    def _compute_old_log_prob(self, batch: Rows, metrics: dict) -> Rows:
        """verl PPOTrainer._compute_old_log_prob: also behaviour log-probs, and the weights of replayed rows.

        With `replay.behaviour: rollout` verl's own rollout correction does all of it.
        """
        replay = self.dots.replay
        if not replay.enable or replay.behaviour == "rollout":
            return super()._compute_old_log_prob(batch, metrics)
        replayed = self.now.replayed_keys
        fresh = [key for key in batch.keys if key not in replayed]
        if self.form == check.BEHAVIOUR:  # replayed rows keep the log-probs of the policy that wrote them
            part = batch.select_keys(fresh)
            self._on_part(part, lambda part: super(BehaviourLogProbs, self)._compute_old_log_prob(part, metrics))
            self._remember_behaviour(batch, [])
            return batch
        batch = super()._compute_old_log_prob(batch, metrics)
        self._remember_behaviour(batch, fresh)
        batch, weight_metrics = write_weights(self.actor_rollout_wg, batch, replayed, replay.max_weight)
        metrics.update(weight_metrics)
        return batch

    def _remember_behaviour(self, batch: Rows, fresh: list[str]) -> None:
        """Store the log-probs of the policy that wrote the rows: fresh ones, and kept reference groups of this step."""
        kept = self.now.kept_reference_keys
        if kept:
            part = store.lookup(kept, batch.extra_info)
            self._on_part(part, lambda part: super(BehaviourLogProbs, self)._compute_old_log_prob(part, {}))
        if self.form == check.DECOUPLED and fresh + kept:
            store.copy_field(fresh + kept, rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS)

    def _compute_ref_log_prob(self, batch: Rows, metrics: dict) -> Rows:
        """verl PPOTrainer._compute_ref_log_prob on fresh rows: that policy never changes, replayed rows have theirs."""
        replayed = self.now.replayed_keys
        fresh = [key for key in batch.keys if key not in replayed]
        part = store.lookup(fresh + self.now.kept_reference_keys, batch.extra_info)
        self._on_part(part, lambda part: super(BehaviourLogProbs, self)._compute_ref_log_prob(part, metrics))
        return batch

    def _on_part(self, part: Rows, compute: Callable[[Rows], object]) -> None:
        if not part.keys:
            return
        rollout = self.config.actor_rollout_ref.rollout
        on_part(
            part,
            compute,
            ranks=max(self.actor_rollout_wg._dispatch_info["actor"]) + 1,
            micro_batch_size=None if rollout.log_prob_use_dynamic_bsz else rollout.log_prob_micro_batch_size_per_gpu,
            eos_token_id=self.tokenizer.eos_token_id,
        )


def on_part(
    part: Rows,
    compute: Callable[[Rows], object],
    *,
    ranks: int,
    micro_batch_size: int | None,
    eos_token_id: int,
) -> None:
    """Run `compute` (a log-prob method of verl's trainer, which writes its result to the store) on some rows only.

    Args:
        part: handle of these rows, at least one; its `extra_info` (temperature, ...) goes along.
        compute: called with the handle of these rows, padded where they do not divide by `ranks`.
        ranks: data-parallel size.
        micro_batch_size: verl's `log_prob_micro_batch_size_per_gpu`; None with dynamic batch sizes.
        eos_token_id: for verl's padding rows.
    """
    keys = set(part.keys)
    padded = upsample_batch_to_divisible_size(part, ranks, eos_token_id)
    padded.extra_info.update(part.extra_info)
    if micro_batch_size is not None:
        padded.extra_info["micro_batch_size_per_gpu"] = math.gcd(len(padded) // ranks, micro_batch_size)
    compute(padded)
    store.clear(set(padded.keys) - keys)


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
