"""Near duplicates: questions that share most of their word sequences ("Find $x$ ..." and "Find the value of $x$ ...").

MinHash with locality-sensitive hashing (the datasketch library) proposes pairs, their exact Jaccard similarity decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sources.progress import Progress

SHINGLE = 3
"""Words in a row that are compared as one item. Questions are short: the median of DeepScaleR has about 40 words."""

PERMUTATIONS = 64

_WORD = re.compile(r"[^\W\d_]+|\d+")  # letters of any script
_LAYOUT = re.compile(r"[\s$\\{}.,;:?'\"’“”。，、；：？]+")


def words(text: str) -> list[str]:
    """The words and numbers of a question, in lower case: layout, punctuation and LaTeX's backslashes do not count."""
    return _WORD.findall(text.lower())


def ngrams(text: str, size: int) -> set[str]:
    """All runs of ``size`` words; the whole text if it is shorter, as it stands if it has no words at all."""
    sequence = words(text) or [text]
    return {" ".join(sequence[start : start + size]) for start in range(max(1, len(sequence) - size + 1))}


def bare(text: str) -> str:
    """A question without layout, for comparing short ones as a whole: ``5 + 3`` and ``$5+3$`` are one, ``5 - 3`` is not."""
    return _LAYOUT.sub("", text.lower())


def near_duplicates(texts: Sequence[str], threshold: float, progress: Progress) -> dict[int, int]:
    """Each text that is like an earlier one -> the first such text, by position.

    Args:
        texts: (N,) questions.
        threshold: Jaccard similarity of their shingles, in (0, 1], from which on two are near duplicates.
        progress: wraps the iteration in a progress bar.

    Numbers count as words, so two long questions that differ in their numbers only are alike. Their answers tell such
    variants from repeats; cleaning.py looks at those.
    """
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS)
    shingles: list[set[str]] = []
    like: dict[int, int] = {}
    for position, text in enumerate(progress(texts, "near duplicates")):
        own = ngrams(text, SHINGLE)
        shingles.append(own)
        signature = MinHash(num_perm=PERMUTATIONS, seed=1)
        signature.update_batch([shingle.encode() for shingle in own])
        candidates = sorted(index.query(signature))
        first = next((other for other in candidates if _jaccard(own, shingles[other]) >= threshold), None)
        if first is None:
            index.insert(position, signature)
        else:
            like[position] = first
    return like


def _jaccard(left: set[str], right: set[str]) -> float:
    return len(left & right) / len(left | right)
