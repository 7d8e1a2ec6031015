"""What a dry run finds, and its arithmetic against published sizes."""

import json

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.verl

CONFIG = """
data:
  train_files: none.parquet
  val_files: [none.parquet]
  train_batch_size: 512
  max_prompt_length: 1024
  max_response_length: 3072
trainer: {nnodes: 1, n_gpus_per_node: 8}
transfer_queue: {backend: {SimpleStorage: {total_storage_size: 100000}}}
reward: {custom_reward_function: {path: "pkg://verl_dots.rewards"}}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-Math-7B}
  actor:
    ppo_mini_batch_size: 64
    ppo_max_token_len_per_gpu: 11264
    fsdp_config: {param_offload: false, optimizer_offload: false}
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


BATCH = [
    ({"data__train_batch_size": 500}, "data.train_batch_size=500 is no multiple of actor.ppo_mini_batch_size=64"),
    ({"trainer__n_gpus_per_node": 6}, "rows do not divide among 6 GPUs"),
    ({"actor_rollout_ref__rollout__tensor_model_parallel_size": 3}, "tensor_model_parallel_size=3 does not divide 8 GPUs"),
    ({"actor_rollout_ref__rollout__n": 1}, "rollout.n=1: a group needs 2 rollouts or more"),
    ({"transfer_queue__backend__SimpleStorage__total_storage_size": 4000}, "total_storage_size=4000 rows"),
]


@pytest.mark.parametrize(("changed", "line"), BATCH)
def test_batches_that_do_not_divide(changed, line):
    from recipes.common.dry_run import batch_mistakes

    found = list(batch_mistakes(config(**changed), None))
    assert len(found) == 1 and line in found[0]


def test_what_the_replay_needs_of_the_store():
    from recipes.common.dry_run import batch_mistakes
    from verl_dots.config import DotsConfig

    dots = DotsConfig.from_mapping({"replay": {"capacity": 15_000}}).resolve(512)
    assert "batch, replay and reference set take 124096" in next(iter(batch_mistakes(config(), dots)))


MEMORY = [
    ({}, 40e9, "GB during rollouts do not fit a GPU of 40 GB"),
    ({"data__max_response_length": 4096}, 80e9, "prompt and response of 5120 tokens, and the model has 4096 positions"),
    ({"actor_rollout_ref__rollout__gpu_memory_utilization": 0.1}, 80e9, "the KV cache does not hold one full sequence"),
    ({"actor_rollout_ref__actor__ppo_max_token_len_per_gpu": 65536}, 80e9, "during the update do not fit"),
]


@pytest.mark.parametrize(("changed", "gpu", "line"), MEMORY)
def test_what_does_not_fit(changed, gpu, line):
    from recipes.common.dry_run import memory_mistakes
    from recipes.common.estimates import KNOWN, gpu_memory

    made, shape = config(**changed), KNOWN["Qwen2.5-Math-7B"]
    found = list(memory_mistakes(made, shape, gpu_memory(made, shape, gpu), gpu))
    assert any(line in mistake for mistake in found), found


def test_files_and_questions(tmp_path):
    import pyarrow
    import pyarrow.parquet

    from recipes.common.dry_run import missing_files, question_counts

    assert [line.split(":")[0] for line in missing_files(config())] == ["data.train_files", "data.val_files"]
    path = str(tmp_path / "few.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"prompt": ["a", "b"]}), path)
    made = config(data__train_files=path, data__val_files=[path])
    assert list(missing_files(made)) == []
    assert list(question_counts(made)) == ["data.train_batch_size=512, and data.train_files hold 2 questions"]


def test_a_wrong_override_is_one_line_and_exit_code_2(capsys):
    from recipes.common.dry_run import main

    assert main(["data.train_batch_sise=3"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dry run: error: ") and captured.err.count("\n") == 1
    assert "train_batch_sise" in captured.err
