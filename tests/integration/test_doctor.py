"""The doctor on verl's real configuration and a real Ray: a run that works passes, and each mistake is named."""

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from verl_dots import doctor

pytestmark = pytest.mark.verl

ROOT = Path(__file__).resolve().parents[2]
OVERLAY = ["hydra.searchpath=[pkg://verl_dots.configs]", "+dots=default"]
ENVIRONMENT = {"VERL_PLATFORM": "cpu", "RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
STORAGE = "transfer_queue.backend.SimpleStorage"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@pytest.fixture(scope="module")
def works(tmp_path_factory):
    """The overrides of a small run on a CPU in which nothing is wrong."""
    folder = tmp_path_factory.mktemp("task")
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": f"{n}+1="}],
            "reward_model": {"style": "rule", "ground_truth": str(n + 1)},
            "extra_info": {"question": f"{n}+1="},
        }
        for n in range(200)
    ]
    for name in ("train", "val"):
        pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
    (folder / "model").mkdir()
    return [
        f"data.train_files={folder}/train.parquet",
        f"data.val_files={folder}/val.parquet",
        "data.train_batch_size=16",
        "data.max_prompt_length=16",
        "data.max_response_length=16",
        f"actor_rollout_ref.model.path={folder}/model",
        "+actor_rollout_ref.model.override_config.attn_implementation=sdpa",
        f"{ACTOR}.ppo_mini_batch_size=8",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=64",
        f"{ACTOR}.use_kl_loss=False",
        f"{ROLLOUT}.name=dots_cpu",
        f"{ROLLOUT}.n=8",
        f"{ROLLOUT}.tensor_model_parallel_size=1",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=64",
        "algorithm.adv_estimator=grpo",
        "trainer.device=cpu",
        "trainer.n_gpus_per_node=1",
        "trainer.use_v1=True",
        f"{STORAGE}.num_data_storage_units=1",
        "+ray_kwargs.ray_init.address=local",
        "ray_kwargs.ray_init.num_cpus=5",
        "+ray_kwargs.ray_init.resources.NPU=1",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.object_store_memory=100000000",
    ]


def examine(capsys, *overrides):
    """Exit code, and what was printed, of the checks that need no Ray; in this process, to compose in seconds."""
    code = doctor.main([*overrides, "--config-only"])
    return code, capsys.readouterr().out


def command(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "verl_dots.doctor", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT, **environment},
        timeout=400,
    )


@pytest.fixture(autouse=True)
def on_a_cpu(monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("RAY_ADDRESS", "VERL_USE_EXTERNAL_PLUGINS"):
        monkeypatch.delenv(name, raising=False)


def test_a_run_in_which_nothing_is_wrong(capsys, works):
    code, printed = examine(capsys, *OVERLAY, *works, "dots.replay.fresh_fraction=0.5")
    assert code == 0, printed
    assert "DOTS and RR active, loss dots_decoupled" in printed
    assert "8 groups generated and 8 replayed per step" in printed
    assert printed.splitlines()[-1].startswith("0 wrong, ")


def test_verls_own_grpo_passes_and_the_doctor_says_that_we_are_off(capsys, works):
    code, printed = examine(capsys, *works)
    assert code == 0, printed
    assert "warning configuration  verl-dots is off" in printed


MISTAKES = {
    "wrong loss mode": (
        [f"{ACTOR}.policy_loss.loss_mode=vanilla"],
        "loss_mode=vanilla with dots.replay.enable=True",
        "set actor_rollout_ref.actor.policy_loss.loss_mode=dots_decoupled",
    ),
    "verl's own trainer with our block": (["trainer.v1.trainer_mode=sync"], "trainer_mode=sync", "trainer_mode=dots"),
    "a key that does not exist": (["+dots.replay.capasity=3"], "dots.replay.capasity does not exist", "did you mean"),
    "missing embeddings": (
        ["dots.predictor.embeddings=absent.safetensors"],
        "no embeddings file 'absent.safetensors'",
        "run python data_prep/embed_questions.py",
    ),
    "missing data": (["data.val_files=absent.parquet"], "data.val_files=absent.parquet: no such file", "data_prep/"),
    "a mini-batch that does not divide": (
        ["trainer.n_gpus_per_node=3", "ray_kwargs.ray_init.num_cpus=12", "ray_kwargs.ray_init.resources.NPU=3"],
        "8 questions x 8 rollouts = 64 rows does not divide by 3 data-parallel ranks",
        "set actor_rollout_ref.actor.ppo_mini_batch_size to a multiple of 3",
    ),
    "a micro-batch that does not divide": (
        [f"{ACTOR}.ppo_micro_batch_size_per_gpu=48"],
        "64 rows of a mini-batch per rank do not divide by",
        "set it to 16",
    ),
    "dynamic batches for log-probs alone": (
        [f"{ROLLOUT}.log_prob_use_dynamic_bsz=True"],
        "use_dynamic_bsz=False and rollout.log_prob_use_dynamic_bsz=True",
        "log_prob_use_dynamic_bsz=False",
    ),
    "what verl refuses": ([f"{ACTOR}.ppo_mini_batch_size=32"], "train_batch_size (16) must be >=", "verl's configuration"),
    "fewer rows than a batch": (
        ["data.train_max_samples=10"],
        "10 rows are fewer than data.train_batch_size=16",
        "set data.train_batch_size to 10 or less",
    ),
    "storage too small": (
        [f"{STORAGE}.total_storage_size=1000"],
        f"do not fit {STORAGE}.total_storage_size=1,000",
        f"set {STORAGE}.total_storage_size=1800",
    ),
    "too few CPUs": (
        ["ray_kwargs.ray_init.num_cpus=4"],
        "Ray has 4 logical CPUs free, the run needs 5",
        "set ray_kwargs.ray_init.num_cpus=5 or more",
    ),
    "an accelerator that is not declared": (
        ["ray_kwargs.ray_init.resources.NPU=0"],
        "Ray has 0 NPU free, the run needs 1",
        "+ray_kwargs.ray_init.resources.NPU=1",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_remedy(capsys, works, name):
    overrides, message, remedy = MISTAKES[name]
    code, printed = examine(capsys, *OVERLAY, *works, *overrides)
    assert code == 1, printed
    lines = printed.splitlines()
    place = next((place for place, line in enumerate(lines) if line.startswith("FAIL") and message in line), None)
    assert place is not None, printed
    following = " ".join(lines[place : place + 2])
    assert "-> " in following and remedy in following, following


def test_all_mistakes_of_the_configuration_are_listed_together(capsys, works):
    """The check before a training stops at the first of them."""
    overrides = [
        "trainer.v1.trainer_mode=sync",
        "data.dataloader_num_workers=4",
        f"{ACTOR}.policy_loss.loss_mode=vanilla",
        f"{STORAGE}.total_storage_size=1000",
        "algorithm.filter_groups.enable=True",
        "dots.predictor.embeddings=absent.safetensors",
        "dots.predictor.checkpoint=gone.safetensors",
    ]
    code, printed = examine(capsys, *OVERLAY, *works, *overrides)
    assert code == 1
    found = [line.split(maxsplit=2)[2] for line in printed.splitlines() if line.startswith("FAIL    configuration")]
    parts = ["trainer_mode=sync", "num_workers=4", "loss_mode=vanilla", "storage_size=1000", "filter_groups", "absent.safet"]
    assert len(found) == len(parts), printed
    assert all(part in line for part, line in zip(parts, found, strict=True)), found
    assert printed.count("no embeddings file 'absent.safetensors'") == 1
    assert printed.count("dots.predictor.checkpoint=gone.safetensors: no such file") == 1


@pytest.mark.parametrize("value", ["0", "null", "1.5"])
@pytest.mark.parametrize(
    "key",
    [
        "data.train_batch_size",
        "data.max_prompt_length",
        f"{ACTOR}.ppo_mini_batch_size",
        f"{ROLLOUT}.tensor_model_parallel_size",
    ],
)
def test_a_size_that_is_none_is_a_finding_and_no_traceback(capsys, works, key, value):
    code, printed = examine(capsys, *OVERLAY, *works, f"{key}={value}")
    assert code == 1
    value = "None" if value == "null" else value
    assert printed.count(f"{key}={value} is not allowed") == 1 and "-> use a whole number >= 1" in printed


def test_the_other_keys_are_looked_at_where_the_dots_block_cannot_be_read(capsys, works):
    code, printed = examine(capsys, *OVERLAY, *works, "data.dataloader_num_workers=4", "dots.replay=3")
    assert code == 1
    assert "data.dataloader_num_workers=4" in printed and "dots.replay=3 is not allowed" in printed


def test_embeddings_of_other_questions(capsys, works, tmp_path):
    import numpy as np

    from verl_dots.embeddings import write_embeddings

    path = tmp_path / "other.safetensors"
    write_embeddings(path, ["0" * 32], np.ones((1, 4)), model="test encoder")
    code, printed = examine(capsys, *OVERLAY, *works, f"dots.predictor.embeddings={path}")
    assert code == 1
    assert "lacks 200 of the 200 questions" in printed and "embed_questions.py" in printed


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.train_batch_sice=3"], "Could not override 'data.train_batch_sice'"),
        (["dots.replay.fresh_fracton=.75"], "did you mean dots.replay.fresh_fraction?"),
        (["+dots=defualt"], "could not find 'dots/defualt'"),
        (["trainer.project_name=${nowhere}"], "the configuration does not compose"),
    ],
)
def test_arguments_that_do_not_compose_are_a_mistake_of_the_command(overrides, message):
    searchpath = OVERLAY[:1] if "+dots" in overrides[0] else OVERLAY
    with pytest.raises(ValueError) as caught:
        doctor.main([*searchpath, *overrides, "--config-only"])
    assert message.lower() in str(caught.value).lower() and "\n" not in str(caught.value)


def test_the_whole_command_with_a_fresh_ray_worker(works):
    done = command(*OVERLAY, *works)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a fresh worker answered on each" in done.stdout
    registered = "trainer dots and the losses dots_decoupled and dots_behaviour are registered in verl"
    lines = [line for line in done.stdout.splitlines() if registered in line]
    assert len(lines) == 2 and "plugin here" in lines[0]  # this process, and the worker
    assert "5 logical CPUs, 5 needed" in done.stdout


def test_a_plugin_that_only_the_workers_lack(works):
    without = "{VERL_USE_EXTERNAL_PLUGINS:none,VERL_USE_EXTERNAL_MODULES:'',VERL_PLATFORM:nvidia}"
    done = command(*OVERLAY, *works, f"+ray_kwargs.ray_init.runtime_env.env_vars={without}")
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert "plugin on" in line and "neither trainer nor losses are registered (VERL_USE_EXTERNAL_PLUGINS=none)" in line
    assert "-> install verl-dots in that environment, and export VERL_USE_EXTERNAL_MODULES=" in done.stdout


@pytest.mark.parametrize(
    ("platform", "message"),
    [("nvidia", "losses are registered (VERL_USE_EXTERNAL_PLUGINS=none)"), ("cpu", "Unknown platform 'cpu'")],
)
def test_a_plugin_missing_here(works, platform, message):
    without = {"VERL_USE_EXTERNAL_PLUGINS": "none", "VERL_USE_EXTERNAL_MODULES": ""}
    done = command(*OVERLAY, *works, "--config-only", VERL_PLATFORM=platform, **without)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert "plugin here" in line and message in line


def test_a_ray_that_does_not_answer_is_not_waited_for(works):
    done = command(*OVERLAY, *works, "--ray-timeout", "0.5")
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert "no fresh worker answered within 0.5 s" in line


def test_a_mistake_of_the_command_is_one_line_and_exit_code_2(tmp_path):
    done = command("data.train_batch_sice=3")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("doctor.py: error: the configuration does not compose: Could not override")
    assert "Traceback" not in done.stderr


def test_a_validation_counts_as_many_rows_as_verl_has_in_its_store_at_once(works):
    from verl_dots.integration import doctor_config, doctor_data

    config = doctor_config.composed([*works, "trainer.test_freq=5", f"{ROLLOUT}.val_kwargs.n=4"])
    assert doctor_data.validation_rows(config) == 200 * 4
    config.data.val_max_samples = 100
    assert doctor_data.validation_rows(config) == 100 * 4
    config.data.val_batch_size = 32
    assert doctor_data.validation_rows(config) == 32 * 4


def test_sizes_are_read_where_verl_reads_them(works):
    from verl_dots.diagnosis.resources import Pool
    from verl_dots.integration import check, doctor_config

    config = doctor_config.composed(
        [*works, "trainer.nnodes=2", "trainer.n_gpus_per_node=8", f"{ACTOR}.ulysses_sequence_parallel_size=2",
         f"{ROLLOUT}.tensor_model_parallel_size=4", "reward.reward_model.enable_resource_pool=True",
         "reward.reward_model.nnodes=1", "reward.reward_model.n_gpus_per_node=2", "trainer.total_training_steps=60"]
    )  # fmt: skip
    shape = doctor_config.batch_shape(config)
    assert (shape.ranks, shape.data_parallel, shape.engine_ranks, shape.steps) == (16, 8, 4, 60)
    assert (shape.questions, shape.rollouts, shape.mini_batch) == (16, 8, 8)
    assert (shape.micro_batch, shape.log_prob_micro_batch) == (64, 64)
    config.actor_rollout_ref.actor.policy_loss.loss_mode = "dots_behaviour"  # log-probs of fresh rows only, in any number
    assert doctor_config.batch_shape(config).log_prob_micro_batch is None
    needs = doctor_config.needs(config)
    assert needs.pools == (Pool("trainer", 2, 8), Pool("reward model", 1, 2))
    assert (needs.cpus_per_rank, needs.storage_units, needs.accelerator) == (3, 1, "NPU")
    assert needs.cpus == 1 + 1 + 3 * 18
    assert check.storage_limit(config) == 100_000
    config.transfer_queue.backend.storage_backend = "MooncakeStore"
    assert check.storage_limit(config) is None
