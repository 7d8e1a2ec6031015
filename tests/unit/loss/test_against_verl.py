"""verl_dots.loss against verl's own: the same loss, gradient and weights, its dual clip apart."""

import math

import numpy as np
import pytest

from tests.unit.loss.conftest import HIGH, LOW, TOLERANCE, tensors, with_gradient
from verl_dots.loss import behaviour_clip_loss, decoupled_clip_loss, replay_weight, summarise_weights, weight_sums

pytestmark = pytest.mark.verl


@pytest.fixture
def vanilla():
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla
    from verl.workers.config import ActorConfig

    def loss(pi, old, advantages, mask, weight=None, dual_clip=1e30):
        config = ActorConfig(
            strategy="fsdp",
            rollout_n=1,
            ppo_micro_batch_size_per_gpu=1,
            clip_ratio_low=LOW,
            clip_ratio_high=HIGH,
            clip_ratio_c=dual_clip,
        )
        return compute_policy_loss_vanilla(old, pi, advantages, mask, "token-mean", config, rollout_is_weights=weight)

    return loss


def random_batch(seed):
    rng = np.random.default_rng(seed)
    shape = (8, 16)
    batch = {name: -rng.exponential(size=shape) for name in ("pi", "old", "mu")}
    return batch | {"advantages": rng.normal(size=shape), "mask": (rng.random(shape) < 0.7).astype(np.int64)}


@pytest.mark.parametrize("seed", range(3))
def test_without_its_dual_clip_verls_loss_is_ours(vanilla, seed):
    batch = random_batch(seed)
    old, mu, advantages, mask = tensors(batch, "old", "mu", "advantages", "mask")
    weight = replay_weight(old, mu, mask, math.log(2.0))
    for ours, theirs in (
        (
            lambda pi: behaviour_clip_loss(pi, mu, advantages, mask, LOW, HIGH),
            lambda pi: vanilla(pi, mu, advantages, mask),
        ),
        (
            lambda pi: decoupled_clip_loss(pi, old, weight, advantages, mask, LOW, HIGH),
            lambda pi: vanilla(pi, old, advantages, mask, weight),
        ),
    ):
        loss, gradient, metrics = with_gradient(ours, batch)
        expected, expected_gradient, expected_metrics = with_gradient(theirs, batch)
        tokens = batch["mask"].sum()
        assert loss.sum() / tokens == pytest.approx(float(expected), rel=1e-6)
        np.testing.assert_allclose(gradient / tokens, expected_gradient, **TOLERANCE)
        assert metrics["clip_fraction"] == pytest.approx(expected_metrics["actor/pg_clipfrac"], rel=1e-6)
        assert metrics["approx_kl"] == pytest.approx(expected_metrics["actor/ppo_kl"], rel=1e-6)


def test_with_its_dual_clip_it_is_not(vanilla):
    batch = random_batch(0)
    pi, old, advantages, mask = tensors(batch, "pi", "old", "advantages", "mask")
    ours = behaviour_clip_loss(pi, old, advantages, mask, LOW, HIGH)[0].sum() / mask.sum()
    assert abs(float(vanilla(pi, old, advantages, mask, dual_clip=3.0)[0]) - float(ours)) > 1e-3


def test_our_weights_are_verls_token_weights():
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

    batch = random_batch(0)
    old, mu, mask = tensors(batch, "old", "mu", "mask")
    theirs, their_metrics = compute_rollout_correction_weights(old - mu, mask, "token", 2.0)
    ours = replay_weight(old, mu, mask, math.log(2.0))
    np.testing.assert_allclose(ours * mask, theirs, **TOLERANCE)
    metrics = summarise_weights(weight_sums(replay_weight(old, mu, mask, None), ours, mask))
    assert metrics["replay/effective_sample_size"] == pytest.approx(their_metrics["rollout_is_eff_sample_size"], rel=1e-5)
