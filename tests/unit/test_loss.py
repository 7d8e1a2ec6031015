"""verl_dots.loss: both forms against slow numpy versions, against each other, and against verl's own loss."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.reference import losses as reference
from verl_dots.loss import (
    WEIGHT_SUMS,
    behaviour_clip_loss,
    decoupled_clip_loss,
    replay_weight,
    summarise_weights,
    weight_sums,
)
from verl_dots.types import METRICS

TOLERANCE = {"rtol": 1e-6, "atol": 1e-12}
LOW, HIGH = 0.2, 0.28
quick = settings(deadline=None, max_examples=150)


def floats(low, high):
    return st.floats(low, high, allow_nan=False, allow_subnormal=False)


@st.composite
def batches(draw):
    """Log-probs of the three policies, advantages and mask, each (B, T)."""
    shape = draw(hnp.array_shapes(min_dims=2, max_dims=2, max_side=6))
    batch = {name: draw(hnp.arrays(np.float64, shape, elements=floats(-4, 0))) for name in ("pi", "old", "mu")}
    batch["advantages"] = draw(hnp.arrays(np.float64, shape, elements=st.just(0.0) | floats(-3, 3)))
    batch["mask"] = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    return batch


clips = st.fixed_dictionaries({"clip_low": floats(0.01, 0.9), "clip_high": floats(0.01, 2.0)})


def tensors(batch, *names):
    return [torch.tensor(batch[name]) for name in names]


def with_gradient(function, batch, *others):
    """Loss per token and its gradient with respect to log pi, as numpy."""
    pi = torch.tensor(batch["pi"], requires_grad=True)
    loss, metrics = function(pi, *others)
    loss.sum().backward()
    return loss.detach().numpy(), pi.grad.numpy(), metrics


def ppo_clip(pi, old, advantages, mask, clip_low, clip_high):
    """The textbook form."""
    ratio = torch.exp(pi - old)
    return -torch.min(ratio * advantages, torch.clamp(ratio, 1 - clip_low, 1 + clip_high) * advantages) * mask


class TestAgainstTheFormulas:
    @quick
    @given(batches(), clips)
    def test_behaviour_form(self, batch, clip):
        mu, advantages, mask = tensors(batch, "mu", "advantages", "mask")
        loss, gradient, _ = with_gradient(lambda pi: behaviour_clip_loss(pi, mu, advantages, mask, **clip), batch)
        expected = reference.per_token(
            reference.behaviour_token, batch["mask"], batch["pi"], batch["mu"], batch["advantages"], **clip
        )
        np.testing.assert_allclose(loss, expected[0], **TOLERANCE)
        np.testing.assert_allclose(gradient, expected[1], **TOLERANCE)

    @quick
    @given(batches(), clips, st.none() | floats(1.0, 5.0), st.booleans())
    def test_decoupled_form(self, batch, clip, cap, truncate_in_loss):
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
    def test_the_analytic_gradients_of_the_references_are_their_finite_differences(self, pi, old, mu, advantage):
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
    def test_when_the_behaviour_policy_is_the_old_one_both_are_ppo_clip(self, batch, clip):
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


def one(values):
    return torch.tensor([values], dtype=torch.float64)


class TestProperties:
    def test_known_values(self):
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

    def test_there_is_no_dual_clip(self):
        loss, _ = behaviour_clip_loss(one([math.log(1000)]), one([0.0]), one([-1.0]), one([1]), LOW, HIGH)
        assert loss.item() == pytest.approx(1000)

    @pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf, 1e300])
    def test_what_lies_outside_the_mask_is_never_looked_at(self, garbage):
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

    def test_an_empty_mask_is_0_with_finite_metrics(self):
        loss, metrics = behaviour_clip_loss(one([-1.0]), one([-1.0]), one([1.0]), one([0]), LOW, HIGH)
        assert loss.item() == 0
        assert metrics == {"clip_fraction": 0.0, "approx_kl": 0.0}

    @pytest.mark.parametrize("far", [-1e4, 1e4])
    def test_extreme_ratios_stay_finite(self, far):
        pi = one([far]).requires_grad_()
        for advantage in (1.0, -1.0):
            loss, metrics = behaviour_clip_loss(pi, one([0.0]), one([advantage]), one([1]), LOW, HIGH)
            assert torch.isfinite(loss).all() and torch.isfinite(torch.autograd.grad(loss.sum(), pi)[0]).all()
            assert all(math.isfinite(value) for value in metrics.values())
        assert torch.isfinite(replay_weight(one([far]), one([0.0]), one([1]), None)).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize("mask_dtype", [torch.bool, torch.int64, torch.float32])
    def test_dtypes_are_kept_and_any_mask_will_do(self, dtype, mask_dtype):
        x, mask = torch.zeros(2, 3, dtype=dtype), torch.ones(2, 3, dtype=mask_dtype)
        weight = replay_weight(x, x, mask, 0.5)
        losses = [
            behaviour_clip_loss(x, x, x, mask, LOW, HIGH)[0],
            decoupled_clip_loss(x, x, weight, x, mask, LOW, HIGH, max_weight=2.0)[0],
        ]
        assert {tensor.dtype for tensor in (weight, *losses)} == {dtype}
        assert {tensor.shape for tensor in (weight, *losses)} == {(2, 3)}

    def test_only_pi_has_a_gradient_and_metrics_are_plain_numbers(self):
        pi = one([-1.0]).requires_grad_()
        loss, metrics = decoupled_clip_loss(pi, one([-1.1]), one([1.5]), one([1.0]), one([1]), LOW, HIGH)
        assert loss.requires_grad
        assert {type(value) for value in metrics.values()} == {float}


class TestWeights:
    @quick
    @given(batches(), st.none() | floats(1.0, 5.0))
    def test_a_weight_is_the_truncated_ratio_and_1_outside_the_mask(self, batch, cap):
        old, mu, mask = tensors(batch, "old", "mu", "mask")
        weight = replay_weight(old, mu, mask, None if cap is None else math.log(cap)).numpy()
        expected = np.minimum(np.exp(batch["old"] - batch["mu"]), np.inf if cap is None else cap)
        np.testing.assert_allclose(weight, np.where(batch["mask"] == 1, expected, 1.0), **TOLERANCE)

    @quick
    @given(batches(), floats(1.0, 5.0), st.data())
    def test_sums_of_rows_from_any_shards_give_the_metrics_of_all_tokens(self, batch, cap, data):
        old, mu, mask = tensors(batch, "old", "mu", "mask")
        untruncated, weight = replay_weight(old, mu, mask, None), replay_weight(old, mu, mask, math.log(cap))
        order = data.draw(st.permutations(range(len(mask))))
        shards = np.array_split(np.array(order), data.draw(st.integers(1, 3)))
        parts = [weight_sums(untruncated[shard], weight[shard], mask[shard]) for shard in shards]
        together = torch.cat(parts)
        assert together.shape == (len(mask), len(WEIGHT_SUMS)) and together.dtype == torch.float64
        metrics = summarise_weights(together)
        tokens = np.exp(batch["old"] - batch["mu"])[batch["mask"] == 1]
        if len(tokens) == 0:
            assert metrics == {}
            return
        expected = reference.weight_metrics(tokens.tolist(), cap)
        assert set(metrics) == set(expected) <= set(METRICS)
        for name, value in expected.items():
            if name != "replay/truncated_share" or abs(tokens - cap).min() > 1e-9:  # else rounding decides
                assert metrics[name] == pytest.approx(value, rel=1e-6), name
        assert 0 < metrics["replay/effective_sample_size"] <= 1 + 1e-12

    def test_known_values(self):
        """Weights 1, 3, .5 cut to 2, one token masked."""
        ratio, mask = one([1.0, 3.0, 0.5, 9.0]), one([1, 1, 1, 0])
        sums = weight_sums(ratio, ratio.clamp(max=2.0), mask)
        np.testing.assert_allclose(sums, [[3, 3.5, 5.25, 3, 1]])
        assert summarise_weights(sums) == pytest.approx(
            {
                "replay/weight_mean": 3.5 / 3,
                "replay/weight_max": 3.0,
                "replay/truncated_share": 1 / 3,
                "replay/effective_sample_size": 3.5**2 / (3 * 5.25),
            }
        )

    def test_equal_weights_have_full_effective_sample_size_one_large_weight_has_one_over_n(self):
        for ratio, expected in (([0.3] * 4, 1.0), ([1e8, 1e-8, 1e-8, 1e-8], 0.25)):
            sums = weight_sums(one(ratio), one(ratio), torch.ones(1, 4))
            assert summarise_weights(sums)["replay/effective_sample_size"] == pytest.approx(expected)


@pytest.mark.verl
class TestAgainstVerl:
    @pytest.fixture
    def vanilla(self):
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

    def batch(self, seed):
        rng = np.random.default_rng(seed)
        shape = (8, 16)
        batch = {name: -rng.exponential(size=shape) for name in ("pi", "old", "mu")}
        return batch | {"advantages": rng.normal(size=shape), "mask": (rng.random(shape) < 0.7).astype(np.int64)}

    @pytest.mark.parametrize("seed", range(3))
    def test_without_its_dual_clip_verls_loss_is_ours(self, vanilla, seed):
        batch = self.batch(seed)
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

    def test_with_its_dual_clip_it_is_not(self, vanilla):
        batch = self.batch(0)
        pi, old, advantages, mask = tensors(batch, "pi", "old", "advantages", "mask")
        ours = behaviour_clip_loss(pi, old, advantages, mask, LOW, HIGH)[0].sum() / mask.sum()
        assert abs(float(vanilla(pi, old, advantages, mask, dual_clip=3.0)[0]) - float(ours)) > 1e-3

    def test_our_weights_are_verls_token_weights(self):
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights

        batch = self.batch(0)
        old, mu, mask = tensors(batch, "old", "mu", "mask")
        theirs, their_metrics = compute_rollout_correction_weights(old - mu, mask, "token", 2.0)
        ours = replay_weight(old, mu, mask, math.log(2.0))
        np.testing.assert_allclose(ours * mask, theirs, **TOLERANCE)
        metrics = summarise_weights(weight_sums(replay_weight(old, mu, mask, None), ours, mask))
        assert metrics["replay/effective_sample_size"] == pytest.approx(
            their_metrics["rollout_is_eff_sample_size"], rel=1e-5
        )
