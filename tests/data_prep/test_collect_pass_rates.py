"""data_prep/collect_pass_rates.py: how often a real (small) model solves real questions; resumable, divisible, honest."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from collect_pass_rates import main
from rollouts import labels as labels_format
from rollouts.chunks import Chunks, Shard, seed_of

from tests.data_prep.conftest import ROOT, read_json

SCRIPT = ROOT / "data_prep" / "collect_pass_rates.py"
REWARD = "verl_dots.cpu.arithmetic.reward:compute_score"
QUESTIONS = 48


@pytest.fixture(scope="module")
def arithmetic(tmp_path_factory):
    """The quickstart's questions and warm-started model. The warm start takes a minute and is cached on the machine."""
    from build_arithmetic import main as build

    folder = tmp_path_factory.mktemp("arithmetic")
    build(["--output", str(folder), "--train-size", str(QUESTIONS), "--val-size", "8"])
    return folder


def options(arithmetic, output, *more):
    words = ["--questions", arithmetic / "train.parquet", "--model", arithmetic / "model", "--output", output]
    words += ["--policy", "small", "--reward", REWARD, "--rollouts", 8, "--max-tokens", 13, "--chunk-size", 12]
    return [*map(str, words), "--batch-size", "96", "--dtype", "float32", *map(str, more)]


def collect(run, arithmetic, output, *more):
    code, out, err = run(main, *options(arithmetic, output, *more))
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def whole(arithmetic, tmp_path_factory):
    """The labels of one undisturbed run, and its folder."""
    output = tmp_path_factory.mktemp("whole") / "labels.parquet"
    command = [sys.executable, SCRIPT, *options(arithmetic, output)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return output, pd.read_parquet(output), done


class TestRollouts:
    def test_the_labels(self, arithmetic, whole):
        output, labels, done = whole
        assert pq.read_schema(output).remove_metadata().equals(labels_format.SCHEMA)
        questions = pd.read_parquet(arithmetic / "train.parquet")
        assert labels["question_id"].tolist() == [info["question_id"] for info in questions["extra_info"]]
        assert set(labels["policy"]) == {"small"}
        assert set(labels["trials"]) == {8}
        assert labels["successes"].between(0, 8).all()
        assert (labels["successes"] == labels["successes"].round()).all()
        assert labels["mean_length"].between(2, 13).all()
        assert "tokens/s" in done.stdout

    def test_they_agree_with_another_measurement(self, arithmetic, whole):
        """The same model through the decoder of the CPU rollout server: other code, other random numbers."""
        import torch
        from transformers import AutoModelForCausalLM

        from verl_dots.cpu.arithmetic.measure import success_rates

        questions = pd.read_parquet(arithmetic / "train.parquet")
        model = AutoModelForCausalLM.from_pretrained(arithmetic / "model", dtype=torch.float64).eval()
        texts = [info["question"] for info in questions["extra_info"]]
        truths = [truth["ground_truth"] for truth in questions["reward_model"]]
        other = success_rates(model, texts, truths, samples=16, seed=3)  # (N,)
        ours = (whole[1]["successes"] / whole[1]["trials"]).to_numpy()
        # Standard error of the difference of the means: below sqrt(.25 / 8 / 48 + .25 / 16 / 48) = 0.03
        assert abs(ours.mean() - other.mean()) < 0.1
        assert np.corrcoef(ours, other)[0, 1] > 0.8
        assert ours.std() > 0.2  # some are hard, some are easy: otherwise the correlation would mean nothing

    def test_the_manifest(self, whole):
        output, labels, _ = whole
        manifest = read_json(output.with_suffix(".json"))
        assert manifest["questions"] == len(labels) == QUESTIONS
        assert manifest["settings"]["rollouts"] == 8
        assert manifest["settings"]["engine"] == "transformers"
        assert manifest["question_file"]["sha256"]
        assert manifest["mean_success_rate"] == pytest.approx((labels["successes"] / 8).mean(), abs=1e-4)

    def test_a_second_run_generates_nothing(self, run, arithmetic, whole):
        output, labels, _ = whole
        out = collect(run, arithmetic, output)
        assert "tokens/s" not in out
        assert pd.read_parquet(output).equals(labels)

    def test_a_killed_run_continues_where_it_was(self, run, arithmetic, whole, tmp_path):
        output = tmp_path / "labels.parquet"
        process = subprocess.Popen([sys.executable, SCRIPT, *options(arithmetic, output)], stdout=subprocess.DEVNULL)
        parts = output.with_suffix(".parts")
        while not list(parts.glob("chunk-*.parquet")):
            assert process.poll() is None, "it ended before its first chunk"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        kept = {path: path.stat().st_mtime_ns for path in parts.glob("chunk-*.parquet")}
        assert not output.exists()
        assert len(kept) < QUESTIONS / 12
        collect(run, arithmetic, output)
        assert {path: path.stat().st_mtime_ns for path in kept} == kept
        assert pd.read_parquet(output).equals(whole[1])

    def test_other_settings_are_not_mixed_in(self, run, arithmetic, whole):
        output, labels, _ = whole
        code, _, err = run(main, *options(arithmetic, output, "--temperature", 0.5))
        assert (code, err.count("\n")) == (2, 1)
        assert "temperature 1.0, not 0.5" in err
        assert pd.read_parquet(output).equals(labels)

    def test_shards_make_the_same_labels(self, run, arithmetic, whole, tmp_path):
        output = tmp_path / "labels.parquet"
        out = collect(run, arithmetic, output, "--shard", "1/2")
        assert "2 of 4 chunks are still to come" in out
        assert not output.exists()
        collect(run, arithmetic, output, "--shard", "0/2")
        assert pd.read_parquet(output).equals(whole[1])

    def test_data_parallel_processes_make_the_same_labels(self, run, arithmetic, whole, tmp_path):
        output = tmp_path / "labels.parquet"
        collect(run, arithmetic, output, "--data-parallel", 2)
        assert pd.read_parquet(output).equals(whole[1])

    def test_a_failing_process_is_told(self, run, arithmetic, tmp_path):
        code, _, err = run(main, *options(arithmetic, tmp_path / "l.parquet", "--data-parallel", 2, "--model", "/nowhere"))
        assert code == 2
        assert "2 of 2 processes failed" in err

    def test_greedy(self, run, arithmetic, tmp_path):
        output = tmp_path / "labels.parquet"
        collect(run, arithmetic, output, "--temperature", 0)
        assert set(pd.read_parquet(output)["successes"]) == {0.0, 8.0}

    def test_rewards_are_scaled_and_add_up(self, run, arithmetic, whole, tmp_path, monkeypatch):
        (tmp_path / "graded.py").write_text(
            f"from {REWARD.partition(':')[0]} import compute_score as right\n"
            "def score(**kwargs):\n    return {'score': right(**kwargs) * 3 - 1, 'other': 1}\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        output = tmp_path / "labels.parquet"
        collect(run, arithmetic, output, "--reward", "graded:score", "--reward-range", -1, 2)
        assert pd.read_parquet(output)["successes"].tolist() == whole[1]["successes"].tolist()

    def test_a_question_that_occurs_twice_is_asked_once(self, run, arithmetic, tmp_path):
        frame = pd.read_parquet(arithmetic / "train.parquet").head(5)
        pd.concat([frame, frame]).to_parquet(tmp_path / "twice.parquet")
        output = tmp_path / "labels.parquet"
        collect(run, arithmetic, output, "--questions", tmp_path / "twice.parquet")
        assert len(pd.read_parquet(output)) == 5

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (("--rollouts", 0), "--rollouts 0: must be at least 1"),
            (("--temperature", -1), "--temperature -1"),
            (("--top-p", 0), "--top-p 0"),
            (("--shard", "2/2"), "--shard '2/2': give i/n"),
            (("--shard", "half"), "--shard 'half': give i/n"),
            (("--reward", "nowhere:at_all"), "--reward 'nowhere:at_all'"),
            (("--reward", "math"), "no colon"),
            (("--reward-range", 1, 0), "--reward-range"),
            (("--max-tokens", 1000), "--max-tokens 1000 more than the model's 64 positions"),
            (("--model", "/nowhere"), "the tokenizer of '/nowhere' cannot be loaded"),
            (("--questions", "/nowhere.parquet"), "no such file"),
            (("--engine", "vllm"), "vLLM is not installed"),
            (("--engine", "fast"), "invalid choice: 'fast'"),
        ],
    )
    def test_bad_options(self, run, arithmetic, tmp_path, monkeypatch, more, words):
        monkeypatch.setitem(sys.modules, "vllm", None)  # not installed, whatever the machine has
        code, _, err = run(main, *options(arithmetic, tmp_path / "labels.parquet", *more))
        assert (code, err.count("\n")) == (2, 1)
        assert words in err
        assert list(tmp_path.iterdir()) == []

    def test_a_file_that_is_no_question_file(self, run, arithmetic, tmp_path):
        pd.DataFrame({"question": ["q"]}).to_parquet(tmp_path / "x.parquet")
        code, _, err = run(
            main, *options(arithmetic, tmp_path / "labels.parquet", "--questions", tmp_path / "x.parquet")
        )
        assert code == 2
        assert "no column 'prompt': it has question" in err


@pytest.mark.parametrize(("shard", "parts"), [(Shard(), 3), (Shard(1, 2), 4), (Shard(2, 3), 1)])
def test_a_divided_shard_covers_itself(shard, parts):
    chunks = range(100)
    whole = {number for number in chunks if number % shard.count == shard.index}
    divided = [{n for n in chunks if n % part.count == part.index} for part in shard.split(parts)]
    assert set.union(*divided) == whole
    assert sum(map(len, divided)) == len(whole)


def test_two_runs_that_start_at_once_with_other_settings_do_not_mix(tmp_path):
    """Neither finds anything when it starts; the second to finish a chunk is told."""
    first, second = (Chunks(tmp_path / "l.parquet", 4, 2, {"temperature": value}) for value in (1.0, 0.5))
    assert list(tmp_path.iterdir()) == []
    labels = pd.DataFrame({"question_id": ["a", "b"]})
    first.write(0, labels)
    with pytest.raises(ValueError, match="temperature 1.0, not 0.5"):
        second.write(1, labels)
    first.write(1, labels)
    assert len(first.read()) == 4


def test_chunks_have_seeds_of_their_own():
    seeds = {seed_of(seed, chunk) for seed in range(3) for chunk in range(200)}
    assert len(seeds) == 600
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_neither_a_model_nor_a_file(run, tmp_path):
    code, _, err = run(main, "--output", tmp_path / "l.parquet")
    assert (code, err.count("\n")) == (2, 1)
    assert "--questions is missing" in err
