"""verl_dots.config: what a user may write, and one line that names key, value and remedy for what he may not."""

import dataclasses
import doctest
import math
import typing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_dots import config as module
from verl_dots.config import DotsConfig


def parse(block):
    return DotsConfig.from_mapping(block)


def leaves(cls=DotsConfig, prefix=()):
    """Every key as a path, with its default."""
    for field in dataclasses.fields(cls):
        hint = typing.get_type_hints(cls)[field.name]
        if dataclasses.is_dataclass(hint):
            yield from leaves(hint, (*prefix, field.name))
        else:
            yield (*prefix, field.name), field.default


def nested(path, value):
    for key in reversed(path):
        value = {key: value}
    return value


def at(config, path):
    for key in path:
        config = getattr(config, key)
    return config


def test_the_example_holds():
    assert doctest.testmod(module) == (0, 1)


class TestDefaults:
    @pytest.mark.parametrize(
        "block", [None, {}, {"selection": None, "replay": {}}, {"selection": {}, "reference": None, "predictor": None}]
    )
    def test_nothing_written_is_the_default(self, block):
        assert parse(block) == DotsConfig()

    def test_the_names_and_values_of_the_documented_block(self):
        documented = {
            "seed": 1,
            "reward_range": [0.0, 1.0],
            "selection": {
                "enable": True,
                "target": 0.6,
                "temperature": 0.1,
                "refresh_every": 2,
                "explore_fraction": 0.125,
            },
            "reference": {
                "mode": "window",
                "window": "all",
                "size": None,
                "min_size": 32,
                "reuse": True,
                "timeout_s": 600,
            },
            "predictor": {"embeddings": None, "checkpoint": None},
            "replay": {
                "enable": True,
                "fresh_fraction": None,
                "capacity": None,
                "max_age": None,
                "max_weight": 2.0,
                "behaviour": "trainer",
                "draw": "uniform",
                "fill": "informative",
            },
        }
        assert parse(documented) == DotsConfig()

    @pytest.mark.parametrize(("path", "default"), list(leaves()), ids=lambda value: str(value))
    def test_every_default_may_be_written_out(self, path, default):
        value = list(default) if isinstance(default, tuple) else default
        if path == ("predictor", "checkpoint"):
            assert default is None
        assert at(parse(nested(path, value)), path) == default

    def test_it_cannot_be_changed_later(self):
        with pytest.raises(dataclasses.FrozenInstanceError):
            DotsConfig().seed = 2

    @pytest.mark.parametrize(
        ("mode", "batch", "capacity", "size", "min_size"),
        [
            ("window", 64, 512, 512, 32),
            ("window", 8, 64, 256, 32),
            ("overlap", 64, 512, 256, 32),
            ("fresh", 8, 64, 64, 32),
            ("fresh", 2, 16, 16, 16),
        ],
    )
    def test_null_sizes_follow_the_batch_and_the_price_of_a_label(self, mode, batch, capacity, size, min_size):
        config = parse({"reference": {"mode": mode}}).resolve(train_batch_size=batch)
        assert (config.replay.capacity, config.reference.size, config.reference.min_size) == (capacity, size, min_size)
        assert config.resolve(train_batch_size=999) == config  # what is set stays

    @pytest.mark.parametrize(("batch", "fraction"), [(512, 0.5), (64, 0.5), (48, 2 / 3), (32, 1.0), (16, 1.0)])
    def test_half_of_a_batch_is_generated_but_no_fewer_than_32_groups(self, batch, fraction):
        assert parse({}).resolve(train_batch_size=batch).replay.fresh_fraction == pytest.approx(fraction)
        assert parse({"replay": {"fresh_fraction": 0.25}}).resolve(train_batch_size=batch).replay.fresh_fraction == 0.25

    def test_a_whole_number_will_do_for_a_float(self):
        value = parse({"selection": {"target": 1}}).selection.target
        assert value == 1.0 and isinstance(value, float)


BAD = [
    # key, value, words of the remedy
    ("seed", -1, "whole number >= 0"),
    ("seed", "1", "whole number"),
    ("seed", True, "whole number"),
    ("seed", None, "whole number"),
    ("reward_range", [1.0, 0.0], "lowest < highest"),
    ("reward_range", [0.0], "2 numbers"),
    ("reward_range", None, "2 numbers"),
    ("reward_range", [0.0, math.inf], "lowest < highest"),
    ("selection.enable", "yes", "true or false"),
    ("selection.enable", 1, "true or false"),
    ("selection.target", -0.01, r"\[0, 1\]"),
    ("selection.target", 1.01, r"\[0, 1\]"),
    ("selection.target", math.nan, "a number"),
    ("selection.target", "half", "a number"),
    ("selection.temperature", 0.0, "above 0"),
    ("selection.temperature", math.inf, "above 0"),
    ("selection.refresh_every", 0, ">= 1"),
    ("selection.refresh_every", 1.5, "whole number"),
    ("selection.explore_fraction", 1.5, r"\[0, 1\]"),
    ("reference.mode", "windows", "window or overlap or fresh"),
    ("reference.window", "recent", "all or explored"),
    ("reference.size", 1, ">= 2"),
    ("reference.min_size", 1, ">= 2"),
    ("reference.timeout_s", 0, "above 0"),
    ("stall_timeout_s", 0, "seconds above 0"),
    ("predictor.checkpoint", "p.safetensors", "predictor.embeddings"),
    ("predictor.embeddings", 5, "a text"),
    ("replay.fresh_fraction", 0.0, r"\(0, 2\]"),
    ("replay.fresh_fraction", 2.1, r"\(0, 2\]"),
    ("replay.capacity", 0, "null or a whole number >= 1"),
    ("replay.capacity", 4.0, "whole number"),
    ("replay.max_age", 0, "null or a whole number >= 1"),
    ("replay.max_weight", 0.5, "null or a number >= 1"),
    ("replay.behaviour", "engine", "trainer or rollout"),
    ("replay.draw", None, "uniform or informative"),
    ("replay.fill", True, "informative or none"),
    ("replay.warmup_steps", -1, ">= 0"),
]


class TestMistakes:
    @pytest.mark.parametrize(("key", "value", "remedy"), BAD, ids=[f"{key}={value}" for key, value, _ in BAD])
    def test_a_wrong_value_is_one_line_with_key_value_and_remedy(self, key, value, remedy):
        with pytest.raises(ValueError, match=remedy) as caught:
            parse(nested(key.split("."), value))
        message = str(caught.value)
        assert message.startswith(f"dots.{key}=") and "\n" not in message
        assert str(value if not isinstance(value, list) else value[0]) in message

    def test_more_labels_wanted_than_the_reference_set_holds(self):
        with pytest.raises(ValueError, match="dots.reference.min_size=32 .* at most reference.size=16"):
            parse({"reference": {"size": 16}})

    @pytest.mark.parametrize(
        ("block", "words"),
        [
            ({"selection": {"temprature": 1}}, r"^dots.selection.temprature .*did you mean dots.selection.temperature\?$"),
            ({"replays": {}}, r"^dots.replays does not exist: did you mean dots.replay\?$"),
            ({"delta": 0.5}, "^dots.delta .*known keys: predictor, .*, stall_timeout_s$"),
            ({1: 2}, "^dots.1 does not exist"),
        ],
    )
    def test_an_unknown_key_names_the_nearest(self, block, words):
        with pytest.raises(ValueError, match=words) as caught:
            parse(block)
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("block", [[1], 5, "paper", [["seed", 3]], True, []])
    def test_the_block_itself_must_be_a_block(self, block):
        with pytest.raises(ValueError, match="^dots=.* use a block of keys"):
            parse(block)
        with pytest.raises(ValueError, match="^dots.replay=.* use a block of keys"):
            parse({"replay": block})

    @settings(deadline=None)
    @given(
        st.sampled_from([path for path, _ in leaves()]),
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=3),
    )
    def test_any_value_is_taken_as_written_or_refused_in_one_line(self, path, value):
        try:
            config = parse(nested(path, value))
        except ValueError as error:
            assert str(error).startswith(f"dots.{'.'.join(path)}=") and "\n" not in str(error)
        else:
            taken = at(config, path)
            assert taken == (tuple(value) if isinstance(value, list) else value)
            assert isinstance(taken, bool) == isinstance(value, bool)
