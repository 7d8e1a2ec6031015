"""verl_dots.loss: known values, masks, extreme ratios, dtypes and gradients of both forms."""

import math

import numpy as np
import pytest
import torch

from tests.unit.loss.conftest import HIGH, LOW, one
from verl_dots.loss import behaviour_clip_loss, decoupled_clip_loss, replay_weight


def test_known_values():
    """Ratios .5, 1.1, 2 and 2 against clip [.8, 1.28], advantages of both signs."""
    pi, zero, advantages = one([0.5, 1.1, 2.0, 2.0]).log(), one([0.0] * 4), one([1.0, 1.0, 1.0, -1.0])
    loss, metrics = behaviour_clip_loss(pi, zero, advantages, torch.ones(1, 4), LOW, HIGH)
    np.testing.assert_allclose(loss, [[-0.5, -1.1, -1.28, 2.0]])
    assert metrics["clip_fraction"] == 0.25  # the third: at A < 0 a large ratio is not clipped
    assert metrics["approx_kl"] == pytest.approx(-math.log(0.5 * 1.1 * 4) / 4)
    weighted, _ = decoupled_clip_loss(
        pi, zero, one([0.5, 3.0, 1.0, 2.0]), advantages, torch.ones(1, 4), LOW, HIGH, max_weight=2.0
    )
    np.testing.assert_allclose(weighted, [[-0.25, -2.2, -1.28, 4.0]])


def test_there_is_no_dual_clip():
    loss, _ = behaviour_clip_loss(one([math.log(1000)]), one([0.0]), one([-1.0]), one([1]), LOW, HIGH)
    assert loss.item() == pytest.approx(1000)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e300])
def test_what_lies_outside_the_mask_is_never_looked_at(garbage):
    clean, dirty, mask = [-1.0, -0.5, -2.0], [-1.0, garbage, -2.0], one([1, 0, 1])

    def run(values):
        pi, others = one(values).requires_grad_(), one(values)
        weight = replay_weight(others, others - 0.3, mask, None)
        results = [
            behaviour_clip_loss(pi, others - 0.1, others, mask, LOW, HIGH),
            decoupled_clip_loss(pi, others - 0.1, weight, others, mask, LOW, HIGH, max_weight=2.0),
            decoupled_clip_loss(pi, others - 0.1, others.exp(), others, mask, LOW, HIGH),
        ]
        gradients = [torch.autograd.grad(loss.sum(), pi)[0] for loss, _ in results]
        return results, gradients, weight

    (results, gradients, weight), (expected, expected_gradients, expected_weight) = run(dirty), run(clean)
    for (loss, metrics), (want, want_metrics) in zip(results, expected, strict=True):
        assert torch.equal(loss, want) and loss[0, 1] == 0
        assert metrics == want_metrics
    assert all(torch.equal(a, b) and a[0, 1] == 0 for a, b in zip(gradients, expected_gradients, strict=True))
    assert torch.equal(weight, expected_weight) and weight[0, 1] == 1


def test_an_empty_mask_is_0_with_finite_metrics():
    loss, metrics = behaviour_clip_loss(one([-1.0]), one([-1.0]), one([1.0]), one([0]), LOW, HIGH)
    assert loss.item() == 0
    assert metrics == {"clip_fraction": 0.0, "approx_kl": 0.0}


@pytest.mark.parametrize("far", [-1e4, 1e4])
def test_extreme_ratios_stay_finite(far):
    pi = one([far]).requires_grad_()
    for advantage in (1.0, -1.0):
        loss, metrics = behaviour_clip_loss(pi, one([0.0]), one([advantage]), one([1]), LOW, HIGH)
        assert torch.isfinite(loss).all() and torch.isfinite(torch.autograd.grad(loss.sum(), pi)[0]).all()
        assert all(math.isfinite(value) for value in metrics.values())
    assert torch.isfinite(replay_weight(one([far]), one([0.0]), one([1]), None)).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
def test_dtypes_are_kept_and_any_mask_will_do(dtype, mask_dtype):
    x, mask = torch.zeros(2, 3, dtype=dtype), torch.ones(2, 3, dtype=mask_dtype)
    weight = replay_weight(x, x, mask, 0.5)
    losses = [
        behaviour_clip_loss(x, x, x, mask, LOW, HIGH)[0],
        decoupled_clip_loss(x, x, weight, x, mask, LOW, HIGH, max_weight=2.0)[0],
    ]
    assert {tensor.dtype for tensor in (weight, *losses)} == {dtype}
    assert {tensor.shape for tensor in (weight, *losses)} == {(2, 3)}


def test_only_pi_has_a_gradient_and_metrics_are_plain_numbers():
    pi = one([-1.0]).requires_grad_()
    loss, metrics = decoupled_clip_loss(pi, one([-1.1]), one([1.5]), one([1.0]), one([1]), LOW, HIGH)
    assert loss.requires_grad
    assert {type(value) for value in metrics.values()} == {float}
