"""Questions, answers and noisy demonstrations of the arithmetic task. numpy only.

A question is a start value 0..99 and 1 to 6 operations, evaluated from left to right modulo 100; operands are 1..9 for
+ and -, 2..9 for *. It is written digit by digit, numbers units first, padded with `_` to six operations so that every
question has the same length. The answer is every running value as two digits, units first:

    (37 + 8) * 4   question  73+8*4________=   running values 45, 80   answer  5408

Legend: N problems, L = 6 the largest number of operations.
"""

from dataclasses import dataclass

import numpy as np

MAX_OPERATIONS = 6
OPERATIONS = "+-*"
PLUS, MINUS, TIMES, NONE = 0, 1, 2, -1
FILLER = "_"
QUESTION_LENGTH = 2 + 2 * MAX_OPERATIONS + 1  # characters
ANSWER_LENGTH = 2 * MAX_OPERATIONS  # characters at most, without the end token


@dataclass(frozen=True)
class Problems:
    """N problems. `operation` and `operand` are NONE and 0 beyond a problem's own length."""

    start: np.ndarray  # (N,) int64, 0..99
    operation: np.ndarray  # (N, L) int64, index into OPERATIONS, or NONE
    operand: np.ndarray  # (N, L) int64, 0..9

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows) -> "Problems":
        return Problems(self.start[rows], self.operation[rows], self.operand[rows])

    @property
    def length(self) -> np.ndarray:
        """Number of operations of each problem, the task's grade. # (N,) int64, 1..6"""
        return (self.operation != NONE).sum(axis=1)

    def questions(self) -> list[str]:
        symbols = np.array(list(OPERATIONS) + [FILLER])  # NONE is the last one
        digits = np.where(self.operation == NONE, FILLER, self.operand.astype(str))  # (N, L)
        pairs = np.char.add(symbols[self.operation], digits)  # (N, L)
        return [f"{start % 10}{start // 10}{''.join(row)}=" for start, row in zip(self.start, pairs, strict=True)]

    def answers(self, values: np.ndarray) -> list[str]:
        """Write running values (N, L) as the response that spells them."""
        return [
            "".join(f"{value % 10}{value // 10}" for value in row[:length])
            for row, length in zip(values, self.length, strict=True)
        ]


@dataclass(frozen=True)
class Mix:
    """What problems are made of.

    `length_weights` for 1..6 operations; `operation_weights` is a list of weights for (+, -, *), from which every
    problem takes one at random: several lists make problems of several kinds.
    """

    length_weights: tuple[float, ...]
    operation_weights: tuple[tuple[float, float, float], ...]


_ADD, _MULTIPLY, _MIXED = (1, 0, 0), (0, 0, 1), (1, 1, 4)
POOLS = {
    "x": Mix((1, 1, 1, 1, 2, 3), (_ADD,) * 2 + (_MULTIPLY,) * 3 + (_MIXED,)),
    "y": Mix((1, 1, 1, 1, 2, 3), (_ADD,) * 5 + (_MULTIPLY,) * 4 + (_MIXED,)),
    "z": Mix((3, 2, 1, 1, 2, 3), (_ADD,) * 8 + (_MULTIPLY,) * 3),
}


@dataclass(frozen=True)
class Slips:
    """How often a demonstration gets a step wrong; the error is carried on to the next step.

    kind `carry`: the carry (or borrow) out of the units is dropped; `tens`: the tens digit is off by one, up or down.
    The rates for * are those of operand 2 and 9, linear in between.
    """

    kind: str
    plus: float
    minus: float
    times: tuple[float, float]

    def rates(self) -> np.ndarray:
        """Probability of a slip by operation and operand. # (3, 10)"""
        table = np.zeros((3, 10))
        table[PLUS], table[MINUS] = self.plus, self.minus
        table[TIMES, 2:] = np.linspace(*self.times, 8)
        return table


CARRY_SLIPS = Slips("carry", plus=0.05, minus=0.25, times=(0.1, 0.8))
TENS_SLIPS = Slips("tens", plus=0.01, minus=0.10, times=(0.1, 0.8))


def draw_problems(mix: Mix, size: int, rng: np.random.Generator) -> Problems:
    """Draw `size` problems independently (some may be equal)."""
    length_weights = np.asarray(mix.length_weights, dtype=float)
    length = 1 + rng.choice(MAX_OPERATIONS, size=size, p=length_weights / length_weights.sum())  # (N,)
    weights = np.asarray(mix.operation_weights, dtype=float)[rng.integers(len(mix.operation_weights), size=size)]
    bounds = np.cumsum(weights / weights.sum(axis=1, keepdims=True), axis=1)  # (N, 3)
    uniform = rng.random((size, MAX_OPERATIONS))
    operation = (uniform[:, :, None] >= bounds[:, None, :-1]).sum(axis=2)  # (N, L)
    operand = np.where(
        operation == TIMES,
        rng.integers(2, 10, size=operation.shape),
        rng.integers(1, 10, size=operation.shape),
    )
    beyond = np.arange(MAX_OPERATIONS) >= length[:, None]
    return Problems(
        start=rng.integers(100, size=size),
        operation=np.where(beyond, NONE, operation),
        operand=np.where(beyond, 0, operand),
    )


def draw_distinct(mix: Mix, size: int, rng: np.random.Generator) -> Problems:
    """Draw `size` problems, no two of them equal.

    Raises ValueError when the mix does not hold that many.
    """
    rows: dict[tuple, None] = {}  # keeps the order of drawing
    for _ in range(50):
        batch = draw_problems(mix, size, rng)
        rows.update(dict.fromkeys(map(tuple, np.column_stack([batch.start, batch.operation, batch.operand]).tolist())))
        if len(rows) >= size:
            table = np.array(list(rows)[:size])
            return Problems(table[:, 0], table[:, 1 : 1 + MAX_OPERATIONS], table[:, 1 + MAX_OPERATIONS :])
    raise ValueError(f"only {len(rows)} distinct questions found, {size} asked for: ask for fewer")


def running_values(problems: Problems, slips: Slips | None = None, rng: np.random.Generator | None = None) -> np.ndarray:
    """The value after every operation, with errors where `slips` says so. # (N, L) int64, 0..99

    Beyond a problem's length the value repeats.
    """
    rates = slips.rates() if slips else None
    value = problems.start
    values = np.empty_like(problems.operation)
    for step in range(MAX_OPERATIONS):
        operation, operand = problems.operation[:, step], problems.operand[:, step]
        slipped = rng.random(len(problems)) < rates[operation, operand] if slips else np.zeros(len(problems), bool)
        tens, units = np.divmod(value, 10)
        raw = np.select(
            [operation == PLUS, operation == MINUS, operation == TIMES],
            [units + operand, units - operand, units * operand],
            units,
        )
        carry, units = np.divmod(raw, 10)  # a borrow is a carry of -1
        tens = np.where(operation == TIMES, tens * operand, tens)
        if slips and slips.kind == "carry":
            carry = np.where(slipped, 0, carry)
        elif slips:
            tens = tens + np.where(slipped, rng.choice([-1, 1], size=len(problems)), 0)
        value = np.where(operation == NONE, value, (tens + carry) % 10 * 10 + units)
        values[:, step] = value
    return values
