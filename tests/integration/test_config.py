"""The overlay and the same keys in a YAML of one's own, composed with verl's real configuration; and what is refused."""

import copy
import dataclasses
import functools
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from tests.integration.compose import OVERLAY, composed, verl_config_dir
from verl_dots.config import DotsConfig

pytestmark = pytest.mark.verl

BASE = ["algorithm.adv_estimator=grpo", "data.train_batch_size=16", "actor_rollout_ref.rollout.n=8"]

OWN_YAML = """
defaults:
  - ppo_trainer
  - _self_
hydra:
  searchpath: [file://{verl}]
trainer: {{v1: {{trainer_mode: dots}}}}
data: {{dataloader_num_workers: 0}}
actor_rollout_ref: {{actor: {{policy_loss: {{loss_mode: dots_behaviour}}}}}}
dots:
  selection: {{target: 0.4}}
  replay: {{fresh_fraction: 0.75}}
"""


@functools.cache
def overlay_on_verl():
    return composed(*OVERLAY, *BASE)


def check(*overrides):
    """The check on the overlay with some values changed (composing anew for each would take seconds)."""
    from verl_dots.integration.check import check

    config = copy.deepcopy(overlay_on_verl())
    OmegaConf.set_struct(config, False)
    config.merge_with(OmegaConf.from_dotlist(list(overrides)))
    return check(config), config


def test_overlay_lists_every_key_with_its_default():
    listed = OmegaConf.to_container(overlay_on_verl().dots)
    assert listed == {**dataclasses.asdict(DotsConfig()), "reward_range": [0.0, 1.0]}


def test_overlay_switches_everything_on():
    dots, config = check("dots.selection.target=0.3")
    assert config.trainer.v1.trainer_mode == "dots"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "dots_decoupled"
    assert dots.selection.target == 0.3
    assert (dots.replay.capacity, dots.reference.size) == (128, 512)


def test_same_keys_in_ones_own_yaml(tmp_path):
    from verl_dots.integration.check import check

    (tmp_path / "mine.yaml").write_text(OWN_YAML.format(verl=verl_config_dir()))
    dots = check(composed(*BASE, config_dir=tmp_path, config_name="mine"))
    assert (dots.selection.target, dots.replay.fresh_fraction) == (0.4, 0.75)


def test_yaml_of_the_readme(tmp_path):
    from verl_dots.integration.check import check

    blocks = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8").split("```yaml\n")[1:]
    (text,) = [block.split("```")[0] for block in blocks if block.startswith("# mine.yaml")]
    (tmp_path / "mine.yaml").write_text(text)
    config = composed(*BASE, "dots.selection.target=0.3", config_dir=tmp_path, config_name="mine")
    assert (check(config).selection.target, check(config).replay.fresh_fraction) == (0.3, 0.75)
    assert config.trainer.v1.trainer_mode == "dots"


@pytest.mark.parametrize("preset", ["paper", "released"])
def test_presets_compose_and_pass_the_check(preset):
    from verl_dots.integration.check import check

    dots = check(composed(OVERLAY[0], f"+dots={preset}", *BASE, "data.train_batch_size=512"))
    assert (dots.reference.mode, dots.reference.size, dots.replay.capacity) == ("fresh", 256, 512)


def test_without_replay_the_loss_is_verls_own():
    _, config = check("dots.replay.enable=false")
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"


CORRECTION = "algorithm.rollout_correction"
LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
SAMPLER = "trainer.v1.sampler.custom_sampler"
REFUSED = [
    (["dots.replay.fresh_fration=0.5"], "fresh_fration does not exist: did you mean dots.replay.fresh_fraction?"),
    (["dots.replay.fresh_fraction=0"], "dots.replay.fresh_fraction=0.0 is not allowed: use null or a share in (0, 2]"),
    (["dots.replay.fresh_fraction=2.5"], "dots.replay.fresh_fraction=2.5 is not allowed"),
    (["actor_rollout_ref.rollout.n=null"], "actor_rollout_ref.rollout.n=None is not allowed: use a whole number >= 1"),
    (["trainer.v1.sync.poll_interval=0"], "trainer.v1.sync.poll_interval=0 is not allowed: use seconds above 0"),
    (["trainer.v1.sync.poll_interval=abc"], "poll_interval=abc is not allowed"),
    (["dots.selection.target=-0.1"], "dots.selection.target=-0.1 is not allowed: use a failure rate in [0, 1]"),
    (["dots.selection.temperature=0"], "dots.selection.temperature=0.0 is not allowed"),
    (["dots.reference.mode=windows"], "use window or overlap or fresh"),
    (["dots.reward_range=[1,0]"], "[lowest, highest] reward with lowest < highest"),
    (["dots.predictor.checkpoint=x"], "together with predictor.embeddings"),
    (["dots.predictor.embeddings=none.safetensors"], "no embeddings file 'none.safetensors'"),
    (["data.dataloader_num_workers=8"], "a prefetched selection would be stale"),
    (["trainer.use_v1=False"], "trainer.use_v1=False: verl-dots needs verl's V1 trainer"),
    (["trainer.v1.trainer_mode=sync"], f"trainer.v1.trainer_mode=sync with {LOSS}=dots_decoupled"),
    ([f"{LOSS}=vanilla"], f"{LOSS}=vanilla with dots.replay.enable=True"),
    (["trainer.v1.dots.x=1"], "trainer mode dots reads trainer.v1.sync"),
    ([f"{CORRECTION}.rollout_is=token"], "verl would overwrite our weights"),
    ([f"{CORRECTION}.rollout_rs=token_k1"], "it rewrites the masks of replayed rows"),
    (["dots.replay.behaviour=rollout"], "uses verl's own weights"),
    (["dots.replay.behaviour=rollout", "actor_rollout_ref.rollout.calculate_log_probs=false"], "calculate_log_probs=True"),
    (["dots.replay.behaviour=rollout", f"{LOSS}=dots_behaviour"], "needs algorithm.rollout_correction.bypass_mode=True"),
    (["transfer_queue.backend.SimpleStorage.total_storage_size=1000"], "each, need 1280: raise it"),
    (
        ["transfer_queue.backend.SimpleStorage.total_storage_size=2000", "dots.reference.mode=fresh"],
        "each, need 2304: raise it",
    ),
    (
        ["dots.replay.capacity=1", "dots.reference.mode=overlap", "dots.reference.size=20000"],
        "raise it, or lower dots.reference.size",
    ),
    (["algorithm.filter_groups.enable=True"], "use dots.replay.fill=informative instead"),
    (["dots.reference.mode=fresh", "reward.reward_model.enable=True"], "with a colocated reward model"),
    (["algorithm.adv_estimator=gae"], "algorithm.adv_estimator=gae with dots.replay.enable=True"),
    (["algorithm.adv_estimator=reinforce_plus_plus"], "so that groups with equal rewards teach too; use grpo"),
    (["distillation.enabled=true"], "distillation.enabled=True with dots.replay.enable=True"),
    (["actor_rollout_ref.actor.strategy=megatron"], "strategy=megatron: verl-dots works with verl's FSDP workers"),
    (["trainer.v1.sync.parameter_sync_step=2"], "trainer.v1.sync.parameter_sync_step=2"),
    ([f"{SAMPLER}.path=mine.py", f"{SAMPLER}.name=Mine"], f"set {SAMPLER}.path=null"),
    ([f"{SAMPLER}.path=m.py", f"{SAMPLER}.name=M", "dots.replay.enable=false"], f"{SAMPLER}.path=m.py"),
    (["reward.reward_kwargs.overlong_buffer_cfg.enable=true"], "set dots.reward_range=[-1,1]"),
    (["reward_model.reward_kwargs.overlong_buffer_cfg.enable=true"], "set dots.reward_range=[-1,1]"),
]


@pytest.mark.parametrize(("overrides", "message"), REFUSED, ids=lambda value: value[0] if isinstance(value, list) else "")
def test_mistakes_are_refused_in_one_line(overrides, message):
    with pytest.raises(ValueError) as caught:
        check(*overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


ALLOWED = [
    ["dots.replay.enable=false", "algorithm.adv_estimator=gae"],  # selection alone skips no group
    ["dots.replay.enable=false", "dots.selection.enable=false", f"{SAMPLER}.path=m.py", f"{SAMPLER}.name=M"],
    [f"{SAMPLER}.path=m.py"],  # without a name verl takes its own
    ["dots.reward_range=[-1,1]", "reward.reward_kwargs.overlong_buffer_cfg.enable=true"],
    ["actor_rollout_ref.actor.strategy=fsdp2", "trainer.v1.sync.parameter_sync_step=1"],
]


@pytest.mark.parametrize("overrides", ALLOWED, ids=" ".join)
def test_what_only_looks_like_a_mistake_passes(overrides):
    check(*overrides)


def test_a_check_that_breaks_does_not_let_the_run_start(monkeypatch, capsys):
    """Hydra swallows what a callback raises, unless it is SystemExit."""
    from verl_dots.integration import check as module

    monkeypatch.setattr(module, "doubts", lambda config, dots: {}["gone"])
    with pytest.raises(SystemExit) as ended:
        module.ConfigCheck().on_job_start(copy.deepcopy(overlay_on_verl()))
    assert ended.value.code == 1 and "KeyError: 'gone'" in capsys.readouterr().err


@pytest.mark.parametrize("replay", [True, False])
def test_a_kl_penalty_in_the_reward_is_one_warning_line_where_there_is_a_replay(replay, capsys):
    from verl_dots.integration.check import ConfigCheck

    config = copy.deepcopy(overlay_on_verl())
    config.merge_with(OmegaConf.from_dotlist(["algorithm.use_kl_in_reward=true", f"dots.replay.enable={replay}"]))
    ConfigCheck().on_job_start(config)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == replay
    assert not replay or "warning: algorithm.use_kl_in_reward=True" in lines[0] and "use_kl_loss=True instead" in lines[0]


@pytest.mark.parametrize(("fraction", "said"), [(1.0, 0), (1.5, 1)])
def test_verls_filter_beside_a_surplus_of_ours_is_one_warning_line(fraction, said, capsys):
    from verl_dots.integration.check import ConfigCheck

    config = copy.deepcopy(overlay_on_verl())
    options = ["algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=reward"]
    options += ["dots.selection.enable=false", f"dots.replay.fresh_fraction={fraction}"]
    config.merge_with(OmegaConf.from_dotlist(options))
    ConfigCheck().on_job_start(config)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == said
    assert not said or "verl generates until 1.5 batches are informative; use one of the two" in lines[0]


STORE = "transfer_queue.backend.SimpleStorage.total_storage_size"


@pytest.mark.parametrize(
    ("overrides", "rows", "message"),
    [
        ([], (15, 0), "data.train_batch_size=16: the training data set has 15 rows after verl's length filter"),
        ([f"{STORE}=1500", "trainer.test_freq=5"], (16, 349), f"{STORE}=1500 rows, but a validation of 349 beside"),
        ([f"{STORE}=1500", "trainer.test_freq=5", "actor_rollout_ref.rollout.val_kwargs.n=4"], (16, 88), "needs 1504"),
    ],
)
def test_data_sets_that_are_too_small_or_too_large_are_refused_in_one_line(overrides, rows, message):
    from verl_dots.integration.check_data import check_data_sizes

    dots, config = check(*overrides)
    with pytest.raises(ValueError, match="set data.train_batch_size to 15|lower data.val_batch_size") as caught:
        check_data_sizes(config, dots, *rows)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.test_freq=5", "data.val_batch_size=348"],
        ["trainer.test_freq=-1"],
        ["trainer.test_freq=5", "dots.replay.enable=false"],
    ],
)
def test_a_validation_that_fits_beside_the_replay_passes(overrides):
    from verl_dots.integration.check_data import check_data_sizes

    dots, config = check(f"{STORE}=1500", *overrides)
    check_data_sizes(config, dots, 16, 5000)


SOURCES = [
    ("math_dapo", [], True),
    ("aime_2024", [], True),
    ("math", ["dots.reward_range=[0,2]"], True),
    ("math_dapo", ["dots.reward_range=[-1,1]"], False),
    ("math_dapo", ["reward.custom_reward_function.path=mine.py"], False),
    ("math_dapo", ["custom_reward_function.path=mine.py"], False),
    ("math_dapo", ["reward.reward_model.enable=true"], False),
    ("openai/gsm8k", [], False),
    ("numina_amc_aime", [], False),
]


@pytest.mark.parametrize(("source", "overrides", "refused"), SOURCES)
def test_data_sources_that_verls_own_reward_function_gives_minus_one_need_the_range(source, overrides, refused):
    from verl_dots.integration.check_data import check_default_rewards

    dots, config = check(*overrides)
    if not refused:
        return check_default_rewards(config, dots, ["openai/gsm8k", source])
    with pytest.raises(ValueError, match=r"outside dots.reward_range \[0.*set dots.reward_range=\[-1,1\]") as caught:
        check_default_rewards(config, dots, ["openai/gsm8k", source])
    assert source in str(caught.value) and "\n" not in str(caught.value)


def test_verls_own_reward_function_does_give_minus_one_for_them():
    from verl.utils.reward_score import default_compute_score

    for source in ("math_dapo", "aime_2024", "math"):
        result = default_compute_score(source, "The answer is 3", "4")
        assert (result["score"] if isinstance(result, dict) else result) == -1


def test_an_override_on_the_command_line_reaches_the_overlay():
    config = composed(*OVERLAY, "dots.selection.target=0.3", "dots.replay.max_age=7")
    assert (config.dots.selection.target, config.dots.replay.max_age) == (0.3, 7)


THROUGH_VERL = [
    ("dots.selection.target=2", "dots.selection.target=2.0 is not allowed: use a failure rate in [0, 1]"),
    (
        "dots.predictor.embeddings=none.safetensors",
        "no embeddings file 'none.safetensors': run python data_prep/embed_questions.py --questions FILE "
        "--output none.safetensors",
    ),
    (
        "data.dataloader_num_workers=8",
        "data.dataloader_num_workers=8: a prefetched selection would be stale, set data.dataloader_num_workers=0",
    ),
]


@pytest.mark.parametrize(("override", "line"), THROUGH_VERL, ids=lambda value: value.partition("=")[0])
def test_through_verls_command_line_a_mistake_is_one_line_and_exit_code_2(override, line, tmp_path):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *OVERLAY, *BASE, override, "hydra.run.dir=hydra"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1] == f"verl-dots: {line}"
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["hydra"]  # Hydra's own record of the command; no run
