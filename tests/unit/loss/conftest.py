"""Random batches of log-probs, advantages and masks, and the loss with its gradient as numpy."""

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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


def one(values):
    return torch.tensor([values], dtype=torch.float64)
