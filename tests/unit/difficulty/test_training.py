"""Training, checkpoint and run-time use of the trained predictor, on a small problem with a known answer."""

import numpy as np
import pytest
import torch

from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.checkpoint import load_checkpoint, save_checkpoint
from verl_dots.difficulty.evaluation import TrialSettings, evaluate, shifted
from verl_dots.difficulty.pass_rates import PassRates
from verl_dots.difficulty.trained import TrainedPredictor, attended_logits, empty_array
from verl_dots.difficulty.training import FitSettings, fit
from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.manifests import manifest_path
from verl_dots.types import question_id

N, D = 900, 30
IDS = [question_id(str(i)) for i in range(N)]
TRAIN, VALIDATION, UNSEEN = np.arange(500), np.arange(500, 600), np.arange(600, 900)
SETTINGS = FitSettings(epochs=12, batch=64, reference=64, learning_rate=3e-3, seed=3)
MODEL = AttentionSettings(dim=D, width=32, layers=2)


@pytest.fixture(scope="module")
def world():
    """Vectors, the logit of difficulty, a side feature that tells the rest of it, and labels of two policies."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N, D)).astype(np.float32)
    hidden = rng.normal(size=N)
    logit = 1.8 * vectors[:, 0] + 0.7 * hidden
    side = hidden[:, None].astype(np.float32)
    side[::7] = np.nan
    trials = np.full((2, N), 32.0)
    successes = np.stack([rng.binomial(32, 1 - shifted(logit, shift)) for shift in (0.0, 1.0)]).astype(float)
    return vectors, logit, side, PassRates(tuple(IDS), ("weak", "weaker"), successes, trials)


@pytest.fixture(scope="module")
def fitted(world):
    vectors, _, side, rates = world
    return fit(vectors, side[:, :0], rates, TRAIN, VALIDATION, MODEL, SETTINGS)


def quality(model, world, shift=0.0, side=None):
    vectors, logit, _, _ = world
    predictor = TrainedPredictor([model], vectors[UNSEEN], None if side is None else side[UNSEEN])
    return evaluate(predictor, shifted(logit[UNSEEN], shift), TrialSettings(64, 8, 4))


def test_unseen_questions_are_predicted_under_policies_that_were_not_in_the_file(world, fitted):
    """One of 30 dimensions tells the difficulty, which a kernel on 64 labels hardly finds."""
    from verl_dots.difficulty.kernel import KernelPredictor

    for shift in (-2.0, 0.0, 2.0):
        found = quality(fitted.model, world, shift)
        assert found["pearson_mean"] > 0.75
        assert found["calibration_error"] < 0.12
    kernel = evaluate(KernelPredictor(world[0][UNSEEN]), shifted(world[1][UNSEEN]), TrialSettings(64, 8, 4))
    assert quality(fitted.model, world)["pearson_mean"] > kernel["pearson_mean"] + 0.03


def test_the_best_epoch_is_kept(fitted):
    best = max(fitted.history, key=lambda record: record["pearson"])
    assert best["epoch"] == fitted.best_epoch
    assert fitted.history[0]["loss"] > fitted.history[-1]["loss"]


def test_the_same_seed_gives_the_same_weights_and_global_randomness_is_left_alone(world, fitted):
    vectors, _, side, rates = world
    before = torch.get_rng_state()
    again = fit(vectors, side[:, :0], rates, TRAIN, VALIDATION, MODEL, SETTINGS)
    assert torch.equal(before, torch.get_rng_state())
    assert again.history == fitted.history
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, fitted.model.state_dict()[name]), name


def test_labels_of_held_out_questions_do_not_reach_the_weights(world, fitted):
    vectors, _, side, rates = world
    spoiled = rates.successes.copy()
    spoiled[:, UNSEEN] = 0
    again = fit(
        vectors,
        side[:, :0],
        PassRates(rates.question_ids, rates.policies, spoiled, rates.trials),
        TRAIN,
        VALIDATION,
        MODEL,
        SETTINGS,
    )
    assert again.history == fitted.history


def test_side_features_help_and_worthless_ones_do_no_harm(world):
    """The same network: with its side feature, with one that lies, and blind."""
    vectors, _, side, rates = world
    settings = AttentionSettings(dim=D, side=("hidden",), width=32, layers=2)
    model = fit(vectors, side, rates, TRAIN, VALIDATION, settings, SETTINGS).model
    lies = side.copy()
    lies[UNSEEN] = np.random.default_rng(5).permutation(side[UNSEEN])
    told, lied_to, blind = (
        quality(model, world, side=s)["pearson_mean"] for s in (side, lies, np.full_like(side, np.nan))
    )
    assert told > blind + 0.05
    assert lied_to > blind - 0.03


def test_chunks_and_half_precision_do_not_change_the_answer(world, fitted):
    vectors, _, _, _ = world
    model = fitted.model
    with torch.no_grad():
        none = torch.zeros(N, 0)
        query = model.project_query(torch.from_numpy(vectors), none)
        reference = model.project_reference(torch.from_numpy(vectors[:64]), none[:64])
        seen = torch.linspace(0, 1, 64)
        expected = model(query, reference, seen).numpy()
    found = attended_logits(model, query.half().numpy(), reference, seen, chunk=128)
    np.testing.assert_allclose(found, expected, atol=0.02)


def test_members_are_averaged(world, fitted):
    """Twice the same network is that network; a second one that fits less well lies between."""
    index, counts = np.arange(64), np.full(64, 8.0)
    other = AttentionModel(MODEL)
    answers = {
        name: TrainedPredictor(members, world[0]).predict(index, counts * (index % 2), counts, counts * 0).difficulty
        for name, members in {
            "one": [fitted.model],
            "twice": [fitted.model, fitted.model],
            "with another": [fitted.model, other],
        }.items()
    }
    np.testing.assert_allclose(answers["one"], answers["twice"], atol=1e-6)
    assert np.abs(answers["one"] - answers["with another"]).max() > 1e-3


@pytest.mark.parametrize("count", [1, 2, 40])
@pytest.mark.parametrize("successes", [0.0, 8.0, 3.0])
def test_odd_reference_sets_give_probabilities(fitted, world, count, successes):
    predictor = TrainedPredictor([fitted.model], world[0])
    index = np.zeros(count, int) if count == 2 else np.arange(count)
    prediction = predictor.predict(index, np.full(count, successes), np.full(count, 8.0), np.arange(count, dtype=float))
    for values in (prediction.difficulty, prediction.held_out):
        assert np.isfinite(values).all() and values.min() >= 0 and values.max() <= 1
    assert prediction.difficulty.shape == (N,) and prediction.held_out.shape == (count,)


def test_large_arrays_go_to_a_file_that_vanishes():
    array = empty_array((100, 3), np.float16, limit=10)
    assert isinstance(array, np.memmap)
    array[:] = 7
    assert (array == 7).all()
    assert not isinstance(empty_array((100, 3), np.float16), np.memmap)


# --- the checkpoint


@pytest.fixture
def saved(tmp_path, world, fitted):
    write_embeddings(tmp_path / "e.safetensors", IDS, world[0], model="a-model")
    save_checkpoint(tmp_path / "p.safetensors", [fitted.model], embedding_model="a-model", report={"pearson": 0.9})
    return tmp_path / "p.safetensors", EmbeddingTable.open(tmp_path / "e.safetensors")


def test_a_loaded_checkpoint_predicts_the_same(saved, world, fitted):
    path, table = saved
    index, counts = np.arange(64), np.full(64, 8.0)
    first, second = (
        TrainedPredictor(members, world[0]).predict(index, counts / 2, counts, counts * 0).difficulty
        for members in ([fitted.model], load_checkpoint(path, table))
    )
    np.testing.assert_array_equal(first, second)


def rewrite(path, change):
    import json

    manifest = json.loads(manifest_path(path).read_text())
    change(manifest)
    manifest_path(path).write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("break_it", "says"),
    [
        (lambda path: path.unlink(), "no predictor checkpoint"),
        (lambda path: manifest_path(path).unlink(), "no predictor checkpoint"),
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "do not belong together"),
        (lambda path: rewrite(path, lambda m: m.update(format="other")), "not a difficulty predictor"),
        (lambda path: rewrite(path, lambda m: m.update(format_version=2)), "format version 2, this code reads 1"),
        (lambda path: rewrite(path, lambda m: m["settings"].update(width=64)), "cannot be read"),
        (lambda path: rewrite(path, lambda m: m["settings"].update(depth=64)), "cannot be read"),
        (lambda path: rewrite(path, lambda m: m.update(members=2)), "cannot be read"),
        (lambda path: rewrite(path, lambda m: m.update(embedding_model="b-model")), "fitted on vectors of b-model"),
    ],
)
def test_a_bad_checkpoint_is_one_line_with_its_name(saved, break_it, says):
    path, table = saved
    break_it(path)
    with pytest.raises(ValueError, match=says) as error:
        load_checkpoint(path, table)
    assert "\n" not in str(error.value) and "p." in str(error.value) and "fit_predictor.py" in str(error.value)


@pytest.mark.parametrize(
    ("dim", "side", "says"),
    [(D + 1, (), "dimension 30"), (D, ("level",), r"side features \[\]")],
)
def test_vectors_of_another_shape_are_refused(tmp_path, saved, dim, side, says):
    write_embeddings(
        tmp_path / "o.safetensors",
        IDS[:3],
        np.ones((3, dim)),
        model="a-model",
        side=np.ones((3, len(side))),
        side_names=side,
    )
    with pytest.raises(ValueError, match=says):
        load_checkpoint(saved[0], EmbeddingTable.open(tmp_path / "o.safetensors"))


def test_weights_that_are_not_finite_are_refused(tmp_path, saved):
    model = AttentionModel(MODEL)
    with torch.no_grad():
        model.query.linear[0].weight[0, 0] = float("nan")
    save_checkpoint(tmp_path / "n.safetensors", [model], embedding_model="a-model")
    with pytest.raises(ValueError, match="NaN or infinite"):
        load_checkpoint(tmp_path / "n.safetensors", saved[1])
