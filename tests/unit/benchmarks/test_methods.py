import pytest
from methods import Method, parse_value, preset_settings


def test_default_preset_is_the_configuration_default():
    method = Method.make("dots_rr", overrides=["batch=32"])
    assert method.dots.replay.capacity == 8 * 32 and method.dots.reference.size == 512
    assert (method.loss, method.norm_by_std, method.mean_of_rows) == ("decoupled", True, False)
    assert method.dots.replay.enable and method.dots.selection.enable


@pytest.mark.parametrize(
    ("name", "selection", "replay"), [("grpo", False, False), ("rr", False, True), ("dots", True, False)]
)
def test_method_switches_the_two_parts(name, selection, replay):
    method = Method.make(name)
    assert (method.dots.selection.enable, method.dots.replay.enable) == (selection, replay)


def test_paper_preset_brings_its_loss_and_scales_its_sizes_with_the_batch():
    method = Method.make("dots_rr", "paper", ["batch=64"])
    assert (method.loss, method.norm_by_std, method.mean_of_rows) == ("behaviour", False, True)
    assert (method.dots.reference.size, method.dots.replay.capacity) == (32, 64)
    assert method.dots.reference.mode == "fresh" and method.dots.replay.fill == "none"
    assert Method.make("dots_rr", "paper", ["batch=512"]).dots.reference.size == 256
    assert Method.make("dots_rr", "paper", ["reference.size=64"]).dots.reference.size == 64
    assert preset_settings("released")["own"]["loss"] == "decoupled"


def test_numbers_in_overrides():
    values = [parse_value(text) for text in ("1e-3", "0.5", "3", "null", "false", "overlap")]
    assert values == [1e-3, 0.5, 3, None, False, "overlap"]
    method = Method.make("dots_rr", overrides=["selection.temperature=1e-3", "learning_rate=6e-4", "dots.seed=5"], seed=9)
    assert method.dots.selection.temperature == 1e-3 and method.learning_rate == 6e-4
    assert method.dots.seed == 9  # the run's seed decides


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ppo",), "method 'ppo' is unknown"),
        (("grpo", "ours"), "preset 'ours' is unknown"),
        (("grpo", "default", ["batch"]), "not key=value"),
        (("dots", "default", ["selection.temprature=1"]), "did you mean dots.selection.temperature"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Method.make(*arguments)
