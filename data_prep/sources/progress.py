"""Progress bars that keep out of log files."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tqdm import tqdm

Progress = Callable[..., Iterable]
"""``progress(items, label, total=None)`` iterates over ``items``."""


def bar(items: Iterable, label: str, total: int | None = None) -> Iterable:
    """A progress bar on stderr if that is a terminal."""
    return tqdm(items, desc=label, total=total, disable=None, leave=False)
