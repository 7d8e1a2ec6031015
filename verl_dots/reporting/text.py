"""Numbers and names as people read them."""

from __future__ import annotations

import math

MINUS = "\N{MINUS SIGN}"
NOTHING = "\N{EN DASH}"
THIN = "\N{NARROW NO-BREAK SPACE}"


def number(value: float | None, digits: int = 3) -> str:
    """A plain number, a dash for nothing."""
    return NOTHING if value is None or math.isnan(value) else f"{value:.{digits}f}"


def duration(seconds: float | None) -> str:
    """Seconds as s, min or h, three significant digits."""
    if seconds is None:
        return NOTHING
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g}{THIN}{unit}"
    return f"{seconds:.3g}{THIN}s"


def count(value: float | None) -> str:
    """A large count with k, M, G."""
    if value is None:
        return NOTHING
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{THIN}{unit}"
    return f"{value:.0f}"


def change(reduction: float | None) -> str:
    """A reduction of 0.3 as a change of -30 %."""
    if reduction is None:
        return NOTHING
    percent = round(-100 * reduction)
    sign = MINUS if percent < 0 else "+" if percent > 0 else "\N{PLUS-MINUS SIGN}"
    return f"{sign}{abs(percent)}{THIN}%"


def share(value: float | None) -> str:
    """A share as per cent."""
    return NOTHING if value is None or math.isnan(value) else f"{100 * value:.0f}{THIN}%"


def plot_text(text: str) -> str:
    """Text for matplotlib, which would read dollars as mathematics."""
    return text.replace("$", r"\$")
