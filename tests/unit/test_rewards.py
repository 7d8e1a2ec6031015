"""verl_dots.rewards: what counts as a right answer, as tables."""

import pytest

from verl_dots.rewards import can_be_scored, compute_score

# ground truth, answer as a model writes it in \boxed{}
EQUAL = [
    ("5", "5"),
    ("5", "5."),
    ("5", "05"),
    ("-3", "−3"),
    ("1000", "1,000"),
    ("1,234,567", "1234567"),
    ("10{,}000", "10000"),
    ("1/2", "0.5"),
    ("\\frac{1}{2}", "1/2"),
    ("\\frac12", "\\frac{1}{2}"),
    ("\\dfrac{3}{4}", "\\tfrac 3 4"),
    ("\\frac{2}{4}", "\\frac{1}{2}"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("2\\frac{1}{2}", "2.5"),
    ("\\frac{1}{3}", "0.333333"),
    ("\\frac{1}{3}", "0.\\overline{3}"),
    ("-446.\\overline{2}", "-\\frac{4016}{9}"),
    ("\\frac{1}{6}", "0.1\\overline{6}"),
    ("\\sqrt{8}", "2\\sqrt{2}"),
    ("\\frac{\\sqrt{3}}{3}", "\\frac{1}{\\sqrt{3}}"),
    ("\\sqrt[3]{8}", "2"),
    ("10^3", "1000"),
    ("1.5\\times 10^{3}", "1500"),
    ("1500", "1.5e3"),
    ("6.02e23", "6.02 \\times 10^{23}"),
    ("5!", "120"),
    ("\\binom{5}{2}", "10"),
    ("\\log_2 8", "3"),
    ("280\\pi", "280 \\pi"),
    ("x^2+2x+1", "(x+1)^2"),
    ("2x+1", "y=2x+1"),
    ("y = 2x + 1", "y = 1 + 2x"),
    ("5", "x = 5"),
    ("x=5", "5"),
    ("2+3i", "3i+2"),
    ("50\\%", "50\\%"),
    ("50\\%", "50%"),
    ("50\\%", "50"),
    ("50\\%", "0.5"),
    ("50", "50\\%"),
    ("0.5", "50\\%"),
    ("33\\frac{1}{3}\\%", "\\frac{1}{3}"),
    ("20 \\%", "20 \\text{ percent}"),
    ("5\\text{ cm}", "5"),
    ("5", "5 \\text{ cm}"),
    ("5", "5 cm"),
    ("5 \\mathrm{~m/s}", "5"),
    ("12\\sqrt{3}\\text{ cm}^2", "12\\sqrt{3}"),
    ("90^\\circ", "90"),
    ("90", "90^{\\circ}"),
    ("\\$5", "5"),
    ("5", "\\$5"),
    ("(1,2)", "(1, 2)"),
    ("[1,2)", "[1, 2)"),
    ("\\left(-\\infty,2\\right]", "(-\\infty, 2]"),
    ("(-\\infty, 1)\\cup(2,\\infty)", "(2,\\infty)\\cup(-\\infty,1)"),
    ("1 \\leq x \\leq 3", "[1,3]"),
    ("x<2", "(-\\infty,2)"),
    ("\\{1,2\\}", "\\{2, 1\\}"),
    ("1,2", "2, 1"),
    ("3 \\text{ and } 4", "4, 3"),
    ("\\emptyset", "\\{\\}"),
    ("\\pm 2", "-2, 2"),
    ("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}", "\\begin{pmatrix} 1 & 2 \\\\ 3 & 4 \\end{pmatrix}"),
    ("\\text{Monday}", "Monday"),
    ("\\text{no solution}", "No solution"),
    ("\\text{even}", "\\textbf{Even}"),
    ("\\text{(C)}", "C"),
    ("12:30", "12:30"),
    ("4406_{9}", "4406_9"),
    ("$\\frac{1}{2}$", "0.5"),
    ("\\dfrac{2469}{20,\\!000}", "0.12345"),
    ("\\frac{1}{105,000}", "\\frac{1}{105000}"),
    ("7\\sqrt{2}.", "\\sqrt{98}"),
    ("\\boxed{7}", "7"),
]

DIFFERENT = [
    ("5", "6"),
    ("5", "-5"),
    ("5", "55"),
    ("50", "0.5"),
    ("0.5", "50"),
    ("1/2", "1/3"),
    ("3.14", "\\pi"),
    ("1", "1.0001"),
    ("3^{100}", "3^{100}+1"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "(2,1)"),
    ("\\{1,2\\}", "\\{1,2,3\\}"),
    ("2", "1 \\text{ or } 2"),
    ("x+1", "x+2"),
    ("\\text{east}", "seat"),
    ("\\text{no}", "yes"),
    ("\\text{even}", "odd"),
    ("5", ""),
    ("5", "\\text{I do not know}"),
    ("12", "1 2"),
]

# a whole response, the answer found in it
FOUND = [
    ("First \\boxed{1}, no: \\boxed{2}.", "2"),
    ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
    ("\\boxed {3}", "3"),
    ("so $x=\\boxed{\\{1, 2\\}}$", "\\{1, 2\\}"),
    ("$\\boxed{1}$ and $\\boxed{2}$", "1, 2"),
    ("\\boxed{1}, \\boxed{2}, \\boxed{3}", "1, 2, 3"),
    ("\\boxed{4} and then it was cut off at \\boxed{\\frac{1", "4"),
    ("<think>\\boxed{1}</think> The answer is \\boxed{2}", "2"),
    ("<think>\\boxed{1}</think> I forgot.", ""),
    ("The final answer is $\\frac{3}{4}$. I hope it is correct.", "\\frac{3}{4}"),
    ("The answer is 1,080 dollars.", "1,080"),
    ("**Answer:** 42", "42"),
    ("She pays 3 * 6 = 18 dollars.\n#### 18", "18"),
    ("The answer is $18", "18"),
    ("therefore \\[ x = 7 \\] as claimed", "x = 7"),
    ("so the sum of 3 and 4 is 7", "7"),
    ("there are 2/3 of them", "2/3"),
    ("the answer is no solution.", "no solution"),
    ("nothing at all", ""),
    ("", ""),
]


def boxed(answer: str) -> str:
    return f"Some reasoning, $1 + 1 = 2$.\nThe answer is \\boxed{{{answer}}}."


@pytest.mark.parametrize(("gold", "answer"), EQUAL)
def test_equal_answers_score_one(gold, answer):
    result = compute_score("any", boxed(answer), gold)
    assert (result["score"], result["acc"], result["timed_out"]) == (1.0, 1.0, 0.0)


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different_answers_score_zero(gold, answer):
    result = compute_score("any", boxed(answer), gold)
    assert (result["score"], result["acc"], result["timed_out"]) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("response", "answer"), FOUND)
def test_the_answer_of_a_response(response, answer):
    assert compute_score("any", response, "1")["pred"] == answer


def test_a_box_can_be_required():
    assert compute_score("any", "The answer is 5", "5")["score"] == 1.0
    assert compute_score("any", "The answer is 5", "5", require_boxed=True)["score"] == 0.0
    assert compute_score("any", "The answer is \\boxed{5}", "5", require_boxed=True)["score"] == 1.0


def test_several_ground_truths_are_alternatives():
    for gold in (["1", "\\frac12"], ("1", "\\frac12")):
        assert compute_score("any", "\\boxed{0.5}", gold)["score"] == 1.0
        assert compute_score("any", "\\boxed{2}", gold)["score"] == 0.0


@pytest.mark.parametrize("gold", ["", "   ", [], None])
def test_no_ground_truth_is_never_right(gold):
    assert compute_score("any", "\\boxed{}", gold)["score"] == 0.0
    assert compute_score("any", "", gold)["score"] == 0.0


def test_numbers_as_ground_truth():
    assert compute_score("any", "\\boxed{204}", 204)["score"] == 1.0


CHOICES = [
    ("D", "\\boxed{D}", 1.0),
    ("(D)", "\\boxed{D}", 1.0),
    ("D", "\\boxed{(D)}", 1.0),
    ("D", "\\boxed{\\text{D}}", 1.0),
    ("D", "\\boxed{\\textbf{(D) } 9.8}", 1.0),
    ("D", "\\boxed{D. 9.8 m/s^2}", 1.0),
    ("D. 9.8", "The answer is (D).", 1.0),
    ("D", "Answer: **D**", 1.0),
    ("D", "Clearly (D) follows", 1.0),
    ("D", "It is A or B, so\nD", 1.0),
    ("D", "\\boxed{C}", 0.0),
    ("D", "\\boxed{Density}", 0.0),
    ("D", "The answer is (A), not (D)", 0.0),
    ("D", "d", 0.0),
    ("D", "", 0.0),
]


@pytest.mark.parametrize(("gold", "response", "score"), CHOICES)
def test_choices(gold, response, score):
    assert compute_score("any", response, gold, {"answer_kind": "choice"})["score"] == score


@pytest.mark.parametrize(
    ("gold", "response", "score"), [("4321", "4321", 1.0), ("4321", " 4321\n", 1.0), ("4321", "4321.0", 0.0), ("1", "", 0.0)]
)
def test_exact(gold, response, score):
    assert compute_score("any", response, gold, {"answer_kind": "exact"})["score"] == score


def test_the_kind_can_be_given_by_the_recipe():
    assert compute_score("any", "\\boxed{0.5}", "1/2", {"answer_kind": "math"}, kind="exact")["score"] == 0.0


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="'essay' is unknown: choose one of math, choice, exact"):
        compute_score("any", "x", "x", kind="essay")


def test_every_kind_returns_the_same_keys():
    """verl's reward loop takes the keys of the first row for all rows."""
    keys = {kind: set(compute_score("any", "\\boxed{A}", "A", kind=kind)) for kind in ("math", "choice", "exact")}
    assert set(map(frozenset, keys.values())) == {frozenset({"score", "acc", "pred", "timed_out"})}


@pytest.mark.parametrize(
    ("gold", "kind", "usable"),
    [
        ("5", "math", True),
        ("\\frac{1}{2}", "math", True),
        ("\\text{no solution}", "math", True),
        ("50\\%", "math", True),
        ("\\frac{1}{", "math", False),
        ("", "math", False),
        ("x" * 3000, "math", False),
        ("C", "choice", True),
        ("3.5", "choice", False),
        ("abc", "exact", True),
        ("", "exact", False),
    ],
)
def test_which_ground_truths_can_be_scored(gold, kind, usable):
    assert can_be_scored(gold, kind) is usable
