"""Spellings of one answer become one spelling. Cheap, and enough to decide most answers without a worker.

Only spelling is touched here, never value: ``\\dfrac12`` and ``\\frac{1}{2}`` may become equal strings, ``1/2`` and ``0.5``
are left to math-verify.
"""

from __future__ import annotations

import re

_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"))
_DROPPED = re.compile(r"\\(?:left|right|displaystyle|limits)(?![a-zA-Z])|\\[!,;:>]|\\q?quad(?![a-zA-Z])|\\ |~")
_FRACTION = re.compile(r"\\[dtc]frac")
_SHORT_FRACTION = re.compile(r"\\frac\s*(\d)\s*(\d)")
_SPACED_BRACES = re.compile(r"\\(frac|sqrt)\s+(?=[\[{])")
_TEXT = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"-?\d{1,3}(?:(?:\{,\}|,\\!|,)\d{3})+(?:\.\d+)?")
_GROUPED = re.compile(r"(?<!\\)\{\d{1,3}(?:,\d{3})+\}")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)")
_SCIENTIFIC = re.compile(r"(?<![A-Za-z\\])(\d+(?:\.\d+)?)[eE]([-+]?\d{1,4})(?![\w.])")
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\overline\s*\{(\d{1,20})\}")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\{\s*(?:percent|per cent)\s*\}|percent|per cent)\s*$")
_INTEGER = re.compile(r"[-+]?\d+")
_SHORT_WORDS = frozenset({"yes", "no", "odd", "all", "any"})
_WORDING = re.compile(r"[A-Za-z][A-Za-z' -]*")


def compare(gold: str, pred: str) -> bool | None:
    """True or False where the spelling decides, None where a parser has to."""
    if is_wording(gold):
        return spelling(gold).casefold() == spelling(pred).casefold()
    gold, pred = spelling(gold), spelling(pred)
    if gold == pred:
        return gold != ""
    if _INTEGER.fullmatch(gold) and _INTEGER.fullmatch(pred):
        return _digits(gold) == _digits(pred)
    return None


def spelling(text: str) -> str:
    """One spelling for the many of LaTeX: no wrappers, no layout commands, ``\\frac{a}{b}``, no thousands separators."""
    text = unwrap(text).replace("−", "-")
    if _THOUSANDS.fullmatch(text):
        return re.sub(r"[^\d.-]", "", text)
    text = text.replace("\\$", "").replace("^\\circ", "").replace("^{\\circ}", "")
    text = _FRACTION.sub(r"\\frac", text)
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", text)
    text = _SPACED_BRACES.sub(r"\\\1", text)
    text = _DROPPED.sub(" ", text)
    text = _TEXT.sub(lambda match: " " + match.group(1) + " ", text)
    # A space matters between two letters or two digits ("no solution", "1 2/3"), nowhere else.
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text)
    text = re.sub(r"(?<=[A-Za-z]) (?=\d)|(?<=\d) (?=[A-Za-z])", "", text)
    return text.rstrip(".") if not text.endswith("..") else text


def unwrap(text: str) -> str:
    """Without the formula delimiters, the box and the white space around it."""
    text = text.strip()
    for _ in range(4):
        before = text
        for opening, closing in _WRAPPERS:
            inside = text[len(opening) : len(text) - len(closing)]
            if len(text) > len(opening) + len(closing) and text.startswith(opening) and text.endswith(closing):
                text = inside.strip() if opening not in inside else text
        if text.startswith("\\boxed{") and text.endswith("}"):
            text = text[len("\\boxed{") : -1].strip()
        if text == before:
            break
    return text


def is_number(text: str) -> bool:
    """A decimal numeral."""
    return _NUMBER.fullmatch(text.strip()) is not None


def is_wording(text: str) -> bool:
    """Words rather than symbols: "no solution", ``\\text{east}``.

    Such an answer is compared as text, for to a parser "east" is the product e a s t, which equals "seat".
    """
    spelled = spelling(text)
    if _WORDING.fullmatch(spelled) is None:
        return False
    return len(spelled) > 3 or spelled.casefold() in _SHORT_WORDS or (len(spelled) > 1 and "\\text" in text)


def _digits(integer: str) -> str:
    """An integer without its plus sign and leading zeros. Text, because ``int`` refuses more than 4,300 digits."""
    sign = "-" if integer.startswith("-") else ""
    digits = integer.lstrip("+-").lstrip("0")
    return sign + digits if digits else "0"


def readings(gold: str, pred: str) -> list[tuple[str, str]]:
    """The pairs of LaTeX of which one has to be equal. More than one only where a per cent sign is on one side: then
    "50 %" may be meant as 50 or as 0.5."""
    gold_bare, gold_percent = without_percent(gold)
    pred_bare, pred_percent = without_percent(pred)
    bare = (for_parsing(gold_bare), for_parsing(pred_bare))
    if gold_percent and not pred_percent:
        return [bare, (f"\\frac{{{bare[0]}}}{{100}}", bare[1])]
    if pred_percent and not gold_percent:
        return [bare, (bare[0], f"\\frac{{{bare[1]}}}{{100}}")]
    return [bare]


def without_percent(text: str) -> tuple[str, bool]:
    """``(text without a final per cent sign, whether there was one)``."""
    text = unwrap(text)
    bare = _PERCENT.sub("", text[-40:])
    return (text[:-40] + bare, True) if bare != text[-40:] else (text, False)


def for_parsing(text: str) -> str:
    """LaTeX as math-verify reads it: scientific notation, repeating decimals and separated thousands are written out."""
    text = unwrap(text.rstrip(" .")).replace("−", "-").replace("\n", " ").replace("\\!", "")
    text = _GROUPED.sub(lambda match: match.group().replace(",", ""), text)
    text = _SCIENTIFIC.sub(r"\1\\times 10^{\2}", text)
    return _REPEATING.sub(_repeating_fraction, text)


def _repeating_fraction(match: re.Match) -> str:
    """``0.1\\overline{6}`` is ``(16 - 1) / 90``."""
    whole, fixed, period = match.groups()
    numerator = int(whole + fixed + period or "0") - int(whole + fixed or "0")
    return f"\\frac{{{numerator}}}{{{(10 ** len(period) - 1) * 10 ** len(fixed)}}}"
