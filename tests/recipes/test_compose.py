"""Every recipe, METHOD and PRESET composed with verl's real configuration, validated by verl and by us, without a GPU."""

import copy
import functools

import pytest
from omegaconf import OmegaConf

from tests.recipes.scripts import METHODS, PRESETS, RECIPES, overrides, quickstart_overrides

pytestmark = pytest.mark.verl

MATH = "run_qwen2_5_math_1_5b_math_fsdp.sh"
# test_scripts.py shows that the other recipes differ in model, data and lengths only: for them one combination is enough
CASES = [(MATH, method, preset) for method in METHODS for preset in PRESETS]
CASES += [(recipe, "dots_rr", "default") for recipe in RECIPES if recipe != MATH]


@pytest.fixture(scope="module", autouse=True)
def every_yaml_is_parsed_once():
    """verl's configuration is 28 files, and parsing them takes half of a composition."""
    load, parsed = OmegaConf.load, {}

    def cached(file):
        key = getattr(file, "name", file)
        if key not in parsed:
            parsed[key] = load(file)
        return copy.deepcopy(parsed[key])

    OmegaConf.load = staticmethod(cached)
    yield
    OmegaConf.load = staticmethod(load)


def composed(recipe, method, preset):
    names = ("trainer.experiment_name=", "trainer.default_local_dir=", "hydra.run.dir=")
    words = [word for word in overrides(recipe, method, preset) if not word.startswith(names)]
    return _composed(tuple(words))


@functools.cache
def _composed(words):
    from verl_dots.integration import doctor_config

    return doctor_config.composed(words)


@pytest.mark.parametrize(("recipe", "method", "preset"), CASES)
def test_it_composes_and_verl_and_we_accept_it(recipe, method, preset):
    from recipes.common.dry_run import check_memory
    from verl_dots.diagnosis import batch
    from verl_dots.integration import doctor_config

    config = copy.deepcopy(composed(recipe, method, preset))
    findings, dots = doctor_config.check_dots(config)
    assert (dots is not None) == (method in ("dots", "rr", "dots_rr"))
    if dots is not None:
        assert (dots.selection.enable, dots.replay.enable) == (method != "rr", method != "dots")
        assert [finding.level for finding in findings] == ["ok"]
    shape = doctor_config.batch_shape(config)
    findings = [*doctor_config.check_verl(config), *batch.check_batch(shape), *check_memory(config, 80e9)]
    assert [finding for finding in findings if finding.level != "ok"] == []


# What METHOD may change: the trainer, the loss that corrects for replayed rollouts, verl's filter, and our own block.
SET_BY_METHOD = {
    "dots": {"trainer.v1.trainer_mode", "dots"},
    "rr": {"trainer.v1.trainer_mode", "actor_rollout_ref.actor.policy_loss.loss_mode", "dots"},
    "dots_rr": {"trainer.v1.trainer_mode", "actor_rollout_ref.actor.policy_loss.loss_mode", "dots"},
    "dapo": {"algorithm.filter_groups.enable"},
}


@pytest.mark.parametrize("method", SET_BY_METHOD)
@pytest.mark.parametrize("preset", PRESETS)
def test_treatment_and_baseline_differ_in_what_method_sets_only(method, preset):
    from verl_dots.integration.check import check

    treated = copy.deepcopy(composed(MATH, method, preset))
    if method != "dapo":
        check(treated)  # without replay the loss becomes verl's own
    baseline = flat(composed(MATH, "grpo", preset))
    treatment = flat(treated)
    different = {key for key in baseline.keys() | treatment.keys() if baseline.get(key) != treatment.get(key)}
    assert {"dots" if key.startswith("dots.") else key for key in different} == SET_BY_METHOD[method]


def flat(config):
    def walk(node, prefix):
        for key, value in node.items():
            if isinstance(value, dict):
                yield from walk(value, f"{prefix}{key}.")
            else:
                yield prefix + key, value

    return dict(walk(OmegaConf.to_container(config, resolve=False), ""))


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", ["grpo", "dots_rr"])
def test_the_quickstart_trains_as_its_preset_says(method, preset, tmp_path):
    """Its baseline too, which has no overlay: what PRESET sets comes last on the command line."""
    words = quickstart_overrides(tmp_path, METHOD=method, PRESET=preset, FRESH="")
    config = _composed(tuple(word for word in words if str(tmp_path) not in word))
    paper = preset == "paper"
    assert config.algorithm.norm_adv_by_std_in_grpo is not paper
    assert config.actor_rollout_ref.actor.loss_agg_mode == ("seq-mean-token-mean" if paper else "token-mean")
    if method == "dots_rr":
        assert config.dots.selection.target == (0.6 if preset == "default" else 0.5)
        expected = "dots_behaviour" if paper else "dots_decoupled"
        assert config.actor_rollout_ref.actor.policy_loss.loss_mode == expected
