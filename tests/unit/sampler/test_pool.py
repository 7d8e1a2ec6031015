"""verl_dots.sampler: the questions of a file, each once, and how often each was drawn."""

import doctest
from collections import Counter

import numpy as np
import pytest

from tests.unit.sampler.conftest import ids, make
from verl_dots import sampler as module


def test_the_example_holds():
    assert doctest.testmod(module) == (0, 3)


class TestPool:
    def test_rows_with_one_id_are_one_question_fetched_by_its_first_row(self):
        sampler = make(["b", "a", "b", "c", "a"])
        assert sampler.pool == ["b", "a", "c"]
        assert len(sampler) == 3
        sampler.refresh(None, 3)
        assert {draw.question_id: draw.row for draw in sampler.request(3)} == {"b": 0, "a": 1, "c": 3}

    def test_no_questions(self):
        with pytest.raises(ValueError, match="no questions"):
            make([])

    def test_difficulties_are_read_in_the_order_of_the_pool(self):
        sampler = make(["b", "a", "b", "c"], explore_fraction=0.0, temperature=1e-9)
        sampler.refresh(np.array([1.0, 0.5, 0.7]), 3)  # b, a, c
        assert ids(sampler.request(3)) == ["a", "c", "b"]

    def test_as_many_difficulties_as_questions(self):
        with pytest.raises(AssertionError):
            make(["a", "b"]).refresh(np.array([0.5]), 1)

    def test_bad_difficulties_are_named(self):
        with pytest.raises(ValueError, match="1 of 2 difficulty values"):
            make(["a", "b"]).refresh(np.array([0.5, np.nan]), 1)


class TestOccurrences:
    def test_every_draw_is_counted_whatever_its_source(self):
        sampler = make(["a", "b"])
        assert sampler.occurrence("a") == 0
        sampler.refresh(None, 2)
        draws = sampler.request(5) + sampler.draw_reference(2)
        seen = Counter()
        for draw in draws:
            assert draw.occurrence == seen[draw.question_id]
            seen[draw.question_id] += 1
        assert {q: sampler.occurrence(q) for q in "ab"} == seen
        assert sum(seen.values()) == 7

    def test_one_question_twice_in_one_request_is_told_apart(self):
        sampler = make(["a"])
        sampler.refresh(None, 1)
        assert [draw.occurrence for draw in sampler.request(3)] == [0, 1, 2]
