"""RolloutReplayWorker: verl's FSDP actor/rollout hybrid engine plus the weights of replayed rows.

The weights are computed where verl's dispatch puts the rows, one shard per data-parallel rank, and go straight back to the
row store: the driver never sees a token.
"""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import make_nd_compute_dataproto_dispatch_fn, register
from verl.utils import tensordict_utils as tu
from verl.workers.engine_workers import ActorRolloutRefWorker

from verl_dots.integration import policy_loss, rows
from verl_dots.loss import replay_weight, weight_sums

MAX_WEIGHT = "dots_max_weight"
"""Key in a batch's `extra_info`: workers never see the `dots` block, so the cap travels with the batch."""


class RolloutReplayWorker(ActorRolloutRefWorker):
    """verl/workers/engine_workers.py, class ActorRolloutRefWorker (0.9.1), with one more remote method."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        policy_loss.accept_replayed_rows()

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    def compute_replay_weights(self, data: TensorDict) -> TensorDict:
        """Per-token weight `min(exp(old - behaviour), max_weight)` of the rows on this rank.

        Args:
            data: jagged `old_log_probs`, `behaviour_log_probs` and `response_mask` (rows, response); `dots_max_weight`.

        Returns:
            jagged `rollout_is_weights` (rows, response), and `dots_weight_sums` (rows, 5), see `loss.weight_sums`.
        """
        max_weight = tu.get_non_tensor_data(data, MAX_WEIGHT, None)
        old, behaviour, mask = (
            data[name].to_padded_tensor(0.0)  # (rows, longest response)
            for name in (rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS, rows.RESPONSE_MASK)
        )
        log_cap = None if max_weight is None else math.log(max_weight)
        untruncated = replay_weight(old, behaviour, mask, None)
        weight = replay_weight(old, behaviour, mask, log_cap)
        lengths = data[rows.OLD_LOG_PROBS].offsets().diff().tolist()
        jagged = torch.nested.as_nested_tensor(
            [row[:length] for row, length in zip(weight, lengths, strict=True)], layout=torch.jagged
        )
        return tu.get_tensordict({rows.WEIGHTS: jagged, rows.WEIGHT_SUMS: weight_sums(untruncated, weight, mask)})
