"""verl_dots.difficulty.features: deterministic, finite on anything, and telling about synthetic and real questions."""

import numpy as np
import pytest

from verl_dots.difficulty.features import LexicalFeatures, join_blocks, lexical_features


def arithmetic(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Questions of fixed form, and a difficulty that depends on their operations only."""
    rng = np.random.default_rng(seed)
    length = rng.integers(1, 7, count)
    operations = rng.choice(list("+-*"), size=(count, 6))
    digits = rng.integers(1, 10, (count, 6))
    texts = [
        f"{rng.integers(10)}{rng.integers(10)}"
        + "".join(f"{o}{d}" for o, d in zip(operations[i, :n], digits[i, :n], strict=True)).ljust(12, "_")
        + "="
        for i, n in enumerate(length)
    ]
    inside = np.arange(6) < length[:, None]
    cost = np.select([operations == "*", operations == "-"], [0.1 * digits, 0.3], 0.05)
    return texts, 1 - np.exp(-(cost * inside).sum(axis=1))


def ridge_pearson(x: np.ndarray, y: np.ndarray, train: int) -> float:
    centred = x - x[:train].mean(axis=0)
    weights = np.linalg.solve(
        centred[:train].T @ centred[:train] + np.eye(x.shape[1]), centred[:train].T @ (y[:train] - y[:train].mean())
    )
    return float(np.corrcoef(centred[train:] @ weights, y[train:])[0, 1])


def test_the_same_texts_give_the_same_vectors():
    texts, _ = arithmetic(300, 0)
    first = lexical_features(texts)
    assert first.dtype == np.float32
    np.testing.assert_array_equal(first, lexical_features(list(texts)))


def test_short_synthetic_questions_keep_what_makes_them_difficult():
    texts, difficulty = arithmetic(900, 1)
    assert ridge_pearson(lexical_features(texts), difficulty, train=600) > 0.95


def test_the_place_of_a_character_counts_in_short_questions():
    """Two questions with the same multiset of n-grams but another start value are told apart."""
    a, b = lexical_features(["12+3____=", "21+3____=", "77*8____=", "12*3____=", "21*3____="])[:2]
    assert np.abs(a - b).max() > 1e-3


def test_length_and_words_of_long_questions_count():
    rng = np.random.default_rng(2)
    words = [f"word{i}" for i in range(200)] + ["integral", "triangle"]
    texts = [" ".join(rng.choice(words, size=rng.integers(20, 120))) for _ in range(400)]
    vectors = lexical_features(texts)
    assert vectors.shape[1] < 300
    length = np.array([len(text) for text in texts])
    assert ridge_pearson(vectors, np.log(length), train=300) > 0.9


@pytest.mark.parametrize("texts", [[""], ["x"], ["x", "x"], ["", "  ", "\n"], ["∫ x dx = ?", "如何", "a" * 100_000]])
def test_odd_questions_give_finite_vectors(texts):
    vectors = lexical_features(texts)
    assert vectors.shape[0] == len(texts)
    assert np.isfinite(vectors).all()


def test_equal_texts_get_equal_vectors_and_no_vector_dominates():
    texts, _ = arithmetic(300, 3)
    vectors = lexical_features([*texts, texts[0], "an utterly different text " * 50])
    np.testing.assert_allclose(vectors[0], vectors[300], atol=1e-6)
    assert np.linalg.norm(vectors, axis=1).max() < 10


def test_a_fitted_model_serves_texts_it_has_not_seen():
    texts, difficulty = arithmetic(900, 4)
    features = LexicalFeatures().fit(texts[:600])
    assert ridge_pearson(features.transform(texts), difficulty, train=600) > 0.95


def test_no_texts_are_a_mistake():
    with pytest.raises(ValueError, match="at least one question"):
        lexical_features([])


def test_answers_stand_beside_the_questions():
    texts, _ = arithmetic(200, 5)
    answers = ["7", "\\frac{1}{2}", "12 apples and 3 pears"] * 66 + ["7", "7"]
    both = lexical_features(texts, answers)
    alone = lexical_features(texts)
    np.testing.assert_array_equal(both[:, : alone.shape[1]], alone)
    assert both.shape[1] > alone.shape[1]


def test_joined_blocks_weigh_the_same():
    rng = np.random.default_rng(0)
    joined = join_blocks(rng.normal(size=(500, 3)) * 100 + 7, rng.normal(size=(500, 20)) * 1e-3, np.ones((500, 2)))
    assert joined.dtype == np.float16 and joined.shape == (500, 25)
    for block in (joined[:, :3], joined[:, 3:23]):
        assert np.square(block.astype(float)).sum(axis=1).mean() == pytest.approx(1, rel=1e-2)
        assert np.abs(block.astype(float).mean(axis=0)).max() < 1e-2
    np.testing.assert_array_equal(joined[:, 23:], 0)
