"""Questions, answers and demonstrations, against a scalar evaluation written from the description."""

import numpy as np
import pytest

from verl_dots.cpu.arithmetic.reward import compute_score
from verl_dots.cpu.arithmetic.settings import STAGES, ModelSize, WarmStart
from verl_dots.cpu.arithmetic.task import (
    CARRY_SLIPS,
    MINUS,
    PLUS,
    POOLS,
    QUESTION_LENGTH,
    TENS_SLIPS,
    TIMES,
    Mix,
    Problems,
    draw_distinct,
    draw_problems,
    running_values,
)

EVERYTHING = Mix((1, 1, 1, 1, 1, 1), ((1, 1, 1),))


def evaluate(question: str) -> str:
    """The answer from the text of a question alone."""
    value = int(question[1]) * 10 + int(question[0])
    answer = ""
    for symbol, digit in zip(question[2:-1:2], question[3:-1:2], strict=True):
        if symbol == "_":
            break
        value = {"+": value + int(digit), "-": value - int(digit), "*": value * int(digit)}[symbol] % 100
        answer += f"{value % 10}{value // 10}"
    return answer


def test_worked_example():
    problem = Problems(np.array([37]), np.array([[PLUS, TIMES, -1, -1, -1, -1]]), np.array([[8, 4, 0, 0, 0, 0]]))
    assert problem.questions() == ["73+8*4________="]
    assert problem.answers(running_values(problem)) == ["5408"]
    assert problem.length.tolist() == [2]


def test_answers_follow_from_the_text():
    problems = draw_problems(EVERYTHING, 2000, np.random.default_rng(0))
    questions = problems.questions()
    assert {len(question) for question in questions} == {QUESTION_LENGTH}
    assert problems.answers(running_values(problems)) == [evaluate(question) for question in questions]


@pytest.mark.parametrize("pool", POOLS)
def test_pools_are_distinct_and_within_range(pool):
    problems = draw_distinct(POOLS[pool], 1500, np.random.default_rng(1))
    assert len(set(problems.questions())) == 1500
    real = problems.operation >= 0
    assert problems.operand[real].min() >= 1 and problems.operand[real].max() == 9
    assert problems.operand[problems.operation == TIMES].min() == 2
    assert not problems.operand[~real].any()
    assert set(np.unique(problems.length)) == {1, 2, 3, 4, 5, 6}
    assert problems.start.min() == 0 and problems.start.max() == 99


def test_a_pool_mixes_kinds_of_questions():
    problems = draw_problems(POOLS["x"], 6000, np.random.default_rng(2))
    only_plus = ((problems.operation == PLUS) | (problems.operation < 0)).all(axis=1)
    only_times = ((problems.operation == TIMES) | (problems.operation < 0)).all(axis=1)
    # 2 of 6 kinds are additions and 3 of 6 multiplications; the mixed kind adds a few short ones to both
    assert 0.32 < only_plus.mean() < 0.38 and 0.50 < only_times.mean() < 0.60


def test_too_many_distinct_questions():
    tiny = Mix((1, 0, 0, 0, 0, 0), ((1, 0, 0),))  # 100 starts, 9 operands
    with pytest.raises(ValueError, match="only 900 distinct questions found, 1000 asked for"):
        draw_distinct(tiny, 1000, np.random.default_rng(0))


def one_step(operation: int, operand: int, size: int) -> Problems:
    rows = np.full((size, 6), -1)
    rows[:, 0] = operation
    operands = np.zeros((size, 6), dtype=int)
    operands[:, 0] = operand
    return Problems(np.random.default_rng(0).integers(100, size=size), rows, operands)


@pytest.mark.parametrize(
    ("operation", "operand", "rate"), [(PLUS, 7, 0.01), (MINUS, 3, 0.10), (TIMES, 2, 0.1), (TIMES, 9, 0.8), (TIMES, 5, 0.4)]
)
def test_tens_slips_are_off_by_ten_at_their_rate(operation, operand, rate):
    problems = one_step(operation, operand, 20_000)
    right, noisy = running_values(problems), running_values(problems, TENS_SLIPS, np.random.default_rng(1))
    error = (noisy - right)[:, 0] % 100
    assert set(np.unique(error)) <= {0, 10, 90}
    assert (error > 0).mean() == pytest.approx(rate, abs=0.015)


def test_carry_slips_need_a_carry():
    problems = one_step(PLUS, 7, 20_000)
    right, noisy = running_values(problems), running_values(problems, CARRY_SLIPS, np.random.default_rng(1))
    carries = problems.start % 10 >= 3
    wrong = (noisy != right)[:, 0]
    assert not wrong[~carries].any()
    assert wrong[carries].mean() == pytest.approx(0.05, abs=0.01)
    assert ((right - noisy)[wrong, 0] % 100 == 10).all()  # the carry is missing from the tens


def test_errors_are_carried_on():
    problems = draw_problems(Mix((0, 0, 0, 0, 0, 1), ((1, 0, 0),)), 3000, np.random.default_rng(3))
    right, noisy = running_values(problems), running_values(problems, CARRY_SLIPS, np.random.default_rng(4))
    first = (noisy != right).argmax(axis=1)
    wrong = (noisy != right).any(axis=1)
    # after a dropped carry in a chain of additions, later values stay wrong unless another slip changes them again
    assert ((noisy != right)[wrong, -1]).mean() > 0.99
    assert (first[wrong] < 5).any()


def test_reward_is_exact_match_of_the_whole_response():
    assert compute_score("arithmetic", "5408", "5408") == 1.0
    assert compute_score("arithmetic", "54080", "5408", extra_info={"grade": 2}) == 0.0
    assert compute_score("arithmetic", "", "5408") == 0.0


def test_cache_key_follows_the_settings():
    keys = {
        WarmStart().key(),
        WarmStart(seed=1).key(),
        WarmStart(task="carry_slip").key(),
        WarmStart(size=ModelSize(width=128)).key(),
    }
    assert len(keys) == 4 and WarmStart().key() in keys
    assert {stage.slips.kind for stage in STAGES["carry_slip"]} == {"carry"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelSize(width=60, heads=8), "width 60 must be a multiple of twice the heads"),
        (lambda: WarmStart(task="nothing"), "task 'nothing' is unknown: use one of tens_slip, carry_slip"),
    ],
)
def test_wrong_settings(make, message):
    with pytest.raises(ValueError, match=message):
        make()
