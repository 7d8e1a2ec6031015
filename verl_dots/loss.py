"""Policy losses for rollouts that an older policy wrote, and the weights that correct for it. Tensors in, tensors out.

Three policies: `pi` is being trained, `old` is the policy at the start of this step, `mu` (behaviour) wrote the tokens. With
`A` the advantage of the token's group:

* behaviour form (arXiv 2506.05316, section 3.3): `-min(r A, clip(r, 1 - low, 1 + high) A)` with `r = pi / mu`.
* decoupled form (its released code): `-min((pi/mu) A, clip(pi/mu, (old/mu)(1 - low), (old/mu)(1 + high)) A)`, which is
  `(old/mu)` times PPO-clip on `pi/old`: the trust region is around `old`, the weight `old/mu` corrects the expectation.

Both are PPO-clip when `mu` equals `old`. Neither has verl's dual clip: at A < 0 the loss grows with the ratio without bound.
Losses are per token, 0 outside the mask, and not reduced: the caller aggregates. No gradient flows where the clip is active
or where a log-ratio is beyond +-20 (verl clamps it there, core_algos.compute_policy_loss_vanilla, to keep the ratio finite).
What lies outside the mask is never looked at, not even NaN.

Shapes: B rows, T response tokens. Log-probs, advantages and weights are float (B, T); a mask is 0/1 or bool (B, T).
"""

from __future__ import annotations

import torch

LOG_RATIO_BOUND = 20.0
"""Largest |log-ratio| that is exponentiated: e^20 is 5e8."""

WEIGHT_SUMS = ("tokens", "sum", "sum_of_squares", "max_untruncated", "truncated")
"""Columns of `weight_sums`."""


def behaviour_clip_loss(
    log_prob: torch.Tensor,
    behaviour_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO-clip against the policy that wrote the tokens (the paper's loss).

    Args:
        log_prob: log pi of the response tokens, (B, T); the only argument that needs a gradient.
        behaviour_log_prob: log mu, (B, T); of a fresh row it is log old.
        advantages: (B, T).
        mask: tokens that count, (B, T).
        clip_low: the ratio is clipped below 1 - clip_low.
        clip_high: the ratio is clipped above 1 + clip_high.

    Returns:
        Loss per token (B, T), 0 outside the mask; metrics, means over the mask: `clip_fraction`, the share of tokens
        whose clip is active, and `approx_kl`, mean(log mu - log pi).
    """
    return _ppo_clip(log_prob, behaviour_log_prob, advantages, mask.bool(), clip_low, clip_high)


def decoupled_clip_loss(
    log_prob: torch.Tensor,
    old_log_prob: torch.Tensor,
    weight: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
    max_weight: float | None = None,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO-clip against the policy at the start of the step, times a constant weight per token (the released code's loss).

    Args:
        log_prob: log pi of the response tokens, (B, T); the only argument that needs a gradient.
        old_log_prob: log old, (B, T).
        weight: old / mu, (B, T), see `replay_weight`; 1 for fresh rows.
        advantages: (B, T).
        mask: tokens that count, (B, T).
        clip_low: pi/old is clipped below 1 - clip_low.
        clip_high: pi/old is clipped above 1 + clip_high.
        max_weight: weights are cut to this; None: taken as they are.

    Returns:
        As `behaviour_clip_loss`; `approx_kl` is mean(log old - log pi), without the weight.
    """
    mask = mask.bool()
    loss, metrics = _ppo_clip(log_prob, old_log_prob, advantages, mask, clip_low, clip_high)
    if max_weight is not None:
        weight = weight.clamp(max=max_weight)
    return loss * torch.where(mask, weight, 1.0), metrics


def replay_weight(
    old_log_prob: torch.Tensor, behaviour_log_prob: torch.Tensor, mask: torch.Tensor, max_log_ratio: float | None
) -> torch.Tensor:
    """Importance weight of each token, `min(old / mu, exp(max_log_ratio))`, same shape as the inputs.

    Outside the mask it is 1, so that whoever multiplies or averages without the mask does no harm.

    Args:
        old_log_prob: log old.
        behaviour_log_prob: log mu.
        mask: tokens that count.
        max_log_ratio: logarithm of the cap; None: no cap but e^20, which keeps it finite.
    """
    upper = LOG_RATIO_BOUND if max_log_ratio is None else min(max_log_ratio, LOG_RATIO_BOUND)
    log_ratio = (old_log_prob - behaviour_log_prob).clamp(-LOG_RATIO_BOUND, upper)
    return torch.where(mask.bool(), log_ratio.exp(), 1.0)


def weight_sums(untruncated: torch.Tensor, weight: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What `summarise_weights` needs to know of each row, so that rows from any shard can be put together.

    Args:
        untruncated: weights before the cap, (B, T).
        weight: the weights in use, (B, T).
        mask: tokens that count, (B, T).

    Returns:
        float64 (B, 5), columns as in `WEIGHT_SUMS`; a row without tokens is 0.
    """
    mask = mask.bool()
    used = torch.where(mask, weight, 0.0).double()
    before = torch.where(mask, untruncated, 0.0).double()
    columns = [mask.sum(-1), used.sum(-1), (used**2).sum(-1), before.amax(-1), (before > used).sum(-1)]
    return torch.stack([column.double() for column in columns], dim=-1)


def summarise_weights(sums: torch.Tensor) -> dict[str, float]:
    """Metrics of the weights of some rows, named as in `types.METRICS`; empty without a token.

    Args:
        sums: the `weight_sums` of these rows, one below the other, (R, 5), in any order.
    """
    tokens, total, squares, _, truncated = sums.double().sum(0).tolist()
    if tokens == 0:
        return {}
    return {
        "replay/weight_mean": total / tokens,
        "replay/weight_max": float(sums[:, WEIGHT_SUMS.index("max_untruncated")].max()),
        "replay/truncated_share": truncated / tokens,
        "replay/effective_sample_size": total**2 / (tokens * squares),
    }


def _ppo_clip(
    log_prob: torch.Tensor,
    anchor_log_prob: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_low: float,
    clip_high: float,
) -> tuple[torch.Tensor, dict[str, float]]:
    """PPO-clip on pi/anchor (arXiv 1707.06347, equation 7), per token."""
    # Masking the inputs, not only the result, keeps NaN out of the gradient.
    log_ratio = torch.where(mask, log_prob - anchor_log_prob, 0.0).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    advantages = torch.where(mask, advantages, 0.0)
    ratio = log_ratio.exp()
    plain, clipped = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    tokens = mask.sum().clamp(min=1)
    metrics = {
        "clip_fraction": ((clipped < plain).sum() / tokens).item(),
        "approx_kl": (-log_ratio.detach().sum() / tokens).item(),
    }
    return -torch.minimum(plain, clipped), metrics
