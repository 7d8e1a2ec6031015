"""The off-policy losses, token by token, written from their formulas. Slow; only tests use them.

pi, old, mu: log-probs of one token under the trained policy, the policy at the start of the step, the behaviour policy.
Each function returns (loss, derivative of the loss with respect to pi's log-prob).
"""

import math

import numpy as np


def clip(x: float, low: float, high: float) -> float:
    return max(low, min(x, high))


def behaviour_token(pi: float, mu: float, advantage: float, clip_low: float, clip_high: float) -> tuple[float, float]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) with r = pi / mu."""
    r = math.exp(pi - mu)
    plain, clipped = r * advantage, clip(r, 1 - clip_low, 1 + clip_high) * advantage
    return -min(plain, clipped), (-plain if plain <= clipped else 0.0)


def decoupled_token(
    pi: float, old: float, mu: float, advantage: float, clip_low: float, clip_high: float, max_weight: float = math.inf
) -> tuple[float, float]:
    """-min((pi/mu) A, clip(pi/mu, (old/mu)(1 - low), (old/mu)(1 + high)) A), with old/mu cut to max_weight."""
    weight = math.exp(old - mu)
    factor = min(weight, max_weight) / weight
    r = math.exp(pi - mu)
    plain, clipped = r * advantage, clip(r, weight * (1 - clip_low), weight * (1 + clip_high)) * advantage
    return -factor * min(plain, clipped), (-factor * plain if plain <= clipped else 0.0)


def per_token(function, mask: np.ndarray, *arrays: np.ndarray, **options) -> tuple[np.ndarray, np.ndarray]:
    """Apply a token function under the mask: (loss, gradient), each of the mask's shape and 0 outside it."""
    loss, gradient = np.zeros(mask.shape), np.zeros(mask.shape)
    for place in zip(*np.nonzero(mask), strict=True):
        loss[place], gradient[place] = function(*(float(array[place]) for array in arrays), **options)
    return loss, gradient


def weight_metrics(weights: list[float], max_weight: float) -> dict[str, float]:
    """Metrics of the weights of some tokens, given before truncation."""
    used = [min(w, max_weight) for w in weights]
    return {
        "replay/weight_mean": sum(used) / len(used),
        "replay/weight_max": max(weights),
        "replay/truncated_share": sum(w > max_weight for w in weights) / len(weights),
        "replay/effective_sample_size": sum(used) ** 2 / (len(used) * sum(w * w for w in used)),
    }
