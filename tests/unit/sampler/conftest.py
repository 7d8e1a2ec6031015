"""Samplers over made-up questions with a fixed difficulty each, and what a test reads off them."""

import hashlib
import json

import numpy as np

from verl_dots.sampler import DifficultySampler


def make(ids, *, target=0.5, temperature=0.1, refresh_every=2, explore_fraction=0.25, seed=1):
    return DifficultySampler(
        ids,
        target=target,
        temperature=temperature,
        refresh_every=refresh_every,
        explore_fraction=explore_fraction,
        seed=seed,
    )


def names(count):
    return [hashlib.sha256(str(i).encode()).hexdigest()[:32] for i in range(count)]


def guess(question):
    """A fixed difficulty per question, whatever the order of the file."""
    return int(hashlib.sha256(question.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF


def guesses(sampler):
    return np.array([guess(question) for question in sampler.pool])


def ids(draws):
    return [draw.question_id for draw in draws]


def fetch(sampler):
    return next(sampler.batches)


def saved(sampler):
    return json.loads(json.dumps(sampler.state_dict(), allow_nan=False))
