"""verl_dots.difficulty.attention: outputs and gradients agree with the formulas written out in numpy."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from tests.reference import predictor as slow
from verl_dots.difficulty.attention import AttentionModel, AttentionSettings


@pytest.fixture(scope="module")
def problem():
    """A small random network in float64, all parameters away from their initial values."""
    settings = AttentionSettings(dim=5, side=("level", "rate"), width=6, layers=3, dropout=0.1)
    generator = torch.Generator().manual_seed(0)
    model = AttentionModel(settings).double().eval()
    rng = np.random.default_rng(0)
    data = {
        "embeddings": rng.normal(size=(7, 5)),
        "sides": rng.normal(size=(7, 2)),
        "reference_embeddings": rng.normal(size=(4, 5)),
        "reference_sides": rng.normal(size=(4, 2)),
        "difficulty": np.array([0.0, 0.25, 0.5, 1.0]),
    }
    data["sides"][2, 1] = data["reference_sides"][0, 0] = np.nan
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    model.fit_inputs(torch.from_numpy(rng.normal(size=(50, 5)) * 2 + 1), torch.from_numpy(rng.normal(size=(50, 2)) * 3))
    return model, data


def outputs(model, data):
    tensors = {name: torch.from_numpy(value) for name, value in data.items()}
    query = model.project_query(tensors["embeddings"], tensors["sides"])
    reference = model.project_reference(tensors["reference_embeddings"], tensors["reference_sides"])
    return model(query, reference, tensors["difficulty"])


def numbers(model):
    return {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}


def test_outputs_agree_with_the_formulas(problem):
    model, data = problem
    expected = slow.predict(numbers(model), **data, layers=3)
    np.testing.assert_allclose(torch.sigmoid(outputs(model, data)).detach().numpy(), expected, rtol=1e-9)


def test_gradients_agree_with_differences_of_the_formulas(problem):
    """Central differences of the slow loss, for a few entries of every parameter."""
    model, data = problem
    target = np.random.default_rng(1).random(7)
    model.zero_grad()
    F.binary_cross_entropy_with_logits(outputs(model, data), torch.from_numpy(target)).backward()
    parameters, step = numbers(model), 1e-5
    rng = np.random.default_rng(2)
    for name, parameter in model.named_parameters():
        for flat in rng.choice(parameter.numel(), min(3, parameter.numel()), replace=False):
            place = np.unravel_index(flat, parameter.shape)
            around = []
            for sign in (1, -1):
                moved = {**parameters, name: parameters[name].copy()}
                moved[name][place] += sign * step
                around.append(slow.cross_entropy(slow.predict(moved, **data, layers=3), target))
            difference = (around[0] - around[1]) / (2 * step)
            assert parameter.grad[place].item() == pytest.approx(difference, rel=1e-4, abs=1e-9), (name, place)


def test_a_masked_label_has_no_influence(problem):
    model, data = problem
    query = model.project_query(torch.from_numpy(data["embeddings"]), torch.from_numpy(data["sides"]))
    keys = model.project_reference(torch.from_numpy(data["reference_embeddings"]), torch.from_numpy(data["reference_sides"]))
    mask = torch.zeros(7, 4, dtype=torch.bool)
    mask[:, 1] = True
    first, changed = torch.tensor([0.0, 0.25, 0.5, 1.0]).double(), torch.tensor([0.0, 0.9, 0.5, 1.0]).double()
    torch.testing.assert_close(model.attend(query, keys, first, mask), model.attend(query, keys, changed, mask))
    rest = [0, 2, 3]
    torch.testing.assert_close(model.attend(query, keys, first, mask), model.attend(query, keys[rest], first[rest]))


def test_missing_side_features_are_their_mean_and_flagged():
    model = AttentionModel(AttentionSettings(dim=2, side=("a",), width=4))
    side = torch.tensor([[1.0], [3.0], [float("nan")]])
    model.fit_inputs(torch.randn(3, 2, generator=torch.Generator().manual_seed(0)), side)
    _, prepared = model.inputs(torch.zeros(3, 2), side)
    torch.testing.assert_close(prepared, torch.tensor([[-1.0, 0], [1, 0], [0, 1]]))


@pytest.mark.parametrize("labels", [[0.0] * 8, [1.0] * 8, [0.5]])
def test_constant_labels_give_finite_gradients(labels):
    model = AttentionModel(AttentionSettings(dim=3, width=8))
    generator = torch.Generator().manual_seed(0)
    side = torch.zeros(len(labels), 0)
    reference = model.project_reference(torch.randn(len(labels), 3, generator=generator), side)
    query = model.project_query(torch.randn(4, 3, generator=generator), torch.zeros(4, 0))
    logits = model(query, reference, torch.tensor(labels))
    F.binary_cross_entropy_with_logits(logits, torch.full((4,), 0.5)).backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
