"""verl_dots.loss: the weights of replayed tokens, and their metrics from the sums of any shards."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.reference import losses as reference
from tests.unit.loss.conftest import TOLERANCE, batches, floats, one, quick, tensors
from verl_dots.loss import WEIGHT_SUMS, replay_weight, summarise_weights, weight_sums
from verl_dots.types import METRICS


@quick
@given(batches(), st.none() | floats(1.0, 5.0))
def test_a_weight_is_the_truncated_ratio_and_1_outside_the_mask(batch, cap):
    old, mu, mask = tensors(batch, "old", "mu", "mask")
    weight = replay_weight(old, mu, mask, None if cap is None else math.log(cap)).numpy()
    expected = np.minimum(np.exp(batch["old"] - batch["mu"]), np.inf if cap is None else cap)
    np.testing.assert_allclose(weight, np.where(batch["mask"] == 1, expected, 1.0), **TOLERANCE)


@quick
@given(batches(), floats(1.0, 5.0), st.data())
def test_sums_of_rows_from_any_shards_give_the_metrics_of_all_tokens(batch, cap, data):
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


def test_known_values():
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


def test_equal_weights_have_full_effective_sample_size_one_large_weight_has_one_over_n():
    for ratio, expected in (([0.3] * 4, 1.0), ([1e8, 1e-8, 1e-8, 1e-8], 0.25)):
        sums = weight_sums(one(ratio), one(ratio), torch.ones(1, 4))
        assert summarise_weights(sums)["replay/effective_sample_size"] == pytest.approx(expected)
