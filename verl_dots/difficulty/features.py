"""Lexical features: vectors for questions without any model, made from their text at start-up.

Two blocks side by side. **Counts**: length, digits, operators, commands, ... standardised over the pool. **N-grams**:
hashed word and character n-grams, weighted by rarity in the pool and reduced by a truncated SVD, so that they stay small
and short synthetic questions ("37+5*3=") keep all they have. The SVD is fitted on the pool (on a sample of it when it is
large): vectors are deterministic, but comparable only within one call, or between calls of one :class:`LexicalFeatures`.

Shapes: N questions, D dimensions.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import HashingVectorizer

from verl_dots.files import atomic_path, one_line

LEXICAL = "lexical"
"""Name of these features in the manifest of an embeddings file that holds them."""

COMPONENTS = 256
"""Dimensions kept of the n-gram block, at most."""
FIT_SAMPLE = 6_000
"""Questions on which the SVD is fitted, at most."""
COLUMNS = 20_000
"""Hashed n-grams kept, at most: those that are most frequent in the sample after weighting by rarity."""
SHORT = 48
"""Character n-grams are read from this many first characters; texts that are no longer also get (position, character)
pairs, which is what tells synthetic questions of fixed form apart. Long texts are described by their words."""
OUTLIER = 4.0
"""Standardised counts are cut to this."""
COUNTS_WEIGHT = 1.0
"""Root mean square norm of the counts block; that of the n-gram block is at most 1."""

_SYMBOLS = "+-*/=<>^_$\n,.?&|"
_PATTERNS = tuple(
    re.compile(pattern)
    for pattern in (
        r"[0-9]",  # digits
        r"[0-9]+",  # numbers
        r"[0-9]{3,}",  # long numbers
        r"\\[A-Za-z]+",  # LaTeX commands
        r"\\(?:frac|sqrt|sum|int|binom)",
        r"[(\[{]",
        r"[A-Z]",
        r"\b[a-zA-Z]\b",  # single letters: variables
        r"\b(?:[Pp]rove|[Ss]how|[Ff]ind|[Dd]etermine|[Cc]ompute|[Cc]alculate|[Hh]ow many|[Ww]hat is)\b",
        r"\b(?:integers?|primes?|divisible|remainder|digits?)\b",
        r"\b(?:triangle|circle|angle|square|plane|sphere)\b",
        r"\b(?:probability|random|ways|permutations?)\b",
        r"\b(?:functions?|polynomials?|roots?|sequences?)\b",
        r"\[asy\]|figure|diagram|shown",
    )
)


class LexicalFeatures:
    """Features fitted on a pool of texts and applicable to others.

    >>> features = LexicalFeatures().fit(["1+1=", "2*3=", "7+5*3="])
    >>> features.transform(["1+1="]).dtype
    dtype('float32')
    """

    ARRAYS = ("mean", "scale", "columns", "rarity", "axes")

    def __init__(self, components: int = COMPONENTS) -> None:
        self.components = components
        hashing = {"norm": None, "alternate_sign": False, "dtype": np.float32}
        self._characters = HashingVectorizer(analyzer=_character_grams, n_features=2**15, **hashing)
        words = r"\\?[A-Za-z]+|\d|[^\w\s]"
        self._words = HashingVectorizer(ngram_range=(1, 2), token_pattern=words, n_features=2**16, **hashing)

    def fit(self, texts: Sequence[str]) -> LexicalFeatures:
        """Learn means, rarities and the SVD from a pool of N >= 1 texts."""
        sample = [texts[i] for i in _spread(len(texts), FIT_SAMPLE)]
        counts = _counts(sample)
        self.mean, self.scale = counts.mean(axis=0), counts.std(axis=0)  # (C,) each
        self.scale[self.scale < 1e-6] = np.inf  # a count that never varies says nothing
        grams = self._grams(sample)
        frequency = np.bincount(grams.indices, minlength=grams.shape[1])
        rarity = np.log((1 + len(sample)) / (1 + frequency))
        mass = frequency * rarity**2 * (frequency > 1)  # an n-gram of a single question relates it to none
        columns = np.flatnonzero(mass)
        self.columns = columns[np.argsort(-mass[columns], kind="stable")[:COLUMNS]].astype(np.int64)
        self.rarity = rarity[self.columns].astype(np.float32)
        weighted = self._weigh(grams)
        size = min(self.components, *(side - 1 for side in weighted.shape))
        self.axes = np.zeros((weighted.shape[1], 0), dtype=np.float32)  # (columns, components)
        if size >= 1:
            svd = TruncatedSVD(size, n_iter=2, random_state=0).fit(weighted)
            self.axes = np.ascontiguousarray(svd.components_.T, dtype=np.float32)
        return self

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """Vectors float32 (N, D) of texts, in chunks."""
        weight = COUNTS_WEIGHT / np.sqrt(max(1, np.isfinite(self.scale).sum()))
        parts = []
        for start in range(0, len(texts), 4096):
            chunk = texts[start : start + 4096]
            counts = np.clip((_counts(chunk) - self.mean) / self.scale, -OUTLIER, OUTLIER) * weight
            parts.append(np.hstack([counts, self._weigh(self._grams(chunk)) @ self.axes]).astype(np.float32))
        return np.concatenate(parts)

    def _grams(self, texts: Sequence[str]) -> sparse.csr_matrix:
        blocks = [self._characters.transform(texts), self._words.transform(texts)]
        joint = sparse.hstack(blocks, format="csr")
        joint.data = 1 + np.log(joint.data)
        return joint

    def _weigh(self, grams: sparse.csr_matrix) -> sparse.csr_matrix:
        weighted = grams[:, self.columns].multiply(self.rarity[None, :]).tocsr()
        norms = np.sqrt(np.asarray(weighted.multiply(weighted).sum(axis=1)).ravel())
        norms[norms == 0] = 1
        return sparse.diags(1 / norms).dot(weighted).tocsr().astype(np.float32)


class LexicalBasis:
    """Lexical features of questions and, where they are known, of their answers: fitted once, saved, used again.

    Whether an answer is a number, a formula or a sentence says as much about how often it is missed as the words of the
    question.
    """

    def __init__(self, blocks: dict[str, LexicalFeatures]) -> None:
        """`blocks`: features of `question` and perhaps of `answer`."""
        self._blocks = blocks

    @property
    def has_answers(self) -> bool:
        """Answers are described too."""
        return "answer" in self._blocks

    @classmethod
    def fit(cls, texts: Sequence[str], answers: Sequence[str] | None = None) -> LexicalBasis:
        """Fit on a pool of N >= 1 questions."""
        assert answers is None or len(answers) == len(texts)
        blocks = {"question": LexicalFeatures().fit(texts)}
        return cls(blocks if answers is None else {**blocks, "answer": LexicalFeatures().fit(answers)})

    def transform(self, texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        """Vectors float32 (N, D), D below 300, or 600 with answers."""
        given = {"question": texts, "answer": answers}
        return np.hstack([features.transform(given[name]) for name, features in self._blocks.items()])

    def save(self, path: str | os.PathLike) -> None:
        """Write everything to one safetensors file."""
        with atomic_path(path) as temporary:
            save_file(self._arrays(), temporary)

    @classmethod
    def load(cls, path: str | os.PathLike) -> LexicalBasis:
        """Read what :meth:`save` wrote.

        Raises:
            ValueError: no such file, or not a lexical basis.
        """
        try:
            arrays = load_file(path)
            names = [name for name in ("question", "answer") if f"{name}.axes" in arrays]
            blocks = {name: LexicalFeatures() for name in names}
            for name in names:
                for array in LexicalFeatures.ARRAYS:
                    setattr(blocks[name], array, arrays[f"{name}.{array}"])
        except (SafetensorError, OSError, KeyError) as error:
            raise ValueError(f"lexical basis {os.fspath(path)!r} cannot be read: {one_line(error)}") from error
        if "question" not in blocks:
            raise ValueError(f"{os.fspath(path)!r} is not a lexical basis: it holds {', '.join(sorted(arrays)[:5])}")
        return cls(blocks)

    def fingerprint(self) -> str:
        """Eight hex digits that change with any number of the basis."""
        digest = hashlib.sha256()
        for name, array in sorted(self._arrays().items()):
            digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:8]

    def _arrays(self) -> dict[str, np.ndarray]:
        return {
            f"{name}.{array}": getattr(features, array)
            for name, features in self._blocks.items()
            for array in LexicalFeatures.ARRAYS
        }


def lexical_features(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
    """Vectors float32 (N, D) of N questions and perhaps their answers, fitted on these questions. Deterministic.

    Raises:
        ValueError: there are no texts.
    """
    if not len(texts):
        raise ValueError("lexical features need at least one question")
    texts = [str(text) for text in texts]
    answers = None if answers is None else [str(answer) for answer in answers]
    return LexicalBasis.fit(texts, answers).transform(texts, answers)


def join_blocks(*blocks: np.ndarray) -> np.ndarray:
    """Vectors of different origin side by side, each block (N, D_i) centred and scaled to unit mean square norm: float16."""
    joined = np.empty((len(blocks[0]), sum(block.shape[1] for block in blocks)), dtype=np.float16)
    column = 0
    for block in blocks:
        sample = np.asarray(block[:: max(1, len(block) // 50_000)], dtype=np.float32)
        centre = sample.mean(axis=0)
        scale = 1 / max(np.sqrt(np.square(sample - centre).sum(axis=1).mean()), 1e-6)
        for start in range(0, len(block), 65_536):
            rows = slice(start, start + 65_536)
            joined[rows, column : column + block.shape[1]] = (np.asarray(block[rows], dtype=np.float32) - centre) * scale
        column += block.shape[1]
    return joined


def _character_grams(text: str) -> list[str]:
    """Character 1- to 3-grams of the beginning; with their positions too where that is the whole text."""
    head = text[:SHORT]
    grams = [head[i : i + n] for n in (1, 2, 3) for i in range(len(head) - n + 1)]
    if len(text) <= SHORT:
        grams += [f"{i}:{character}" for i, character in enumerate(text)]
    return grams


def _counts(texts: Sequence[str]) -> np.ndarray:
    """Logarithms of counts, float32 (N, C): characters, words, symbols, and how often each pattern occurs."""
    rows = [
        [len(t), len(t.split()), *map(t.count, _SYMBOLS), *(len(p.findall(t)) for p in _PATTERNS)] for t in texts
    ]
    return np.log1p(np.array(rows, dtype=np.float32))


def _spread(count: int, size: int) -> np.ndarray:
    """At most `size` row numbers spread evenly over `count` rows."""
    return np.unique(np.linspace(0, count - 1, min(count, size)).astype(int))
