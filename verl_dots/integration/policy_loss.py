"""Adapters that register our losses with verl's policy-loss table; the arithmetic is in `verl_dots.loss`.

Importing this module registers them. verl calls them in the FSDP worker processes
(verl/workers/utils/losses.py, `ppo_loss`), with `old_log_probs`, `advantages`, `response_mask` and `rollout_is_weights`.
"""

from __future__ import annotations

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss

from verl_dots.integration.check import BEHAVIOUR, DECOUPLED
from verl_dots.loss import behaviour_clip_loss, decoupled_clip_loss

_VERL_NAMES = {"clip_fraction": "actor/pg_clipfrac", "approx_kl": "actor/ppo_kl"}
"""What verl's own losses call the same quantities, so that dashboards keep working."""

_accepted = False


def accept_replayed_rows() -> None:
    """Called by RolloutReplayWorker in its process: only DotsTrainer, which installs it, prepares rows for our losses."""
    global _accepted
    _accepted = True


@register_policy_loss(DECOUPLED)
def dots_decoupled(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config=None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO-clip on pi/old times the weight old/behaviour; all tensors (batch, response)."""
    _refuse_foreign_trainer(DECOUPLED)
    if rollout_is_weights is None:
        raise ValueError(
            "loss_mode=dots_decoupled got no rollout_is_weights: some rows of the batch lack them and TransferQueue then "
            "hands out none; this is a bug of verl-dots unless algorithm.rollout_correction was changed"
        )
    low, high = _clip_range(config)
    loss, metrics = decoupled_clip_loss(log_prob, old_log_prob, rollout_is_weights, advantages, response_mask, low, high)
    return _aggregate(loss, response_mask, loss_agg_mode, config, metrics)


@register_policy_loss(BEHAVIOUR)
def dots_behaviour(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config=None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO-clip on pi/behaviour: the trainer leaves the behaviour policy's log-probs in `old_log_prob`."""
    _refuse_foreign_trainer(BEHAVIOUR)
    low, high = _clip_range(config)
    loss, metrics = behaviour_clip_loss(log_prob, old_log_prob, advantages, response_mask, low, high)
    return _aggregate(loss, response_mask, loss_agg_mode, config, metrics)


def _refuse_foreign_trainer(loss_mode: str) -> None:
    if not _accepted:
        raise ValueError(
            f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode} needs trainer.v1.trainer_mode=dots and "
            "trainer.use_v1=True: another trainer prepares no replayed rows for it"
        )


def _clip_range(config) -> tuple[float, float]:
    """verl's clip_ratio_low/high, which fall back on clip_ratio (core_algos.compute_policy_loss_vanilla)."""
    low = config.clip_ratio if config.clip_ratio_low is None else config.clip_ratio_low
    high = config.clip_ratio if config.clip_ratio_high is None else config.clip_ratio_high
    return low, high


def _aggregate(loss, mask, loss_agg_mode, config, metrics) -> tuple[torch.Tensor, dict[str, float]]:
    """verl's own reduction with its global batch information: the same whatever the micro-batches and ranks."""
    total = agg_loss(loss_mat=loss, loss_mask=mask, loss_agg_mode=loss_agg_mode, **config.global_batch_info)
    return total, {_VERL_NAMES[name]: value for name, value in metrics.items()}
