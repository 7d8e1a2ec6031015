"""verl_dots.difficulty.kernel: closed forms equal slow ones, signal is found, odd reference sets do no harm."""

import numpy as np
import pytest

from verl_dots.difficulty import kernel
from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.difficulty.labels import label_weights, merge_labels


def pool(count: int = 1500, dim: int = 12, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Vectors and a difficulty that is smooth in them."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(count, dim)).astype(np.float32)
    return vectors, 1 / (1 + np.exp(-1.5 * vectors[:, 0] - np.sin(2 * vectors[:, 1])))


def rollouts(difficulty: np.ndarray, index: np.ndarray, seed: int = 0, trials: int = 8) -> np.ndarray:
    return np.random.default_rng(seed).binomial(trials, 1 - difficulty[index]).astype(float)


def predict(predictor, index, successes, age=None, trials=8.0):
    count = len(index)
    return predictor.predict(
        np.asarray(index), np.asarray(successes, float), np.full(count, trials), np.zeros(count) if age is None else age
    )


def test_smooth_difficulty_is_recovered_from_a_few_labels():
    vectors, difficulty = pool()
    index = np.arange(256)
    prediction = predict(KernelPredictor(vectors), index, rollouts(difficulty, index))
    assert prediction.difficulty.dtype == np.float32
    assert np.corrcoef(prediction.difficulty[256:], difficulty[256:])[0, 1] > 0.8
    assert abs(prediction.difficulty.mean() - difficulty.mean()) < 0.05


def test_it_knows_how_good_it_is():
    """The leave-one-out correlation is that with new noisy labels, on signal and on noise alike."""
    vectors, difficulty = pool(3000)
    for truth, least, most in ((difficulty, 0.6, 0.9), (np.random.default_rng(1).permutation(difficulty), -0.1, 0.3)):
        index = np.arange(256)
        prediction = predict(KernelPredictor(vectors), index, rollouts(truth, index))
        labels = 1 - rollouts(truth, np.arange(3000), seed=9) / 8
        actual = np.corrcoef(prediction.difficulty[256:], labels[256:])[0, 1]
        assert least < prediction.report["expected_pearson"] < most
        assert prediction.report["expected_pearson"] == pytest.approx(actual, abs=0.15)


def labelled(count: int):
    """Distances, labels and uneven weights of `count` questions."""
    vectors, difficulty = pool(count)
    weights = np.random.default_rng(5).uniform(0.2, 2, count)
    return vectors, kernel._distances(vectors, vectors), 1 - rollouts(difficulty, np.arange(count)) / 8, weights


def test_ridge_leave_one_out_equals_leaving_one_out():
    _, distance, labels, weights = labelled(40)
    gram = np.exp(-0.5 / 2 * distance) + kernel.CONSTANT
    strengths = (0.1, 3.0)
    for strength, (held_out, dual) in zip(
        strengths, kernel._ridge(distance, labels, weights, 0.5, strengths), strict=True
    ):
        for left_out in range(0, 40, 7):
            rest = np.delete(np.arange(40), left_out)
            regularised = gram[np.ix_(rest, rest)] + np.diag(strength / weights[rest])
            expected = gram[left_out, rest] @ np.linalg.solve(regularised, labels[rest])
            assert held_out[left_out] == pytest.approx(expected, abs=1e-4)
        np.testing.assert_allclose(dual, np.linalg.solve(gram + np.diag(strength / weights), labels), atol=1e-4)


def test_attention_leave_one_out_equals_the_sum_written_out():
    vectors, distance, labels, weights = labelled(30)
    [(held_out, _)] = kernel._attention(distance, labels, weights, 2.0, (0.3,))
    for i in range(30):
        others = [j for j in range(30) if j != i]
        mean = sum(weights[j] * labels[j] for j in others) / sum(weights[j] for j in others)
        score = [weights[j] * np.exp(-2.0 / 2 * np.sum((vectors[i] - vectors[j]) ** 2)) for j in others]
        top = sum(s * labels[j] for s, j in zip(score, others, strict=True)) + 0.3 * mean
        assert held_out[i] == pytest.approx(top / (sum(score) + 0.3), rel=1e-4)


@pytest.mark.parametrize("ridge", [True, False])
def test_new_questions_are_predicted_by_the_same_formula(ridge):
    """A question without label is predicted as a labelled one that is left out would be."""
    _, distance, labels, weights = labelled(40)
    solve = kernel._ridge if ridge else kernel._attention
    [(held_out, _)] = solve(distance, labels, weights, 1.0, (1.0,))
    for left_out in (0, 17, 39):
        rest = np.delete(np.arange(40), left_out)
        [(_, coefficients)] = solve(distance[np.ix_(rest, rest)], labels[rest], weights[rest], 1.0, (1.0,))
        choice = kernel._Choice(ridge, beta=1.0, strength=1.0, half_life=np.inf, loss=0.0)
        new = kernel._apply(choice, distance[left_out][None, rest], labels[rest], weights[rest], coefficients)
        assert new[0] == pytest.approx(held_out[left_out], abs=1e-3)


def test_repeats_of_a_question_are_one_label_and_the_latest_counts_most():
    labels = merge_labels(
        np.array([7, 3, 7, 7]), np.array([8.0, 4.0, 0.0, 0.0]), np.full(4, 8.0), np.array([0.0, 5.0, 16.0, 32.0])
    )
    np.testing.assert_array_equal(labels.index, [3, 7])
    np.testing.assert_allclose(labels.difficulty, [0.5, (0.5 + 0.25) / 1.75])
    np.testing.assert_allclose(labels.trials, [8, 8 * 1.75])
    np.testing.assert_array_equal(labels.inverse, [1, 0, 1, 1])
    assert label_weights(labels, np.inf).mean() == pytest.approx(1)


def test_a_side_feature_that_tells_is_used_and_one_that_does_not_does_no_harm():
    vectors, difficulty = pool(2000)
    rng = np.random.default_rng(4)
    telling = np.log(difficulty / (1 - difficulty)) + rng.normal(scale=0.7, size=2000)
    telling[::5] = np.nan  # unknown for some
    index = np.arange(256)
    found = {}
    for name, side in (("none", None), ("telling", telling[:, None]), ("permuted", rng.permutation(telling)[:, None])):
        prediction = predict(KernelPredictor(vectors, side), index, rollouts(difficulty, index))
        found[name] = np.corrcoef(prediction.difficulty[256:], difficulty[256:])[0, 1]
    assert found["telling"] > found["none"] + 0.02
    assert found["permuted"] > found["none"] - 0.01


def test_recent_labels_win_over_old_ones_that_contradict_them():
    vectors, difficulty = pool()
    index = np.arange(256)
    old = index < 128
    successes = np.where(old, rollouts(1 - difficulty, index), rollouts(difficulty, index))
    prediction = predict(KernelPredictor(vectors), index, successes, age=np.where(old, 40.0, 0.0))
    assert np.corrcoef(prediction.difficulty[256:], difficulty[256:])[0, 1] > 0.6


def test_held_out_predictions_do_not_know_the_questions_own_labels():
    """A question that is repeated in the reference set is left out with all its groups."""
    vectors, difficulty = pool(400)
    noise = np.random.default_rng(3).random(400)  # difficulty has nothing to do with the vectors
    index = np.repeat(np.arange(100), 3)
    prediction = predict(KernelPredictor(vectors), index, rollouts(noise, index))
    assert prediction.held_out.shape == (300,)
    assert np.corrcoef(prediction.held_out, noise[index])[0, 1] < 0.3


@pytest.mark.parametrize("count", [1, 2, 3, 32])
@pytest.mark.parametrize("label", ["all solved", "none solved", "mixed"])
@pytest.mark.parametrize("kind", ["usual", "zero", "equal", "huge", "float16"])
def test_odd_reference_sets_give_probabilities(count, label, kind):
    vectors, difficulty = pool(50)
    vectors = {
        "usual": vectors,
        "zero": vectors * 0,
        "equal": np.ones_like(vectors),
        "huge": vectors * 1e4,
        "float16": vectors.astype(np.float16),
    }[kind]
    index = np.zeros(count, int) if count == 3 else np.arange(count)
    successes = {"all solved": np.full(count, 8.0), "none solved": np.zeros(count), "mixed": np.arange(count) % 9.0}[label]
    prediction = predict(KernelPredictor(vectors), index, successes, age=np.arange(count, dtype=float))
    assert prediction.difficulty.shape == (50,)
    assert np.isfinite(prediction.difficulty).all()
    assert prediction.difficulty.min() >= 0 <= 1 >= prediction.difficulty.max()
    assert np.isfinite(prediction.held_out).all()
    assert all(np.isfinite(value) for value in prediction.report.values())
    if label == "all solved" and count == 32:
        assert prediction.difficulty.max() < 0.2


def test_the_same_input_gives_the_same_output():
    vectors, difficulty = pool()
    index = np.arange(64)
    first = predict(KernelPredictor(vectors), index, rollouts(difficulty, index))
    again = predict(KernelPredictor(vectors), index, rollouts(difficulty, index))
    np.testing.assert_array_equal(first.difficulty, again.difficulty)
