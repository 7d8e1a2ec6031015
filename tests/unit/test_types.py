"""verl_dots.types: identity is the text, difficulty is the failure rate, every metric we write is described."""

import ast
import dataclasses
import doctest
import hashlib
import json
import math
import re
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import verl_dots
from verl_dots import types as module
from verl_dots.types import METRICS, Draw, Group, Observation, question_id, question_id_of_row


def test_the_example_holds():
    assert doctest.testmod(module) == (0, 4)


class TestQuestionId:
    def test_it_is_sha256_of_the_normalised_text(self):
        assert question_id("1+1=?") == hashlib.sha256(b"1+1=?").hexdigest()[:32]

    def test_it_does_not_change_between_releases(self):
        """Ids are in users' files."""
        assert question_id("1+1=?") == "b9ab5b7f58369cf5558c951a9e13db37"

    @settings(deadline=None)
    @given(st.text())
    def test_spelling_variants_and_outer_space_do_not_matter(self, text):
        variants = [f" \n{text}\t", unicodedata.normalize("NFD", text), unicodedata.normalize("NFC", text)]
        assert {question_id(variant) for variant in variants} == {question_id(text)}
        assert re.fullmatch("[0-9a-f]{32}", question_id(text))

    def test_composed_and_decomposed_letters_are_one_question_other_words_are_not(self):
        assert question_id("caf\u00e9") == question_id("cafe\u0301") != question_id("cafe")
        assert question_id("a b") != question_id("a  b")  # inner space is part of a question

    MESSAGES = [{"role": "user", "content": "1+1=?"}]

    @pytest.mark.parametrize(
        ("extra_info", "expected"),
        [
            ({"question_id": "0" * 32, "question": "other"}, "0" * 32),
            ({"question": "1+1=?", "index": 7}, question_id("1+1=?")),
            ({"question_id": "", "question": None}, question_id('[{"content": "1+1=?", "role": "user"}]')),
            ({}, question_id('[{"content": "1+1=?", "role": "user"}]')),
            (None, question_id('[{"content": "1+1=?", "role": "user"}]')),
        ],
    )
    def test_of_a_row_the_written_id_wins_then_the_question_then_the_messages(self, extra_info, expected):
        assert question_id_of_row(extra_info, self.MESSAGES) == expected

    def test_messages_are_the_same_question_in_any_container_and_key_order(self):
        reordered = np.array([{"content": "1+1=?", "role": "user"}], dtype=object)  # as parquet gives them
        assert question_id_of_row(None, reordered) == question_id_of_row(None, self.MESSAGES)

    def test_a_prompt_of_plain_text(self):
        assert question_id_of_row(None, " 1+1=? ") == question_id("1+1=?")


def group(rewards, complete=True):
    return Group("u", "q", 3, "explored", ("u_0_0",), tuple(rewards), complete)


class TestGroup:
    @settings(deadline=None)
    @given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.booleans())
    def test_it_is_informative_exactly_when_an_advantage_is_not_zero(self, rewards, complete):
        differ = any(reward != rewards[0] for reward in rewards)
        assert group(rewards, complete).informative == (complete and differ)

    def test_records_cannot_be_changed(self):
        for record in (group([1.0]), Draw(0, "q", "selected"), Observation("q", 1, "selected", 1.0, 2)):
            with pytest.raises(dataclasses.FrozenInstanceError):
                record.question_id = "x"


class TestObservation:
    @settings(deadline=None)
    @given(st.lists(st.floats(-1, 3), min_size=1, max_size=16))
    def test_difficulty_is_one_minus_the_scaled_mean_reward(self, rewards):
        seen = Observation.of(group(rewards), step=4, reward_range=(-1.0, 3.0), predicted=0.25)
        assert seen.difficulty == pytest.approx(1 - (np.mean(rewards) + 1) / 4, abs=1e-6)
        assert 0 <= seen.successes <= seen.trials
        assert seen.trials == len(rewards)
        assert (seen.question_id, seen.step, seen.source, seen.predicted) == ("q", 4, "explored", 0.25)

    @pytest.mark.parametrize(("rewards", "difficulty"), [([0, 0], 1.0), ([1, 1], 0.0), ([1, 0, 0, 0], 0.75)])
    def test_a_question_always_failed_has_difficulty_1(self, rewards, difficulty):
        assert Observation.of(group(rewards), 1, (0.0, 1.0)).difficulty == difficulty

    @pytest.mark.parametrize("bounds", [(0.0, 1.1), (-0.1, 0.7), (0.1, 0.3), (1000.0, 1001.1), (-1e-3, 0.0)])
    def test_a_bound_that_went_through_float32_is_the_bound(self, bounds):
        """verl keeps rewards as float32 (agent_loop.py, `rm_scores`): 1.1 comes back as 1.10000002, .7 as .69999999."""
        stored = [float(np.float32(bound)) for bound in bounds]
        assert [Observation.of(group([reward] * 3), 1, bounds).successes for reward in stored] == [0.0, 3.0]
        for outside in (bounds[0] - 0.01 * (bounds[1] - bounds[0]), bounds[1] + 0.01 * (bounds[1] - bounds[0])):
            with pytest.raises(ValueError, match="is outside dots.reward_range"):
                Observation.of(group([outside]), 1, bounds)

    @pytest.mark.parametrize("reward", [-0.1, 1.1, math.nan, math.inf])
    def test_a_reward_outside_the_range_names_question_value_and_key(self, reward):
        with pytest.raises(ValueError, match=rf"reward {reward} of question q .*dots.reward_range \[0.0, 1.0\]") as caught:
            Observation.of(group([0.5, reward]), 1, (0.0, 1.0))
        assert "\n" not in str(caught.value)


class TestMetrics:
    def test_names_have_our_prefixes_and_a_meaning_and_are_json(self):
        assert all(re.fullmatch(r"(dots|replay)/[a-z0-9_]+", name) for name in METRICS)
        assert all(meaning.strip() for meaning in METRICS.values())
        assert json.loads(json.dumps(METRICS)) == METRICS

    def test_every_metric_that_the_package_writes_is_described(self):
        written = {}
        for path in Path(verl_dots.__file__).parent.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and re.fullmatch(r"(dots|replay)/[a-z0-9_]+", str(node.value)):
                    written[node.value] = path.name
        assert written and {name: file for name, file in written.items() if name not in METRICS} == {}
