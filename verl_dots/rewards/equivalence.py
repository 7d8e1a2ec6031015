"""Are two pieces of LaTeX equal as mathematics? The only file that touches math-verify; it runs in worker processes.

math-verify limits its own time by ``SIGALRM``, which works in the main thread of a process only. Its limits are switched off
here, and the worker process as a whole has one (worker.py). Only its LaTeX extractor is used: the other one ends in
``eval``.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Any

import math_verify

# Switched-off limits are announced once per process, and failed parses are not news.
logging.getLogger("math_verify").setLevel(logging.ERROR)
logging.getLogger("latex2sympy2_extended").setLevel(logging.ERROR)

_LATEX = [math_verify.LatexExtractionConfig()]


def equal(gold: str, pred: str) -> bool:
    """Whether ``pred`` is the answer ``gold``. Not symmetric: ``x = 5`` is the answer 5, and 5 is the answer ``x = 5``."""
    parsed_gold, parsed_pred = parse(gold), _parse(pred)
    if not parsed_gold or not parsed_pred:
        return False
    return bool(math_verify.verify(parsed_gold, parsed_pred, timeout_seconds=None))


def parses(text: str) -> bool:
    """Whether ``text`` can be read as mathematics and equals itself."""
    return equal(text, text)


@lru_cache(maxsize=1024)
def parse(text: str) -> list[Any]:
    """Parsed ground truth. The answers of one group are compared with one ground truth, so it is kept."""
    return _parse(text)


def _parse(text: str) -> list[Any]:
    """sympy objects for a piece of LaTeX; none if it cannot be read."""
    return math_verify.parse(
        f"\\boxed{{{text}}}", extraction_config=_LATEX, fallback_mode="no_fallback", parsing_timeout=None
    )
