"""verl_dots.loss: both forms against slow numpy versions written from the paper, and against each other."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import losses as reference
from tests.unit.loss.conftest import HIGH, LOW, TOLERANCE, batches, clips, floats, quick, tensors, with_gradient
from verl_dots.loss import behaviour_clip_loss, decoupled_clip_loss, replay_weight


def ppo_clip(pi, old, advantages, mask, clip_low, clip_high):
    """The textbook form."""
    ratio = torch.exp(pi - old)
    return -torch.min(ratio * advantages, torch.clamp(ratio, 1 - clip_low, 1 + clip_high) * advantages) * mask


@quick
@given(batches(), clips)
def test_behaviour_form(batch, clip):
    mu, advantages, mask = tensors(batch, "mu", "advantages", "mask")
    loss, gradient, _ = with_gradient(lambda pi: behaviour_clip_loss(pi, mu, advantages, mask, **clip), batch)
    expected = reference.per_token(
        reference.behaviour_token, batch["mask"], batch["pi"], batch["mu"], batch["advantages"], **clip
    )
    np.testing.assert_allclose(loss, expected[0], **TOLERANCE)
    np.testing.assert_allclose(gradient, expected[1], **TOLERANCE)


@quick
@given(batches(), clips, st.none() | floats(1.0, 5.0), st.booleans())
def test_decoupled_form(batch, clip, cap, truncate_in_loss):
    """The cap gives the same wherever it is applied: in the loss, or where the weight is written."""
    old, mu, advantages, mask = tensors(batch, "old", "mu", "advantages", "mask")
    log_cap = None if cap is None or truncate_in_loss else math.log(cap)
    weight = replay_weight(old, mu, mask, log_cap)
    loss, gradient, _ = with_gradient(
        lambda pi: decoupled_clip_loss(
            pi, old, weight, advantages, mask, **clip, max_weight=cap if truncate_in_loss else None
        ),
        batch,
    )
    arrays = (batch[name] for name in ("pi", "old", "mu", "advantages"))
    options = clip | {"max_weight": math.inf if cap is None else cap}
    expected = reference.per_token(reference.decoupled_token, batch["mask"], *arrays, **options)
    np.testing.assert_allclose(loss, expected[0], **TOLERANCE)
    np.testing.assert_allclose(gradient, expected[1], **TOLERANCE)


@quick
@given(floats(-3, 0), floats(-3, 0), floats(-3, 0), floats(-3, 3))
def test_the_analytic_gradients_of_the_references_are_their_finite_differences(pi, old, mu, advantage):
    step = 1e-6
    for function, others, anchor in (
        (reference.behaviour_token, (mu,), mu),
        (reference.decoupled_token, (old, mu), old),
    ):
        ratio = math.exp(pi - anchor)
        if min(abs(ratio - 1 + LOW), abs(ratio - 1 - HIGH)) < 1e-3:
            continue  # at the kink there is no derivative
        ends = [function(pi + s, *others, advantage, LOW, HIGH)[0] for s in (-step, step)]
        difference = (ends[1] - ends[0]) / (2 * step)
        assert function(pi, *others, advantage, LOW, HIGH)[1] == pytest.approx(difference, rel=1e-4, abs=1e-6)


@quick
@given(batches(), clips)
def test_when_the_behaviour_policy_is_the_old_one_both_are_ppo_clip(batch, clip):
    old, advantages, mask = tensors(batch, "old", "advantages", "mask")
    weight = replay_weight(old, old, mask, math.log(2.0))
    assert (weight == 1).all()
    want, want_gradient, _ = with_gradient(lambda pi: (ppo_clip(pi, old, advantages, mask, **clip), {}), batch)
    for form in (
        lambda pi: behaviour_clip_loss(pi, old, advantages, mask, **clip),
        lambda pi: decoupled_clip_loss(pi, old, weight, advantages, mask, **clip, max_weight=2.0),
    ):
        loss, gradient, _ = with_gradient(form, batch)
        np.testing.assert_allclose(loss, want, **TOLERANCE)
        np.testing.assert_allclose(gradient, want_gradient, **TOLERANCE)
