"""From a response to the text of its answer. Every function is linear in the length of the response.

A policy under training writes anything: a megabyte of braces, no answer, forty answers. So there is no regular expression
over the whole text, only string searches; regular expressions see at most :data:`TAIL_CHARS` characters and have no
repetition inside a repetition.
"""

from __future__ import annotations

import re

MAX_ANSWER_CHARS = 2_000
"""An answer longer than this is no answer."""

TAIL_CHARS = 2_000
"""Where an answer is looked for if none is boxed: the end of the response."""

MAX_BOXES = 32
"""How many boxes are looked at, from the end: the parts of one answer, and boxes that were never closed."""

_ANCHORS = ("final answer is", "answer is", "final answer:", "answer:", "answer =", "####")
_ENVIRONMENTS = (("$$", "$$"), ("\\[", "\\]"), ("\\(", "\\)"), ("$", "$"))
_JOINT = re.compile(r"[\s$]*(?:,|;|,?\s?and|,?\s?or|\\text\{ ?(?:and|or) ?\}|\\quad)[\s$]*")
_NUMBER = re.compile(r"(?<![\w.])[-−]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d))(?:\s?/\s?\d+)?(?:\s?\\?%)?")
_LETTER = re.compile(r"^\s*(?:\\(?:text|textbf|mathrm|mathbf)\s*\{)?\s*\**\(?\s*([A-J])(?![A-Za-z0-9_^(+/=\\-]|\*[^*])")
_LAST_LETTER = re.compile(r"(?:^|[\s(*\[])([A-J])(?=[)\].,:*\s]|$)")


def math_answer(response: str, *, require_boxed: bool = False) -> str:
    """The answer of a response: the last boxed one, else what the end announces, else its last formula, else number.

    Returns "" if there is none or it is longer than :data:`MAX_ANSWER_CHARS`. What a reasoning model writes before
    ``</think>`` is not looked at. Several boxes in a row, joined by a comma, "and" or "or", are one answer with parts.
    """
    text = after_thinking(response)
    answer = last_boxed(text)
    if answer is None and not require_boxed:
        tail = text[-TAIL_CHARS:]
        answer = _announced(tail) or _last_formula(tail) or _last_number(tail)
    answer = (answer or "").strip()
    return answer if len(answer) <= MAX_ANSWER_CHARS else ""


def choice_answer(response: str, *, require_boxed: bool = False) -> str:
    """The letter that a response chooses, A to J, or ""."""
    text = after_thinking(response)
    boxed = last_boxed(text)
    if boxed is not None:
        return choice_of_key(boxed)
    if require_boxed:
        return ""
    tail = text[-TAIL_CHARS:]
    announced = _anchored(tail)
    if announced and (letter := choice_of_key(announced)):
        return letter
    letters = _LAST_LETTER.findall(tail)
    return letters[-1] if letters else ""


def choice_of_key(text: str) -> str:
    """The letter at the start of ``D``, ``(D)``, ``\\text{D}``, ``D. 9.8 m/s``; "" if there is none."""
    match = _LETTER.match(text[:MAX_ANSWER_CHARS])
    return match.group(1) if match else ""


def after_thinking(response: str) -> str:
    """What follows the last ``</think>``, or everything."""
    return response.rpartition("</think>")[2]


def last_boxed(text: str) -> str | None:
    """The content of the last ``\\boxed{}``, joined with the boxes directly before it; None if no box is closed."""
    parts: list[str] = []
    end = len(text)
    following = None  # where the box after this one starts
    for _ in range(MAX_BOXES):
        start = text.rfind("\\boxed", 0, end)
        if start < 0:
            break
        found = _braced(text, start + len("\\boxed"))
        end = start
        if found is None:
            if parts:
                break
            continue  # a box cut off at the end of the response: the one before it counts
        content, stop = found
        if following is not None and not _joined(text, stop, following):
            break
        parts.insert(0, content)
        following = start
    return ", ".join(parts) if parts else None


def _joined(text: str, stop: int, start: int) -> bool:
    return 0 <= start - stop <= 24 and _JOINT.fullmatch(text, stop, start) is not None


def _braced(text: str, position: int) -> tuple[str, int] | None:
    """``(content, end)`` of the balanced ``{...}`` at ``position``; None if it is not closed within reach."""
    while position < len(text) and text[position] == " ":
        position += 1
    if position >= len(text) or text[position] != "{":
        return None
    depth, escaped = 0, False
    for index in range(position, min(len(text), position + MAX_ANSWER_CHARS + 2)):
        character = text[index]
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[position + 1 : index], index + 1
    return None


def _anchored(tail: str) -> str:
    """The rest of the line after the last "answer is", "Answer:" or "####"."""
    lowered = tail.lower()
    position = max(lowered.rfind(anchor) + len(anchor) if anchor in lowered else -1 for anchor in _ANCHORS)
    if position < 0:
        return ""
    return tail[position:].lstrip(" :*\n").partition("\n")[0].strip(" *")


def _announced(tail: str) -> str:
    """The answer in the announcing line: its first formula or number, otherwise the wording itself."""
    line = _anchored(tail)
    for opening, closing in _ENVIRONMENTS:
        start = line.find(opening)
        stop = line.find(closing, start + len(opening))
        if start >= 0 and stop >= 0:
            return line[start + len(opening) : stop]
    number = _NUMBER.search(line)
    return number.group().replace("$", "") if number else line.rstrip(".")


def _last_formula(tail: str) -> str:
    """The content of the formula that ends last."""
    best, best_end = "", -1
    for opening, closing in _ENVIRONMENTS:
        stop = tail.rfind(closing)
        start = tail.rfind(opening, 0, stop) if stop >= 0 else -1
        if start >= 0 and stop > best_end and tail[start + len(opening) : stop].strip():
            best, best_end = tail[start + len(opening) : stop], stop
    return best


def _last_number(tail: str) -> str:
    numbers = _NUMBER.findall(tail)
    return numbers[-1].replace("$", "") if numbers else ""
