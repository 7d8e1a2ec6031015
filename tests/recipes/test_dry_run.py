"""The estimates against published sizes, and what a dry run says."""

import json

import pytest
from omegaconf import OmegaConf

from tests.recipes.scripts import overrides

pytestmark = pytest.mark.verl

CONFIG = """
data: {train_batch_size: 512, max_prompt_length: 1024, max_response_length: 3072}
trainer: {nnodes: 1, n_gpus_per_node: 8, total_training_steps: 60}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-Math-7B}
  actor: {ppo_max_token_len_per_gpu: 11264, fsdp_config: {param_offload: false, optimizer_offload: false}}
  rollout: {n: 8, tensor_model_parallel_size: 1, gpu_memory_utilization: 0.7}
"""


def config(**changed):
    made = OmegaConf.create(CONFIG)
    for key, value in changed.items():
        OmegaConf.update(made, key.replace("__", "."), value)
    return made


@pytest.mark.parametrize(
    ("name", "billions", "kv_bytes"),
    [("Qwen2.5-Math-1.5B", 1.54, 28_672), ("Qwen2.5-3B", 3.09, 36_864), ("Qwen2.5-Math-7B", 7.62, 57_344)],
)
def test_parameters_as_published(name, billions, kv_bytes):
    from recipes.common.estimates import KNOWN

    assert KNOWN[name].parameters / 1e9 == pytest.approx(billions, abs=0.01)
    assert KNOWN[name].kv_bytes_per_token == kv_bytes


def test_a_models_own_configuration_is_read(tmp_path):
    from transformers import Qwen2Config

    from recipes.common.estimates import KNOWN, model_shape

    shape = KNOWN["Qwen2.5-3B"]
    fields = {name: getattr(shape, name) for name in shape.__dataclass_fields__}
    (tmp_path / "config.json").write_text(json.dumps(Qwen2Config(**fields).to_dict()))
    assert model_shape(str(tmp_path)) == shape
    with pytest.raises(ValueError, match="no configuration of a decoder there"):
        model_shape(str(tmp_path / "none"))


def test_memory_of_seven_billion_on_eight_gpus():
    """16 bytes a parameter (weights, gradients, two moments in float32) spread over ranks; offloading takes them away."""
    from recipes.common.estimates import KNOWN, gpu_memory

    shape = KNOWN["Qwen2.5-Math-7B"]
    update = gpu_memory(config(), shape, 80e9).update
    states = update["actor weights"] + update["gradients"] + update["optimiser"]
    assert states == pytest.approx(16 * shape.parameters / 8)
    offloaded = config(actor_rollout_ref__actor__fsdp_config={"param_offload": True, "optimizer_offload": True})
    rollout = gpu_memory(offloaded, shape, 80e9).rollout
    assert rollout["actor weights"] == rollout["optimiser"] == 0
    assert rollout["engine weights"] + rollout["KV cache and engine"] == pytest.approx(0.7 * 80e9)


DOES_NOT_FIT = [
    ({}, 40e9, "during rollouts about 43 of 40 GB"),
    ({"data__max_response_length": 4096}, 80e9, "prompt and response take 5120 positions, the model has 4096"),
    ({"actor_rollout_ref__rollout__gpu_memory_utilization": 0.1}, 80e9, "holds 0 sequences of 4096 tokens"),
    ({"actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 65536}, 80e9, "during the update about"),
    ({"actor_rollout_ref__model__path": "/no/model"}, 80e9, "/no/model: no configuration of a decoder there"),
]


@pytest.mark.parametrize(("changed", "gpu", "line"), DOES_NOT_FIT)
def test_what_does_not_fit(changed, gpu, line):
    from recipes.common.dry_run import check_memory

    wrong = [finding for finding in check_memory(config(**changed), gpu) if finding.level == "fail"]
    assert len(wrong) == 1 and line in wrong[0].message


def test_what_fits():
    from recipes.common.dry_run import check_memory

    assert {finding.level for finding in check_memory(config(), 80e9)} == {"ok"}


def test_twice_the_gpus_take_half_the_hours():
    from recipes.common.estimates import KNOWN, hours

    shape = KNOWN["Qwen2.5-3B"]
    one, two = (hours(config(trainer__nnodes=nodes), shape, 60, 1000, 989e12) for nodes in (1, 2))
    assert one == pytest.approx(2 * two)


def test_configuration_to_stdout_findings_to_stderr(tmp_path, capsys):
    """The data sets are not here, so doctor's exit code is 1."""
    from recipes.common.dry_run import main

    files = f"data.train_files={tmp_path}/none.parquet"
    assert main(overrides("run_qwen2_5_math_7b_deepscaler_fsdp.sh", "dots_rr", "paper", files)) == 1
    captured = capsys.readouterr()
    written = OmegaConf.create(captured.out)
    assert (written.trainer.v1.trainer_mode, written.dots.reference.size) == ("dots", 256)
    assert "DOTS and RR active, loss dots_behaviour" in captured.err
    assert "none.parquet: no such file" in captured.err
    assert "60 steps of plain GRPO take about" in captured.err


def test_files_that_a_run_would_build_are_no_mistake(tmp_path, capsys, monkeypatch):
    """As a recipe in a fresh checkout: exit code 0, and the missing files are named with what happens to them."""
    recipe, data = "run_qwen2_5_3b_scp25k_fsdp.sh", tmp_path / "data"
    words = overrides(recipe, "dots_rr", "default", f"data.train_files={data}/a.parquet", f"data.val_files={data}/b.parquet")
    monkeypatch.setenv("QUESTIONS_TO_BUILD", f"{data}/a.parquet,{data}/b.parquet")
    from recipes.common.dry_run import main

    assert main(words) == 0
    printed = capsys.readouterr().err
    assert f"warning files          data.train_files={data}/a.parquet: not there yet" in printed
    assert printed.count("-> a run builds it first") == 2 and "FAIL" not in printed
    monkeypatch.setenv("QUESTIONS_TO_BUILD", f"{data}/a.parquet")
    assert main(words) == 1
    assert f"FAIL    files          data.val_files={data}/b.parquet: no such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "variables", "line"),
    [
        (["data.train_batch_sise=3"], {}, "the configuration does not compose: Could not override 'data.train_batch_sise'"),
        ([], {"GPU_MEMORY_GB": "many"}, "GPU_MEMORY_GB=many is not allowed: use a number above 0"),
    ],
)
def test_a_mistake_is_one_line(words, variables, line, monkeypatch, capsys):
    from recipes.common.dry_run import main
    from verl_dots.files import run_cli

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        run_cli(main, words)
    captured = capsys.readouterr()
    assert (ended.value.code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert line in captured.err
