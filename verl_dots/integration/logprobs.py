"""Log-probs of the policies that a step needs: old, behaviour, reference; and the weights of replayed rows.

The mixin `BehaviourLogProbs` overrides the log-prob methods of verl's trainer; the functions below do its work. Two facts of
verl 0.9.1 make a part of a batch special: the rows must divide by the data-parallel ranks, and by the micro-batch that
`infer_batch` takes from the batch's `extra_info` when it is there (verl/workers/engine_workers.py). The actor and the
reference model may differ in both.

What verl says of the rollout engine (`training/rollout_probs_diff_*`, `training/rollout_actor_probs_pearson_corr`,
`rollout_corr/*`) compares log-probs of today's policy with those the engine gave when it wrote the row. On replayed rows
that is mostly the way the policy has come since, so these metrics are those of the fresh rows. Two exceptions: with
`replay.behaviour: rollout` `rollout_corr/*` describes the correction that is in force, on every row it corrects; and in
bypass mode the actor's own `actor/rollout_corr/*` comes from workers, which cannot tell replayed rows from fresh ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl import DataProto
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
from verl.utils.debug.metrics import calculate_debug_metrics

from verl_dots.integration import check, rows, store
from verl_dots.integration.store import Rows
from verl_dots.integration.worker import MAX_WEIGHT
from verl_dots.loss import summarise_weights

ENGINE_DIFFERENCE = ("training/rollout_probs_diff_", "training/rollout_actor_probs_")
ENGINE_CORRECTION = ("rollout_corr/",)
COMPARED = (rows.OLD_LOG_PROBS, rows.ROLLOUT_LOG_PROBS, rows.RESPONSE_MASK, "responses")


class BehaviourLogProbs:
    """Put before verl's trainer among the bases; uses `dots`, `form` and `now` of DotsTrainer."""

    def _compute_old_log_prob(self, batch: Rows, metrics: dict) -> Rows:
        """verl PPOTrainer._compute_old_log_prob: also behaviour log-probs, and the weights of replayed rows.

        With `replay.behaviour: rollout` verl's own rollout correction does all of it.
        """
        replay = self.dots.replay
        if not replay.enable or replay.behaviour == "rollout":
            batch = super()._compute_old_log_prob(batch, metrics)
            self._on_fresh_rows(metrics, ENGINE_DIFFERENCE, calculate_debug_metrics)
            return batch
        replayed = self.now.replayed_keys
        fresh = [key for key in batch.keys if key not in replayed]
        if self.form == check.BEHAVIOUR:  # replayed rows keep the log-probs of the policy that wrote them
            part = batch.select_keys(fresh)
            self._on_part(part, lambda part: super(BehaviourLogProbs, self)._compute_old_log_prob(part, metrics))
            self._remember_behaviour(batch, [])
            return batch
        batch = super()._compute_old_log_prob(batch, metrics)
        self._on_fresh_rows(metrics, ENGINE_DIFFERENCE, calculate_debug_metrics)
        self._remember_behaviour(batch, fresh)
        batch, weight_metrics = write_weights(self.actor_rollout_wg, batch, replayed, replay.max_weight)
        metrics.update(weight_metrics)
        return batch

    def _remember_behaviour(self, batch: Rows, fresh: list[str]) -> None:
        """Store the log-probs of the policy that wrote the rows: fresh ones, and what enters the replay untrained."""
        kept = self.now.untrained_keys
        if kept:
            part = store.lookup(kept, batch.extra_info)
            self._on_part(part, lambda part: super(BehaviourLogProbs, self)._compute_old_log_prob(part, {}))
        if self.form == check.DECOUPLED and fresh + kept:
            store.copy_field(fresh + kept, rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS)

    def _compute_ref_log_prob(self, batch: Rows, metrics: dict) -> Rows:
        """verl PPOTrainer._compute_ref_log_prob on fresh rows: that policy never changes, replayed rows have theirs."""
        replayed = self.now.replayed_keys
        fresh = [key for key in batch.keys if key not in replayed]
        part = store.lookup(fresh + self.now.untrained_keys, batch.extra_info)
        compute = super()._compute_ref_log_prob
        self._on_part(part, lambda part: compute(part, metrics), reference=not self.ref_in_actor)
        return batch

    def _compute_advantage(self, batch: Rows, metrics: dict) -> Rows:
        """verl PPOTrainer._compute_advantage: `rollout_corr/*` of fresh rows, where it is no more than a diagnosis."""
        batch = super()._compute_advantage(batch, metrics)
        if self.form == check.DECOUPLED and self.dots.replay.behaviour == "trainer":
            correction = self.config.algorithm.get("rollout_correction")
            self._on_fresh_rows(
                metrics, ENGINE_CORRECTION, lambda data: compute_rollout_correction_and_add_to_batch(data, correction)[1]
            )
        self.now.compared = None  # its last use; the driver need not hold it during the update
        return batch

    def _on_part(self, part: Rows, compute: Callable[[Rows], object], *, reference: bool = False) -> None:
        """`compute` on some rows only, with ranks and micro-batches of the actor, or of a reference model of its own."""
        if not part.keys:
            return
        config = self.config.actor_rollout_ref
        on_part(
            part,
            compute,
            ranks=data_parallel(self.ref_policy_wg, "ref") if reference else data_parallel(self.actor_rollout_wg, "actor"),
            micro_batch_size=micro_batch_size(config.ref if reference else config.rollout),
            eos_token_id=self.tokenizer.eos_token_id,
        )

    def _on_fresh_rows(self, metrics: dict, prefixes: tuple[str, ...], compute: Callable[[DataProto], dict]) -> None:
        """Where verl computed metrics of these prefixes on all rows, replace them by those of the fresh rows, if any."""
        wrong = [name for name in metrics if name.startswith(prefixes)]
        if not self.now.batch.replayed or not wrong:
            return
        for name in wrong:
            del metrics[name]
        fresh = [key for group in self.now.batch.fresh for key in group.keys]
        if not fresh:
            return
        if self.now.compared is None:  # read once a step: after tokens, the most that our code moves
            self.now.compared = DataProto(batch=store.read(fresh, COMPARED).to_padded_tensor())
        metrics.update(compute(self.now.compared))


def data_parallel(worker_group, mesh: str) -> int:
    """Data-parallel size of a model of verl's workers, asked for as verl's dispatch does before the first call."""
    if mesh not in worker_group._dispatch_info:
        worker_group._dispatch_info[mesh] = worker_group._query_dispatch_info(mesh)
    return max(worker_group._dispatch_info[mesh]) + 1


def micro_batch_size(settings: Mapping[str, Any]) -> int | None:
    """Rows of one log-prob pass on one rank, from verl's block `rollout` (the actor) or `ref`; None: batches by tokens."""
    return None if settings.get("log_prob_use_dynamic_bsz") else settings.get("log_prob_micro_batch_size_per_gpu")


def padded_size(size: int, ranks: int, micro_batch_size: int | None) -> tuple[int, int | None]:
    """Rows to pad `size` rows to, and the micro-batch that divides each rank's share of them.

    As few passes as `micro_batch_size` allows, of equal size, so that there is less than one padding row a pass and rank
    beside what the ranks need: 1,192 rows on 8 ranks are 149 each; at most 16 a pass they become 10 passes of 15.

        >>> padded_size(1192, 8, 16)
        (1200, 15)
        >>> padded_size(1192, 8, None)
        (1192, None)
    """
    share = -(-size // ranks)
    if micro_batch_size is None:
        return share * ranks, None
    passes = -(-share // micro_batch_size)
    micro_batch = -(-share // passes)
    return passes * micro_batch * ranks, micro_batch


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
        compute: called with the handle of these rows, padded where they do not divide.
        ranks: data-parallel size.
        micro_batch_size: largest one allowed; None with dynamic batch sizes.
        eos_token_id: for verl's padding rows.
    """
    keys = set(part.keys)
    size, micro_batch = padded_size(len(keys), ranks, micro_batch_size)
    padded = upsample_batch_to_divisible_size(part, size, eos_token_id)
    if micro_batch is not None:
        padded.extra_info["micro_batch_size_per_gpu"] = micro_batch
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
