"""Difficulty -> probabilities -> questions. Pure functions; every random draw comes from the generator that is passed in.

The rule is `P(q) ~ exp(-|d_q - target| / temperature)`, drawn without replacement (arXiv 2506.05316, section 3.2), where
difficulty `d` is the failure rate. A group of `G` rollouts teaches in proportion to `p (1 - p) (1 - 1/G)`, largest at .5;
that holds for advantages `r - mean`, division by the standard deviation makes it nearly flat around .5. Neither counts what
is left to learn, `1 - p`, which is why the default target is a little above .5.

Drawing without replacement uses the Gumbel top-k trick: the order of `log P + Gumbel noise`, largest first, is
distributed exactly as one-by-one draws from `P` renormalised over what is left.

Shapes: N questions.
"""

from __future__ import annotations

import math

import numpy as np


def selection_probabilities(difficulty: np.ndarray, target: float, temperature: float) -> np.ndarray:
    """The selection distribution over the pool.

    Args:
        difficulty: predicted failure rates in [0, 1], shape (N,), N >= 1.
        target: failure rate to aim at, in [0, 1], the paper's alpha.
        temperature: spread around the target, > 0, the paper's tau. Any positive float works: a small one leaves the
            nearest questions alone (ties share evenly), a large one is uniform.

    Returns:
        Probabilities, float64 (N,), summing to 1. Far questions may underflow to 0: `selection_order` still ranks them.

    Raises:
        ValueError: no question, a difficulty or target that is NaN or outside [0, 1], or a temperature not above 0.
    """
    weights = np.exp(_log_weights(_distance(difficulty, target), temperature))  # (N,)
    return weights / weights.sum()


def select_questions(probabilities: np.ndarray, size: int, generator: np.random.Generator) -> np.ndarray:
    """Draw `size` different questions, in draw order.

    Questions of probability 0 are drawn only after all others, in uniformly random order, so any size up to N works.
    The generator advances by the same amount whatever `size` is.

    Args:
        probabilities: non-negative and finite, shape (N,); they need not sum to 1.
        size: 0 to N.
        generator: source of the randomness.

    Returns:
        Indices into `probabilities`, int64 (size,).

    Raises:
        ValueError: `size` outside [0, N], or a probability that is negative or not finite.
    """
    probabilities = np.asarray(probabilities, dtype=np.float64)
    assert probabilities.ndim == 1, f"probabilities of shape (N,) wanted, got {probabilities.shape}"
    _check_values(probabilities, "probability", high=np.finfo(np.float64).max, allowed="non-negative and finite")
    if not 0 <= size <= len(probabilities):
        raise ValueError(f"cannot select {size} different questions: the pool has {len(probabilities)}")
    noise = generator.gumbel(size=len(probabilities))
    with np.errstate(divide="ignore"):
        score = np.log(probabilities) + noise  # (N,), -inf where the probability is 0
    return np.lexsort((-noise, -score))[:size].astype(np.int64)


def selection_order(difficulty: np.ndarray, target: float, temperature: float, generator: np.random.Generator) -> np.ndarray:
    """The whole pool in the order in which `select_questions` would draw it, without its underflow.

    Scores stay in log space, so at temperature 1e-3 a question 0.9 from the target, whose probability is 0 in floating
    point, still comes after one at 0.8. Where even the scores coincide, distance decides, then chance.

    Args and errors as in `selection_probabilities`.

    Returns:
        A permutation of 0..N-1, int64 (N,).
    """
    distance = _distance(difficulty, target)  # (N,)
    noise = generator.gumbel(size=len(distance))
    score = _log_weights(distance, temperature) + noise
    return np.lexsort((-noise, distance, -score)).astype(np.int64)


def selection_entropy(probabilities: np.ndarray) -> float:
    """Entropy of the distribution divided by that of the uniform one: 0 one question only, 1 uniform (or N = 1)."""
    probabilities = np.asarray(probabilities, dtype=np.float64)
    if len(probabilities) == 1:
        return 1.0
    positive = probabilities[probabilities > 0]
    entropy = -(positive * np.log(positive)).sum() / math.log(len(probabilities))
    return float(np.clip(entropy, 0.0, 1.0))  # rounding only


def _distance(difficulty: np.ndarray, target: float) -> np.ndarray:
    """Distance to the target beyond that of the nearest question, (N,): what selection depends on."""
    difficulty = np.asarray(difficulty, dtype=np.float64)
    assert difficulty.ndim == 1, f"difficulty of shape (N,) wanted, got {difficulty.shape}"
    if len(difficulty) == 0:
        raise ValueError("the pool of questions is empty: nothing can be selected")
    _check_values(difficulty, "difficulty", high=1.0, allowed="failure rates in [0, 1]")
    if not 0.0 <= target <= 1.0:
        raise ValueError(f"target {target} is not allowed: use a failure rate in [0, 1]")
    distance = np.abs(difficulty - target)
    return distance - distance.min()


def _log_weights(distance: np.ndarray, temperature: float) -> np.ndarray:
    if not temperature > 0:  # also catches NaN
        raise ValueError(f"temperature {temperature} is not allowed: use a number above 0")
    with np.errstate(over="ignore"):  # a distance far beyond a tiny temperature has weight exp(-inf) = 0
        return -distance / temperature


def _check_values(values: np.ndarray, name: str, high: float, allowed: str) -> None:
    wrong = np.flatnonzero(~((values >= 0) & (values <= high)))  # also catches NaN
    if len(wrong):
        shown = ", ".join(f"{values[i]} at {i}" for i in wrong[:3]) + (", ..." if len(wrong) > 3 else "")
        raise ValueError(f"{len(wrong)} of {len(values)} {name} values are not {allowed}: {shown}")
