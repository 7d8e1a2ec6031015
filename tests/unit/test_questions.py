"""verl_dots.questions: rows that are the same question are one question."""

from verl_dots.questions import Questions

ROWS = Questions(ids=["b", "a", "b", "c"], texts=["B", "A", "B again", "C"], truths=["2", 1, "3", ""])


def test_the_first_row_describes_a_question_and_the_order_is_kept():
    distinct = ROWS.distinct()
    assert (distinct.ids, distinct.texts, distinct.answers) == (["b", "a", "c"], ["B", "A", "C"], ["2", "1", ""])


def test_answers_are_known_for_all_or_for_none():
    assert Questions(ids=["a", "b"], texts=["A", "B"], truths=["1", None]).distinct().answers is None


def test_different_truths_of_one_question_are_counted():
    assert ROWS.conflicts == {"b": 2}
    assert Questions(ids=["a", "a"], texts=["A", "A"], truths=[[1], [1]]).conflicts == {}


def test_rows_of_one_question_that_ask_different_things_are_named_with_their_rows():
    variants = ["x", "x", "x", "x"]
    assert Questions(ROWS.ids, ROWS.texts, ROWS.truths, variants).merged == {}
    variants[2] = "y"  # "b" again
    assert Questions(ROWS.ids, ROWS.texts, ROWS.truths, variants).merged == {"b": (0, 2)}
    assert ROWS.merged == {}  # not looked at
