"""data_prep/fit_predictor.py and evaluate_predictor.py as a user runs them."""

import json
import re

import evaluate_predictor
import fit_predictor
import numpy as np
import pandas as pd
import pytest

from verl_dots.embeddings import write_embeddings
from verl_dots.manifests import read_manifest
from verl_dots.types import question_id

N = 700
IDS = [question_id(str(i)) for i in range(N)]
FIT = (
    *("--reference-size", 64, "--batch-size", 64, "--epochs", 8, "--learning-rate", 3e-3),
    *("--width", 32, "--layers", 2, "--threads", 1, "--members", 2),
)
KEYS = {
    "pearson_mean", "pearson_std", "spearman_mean", "calibration_error", "precision_at_target", "precision_random",
    "seconds_per_10k",
}  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Embeddings with a side feature, and labels of two policies, one of which has not seen every question."""
    folder = tmp_path_factory.mktemp("world")
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(N, 20)).astype(np.float32)
    hidden = rng.normal(size=N)
    logit = 1.8 * vectors[:, 0] + hidden
    write_embeddings(
        folder / "e.safetensors", IDS, vectors, model="a-model", side=hidden[:, None], side_names=("hidden",)
    )
    frames = []
    for policy, shift, asked in (("weak", 1.0, N), ("strong", -1.0, N - 100)):
        successes = rng.binomial(16, 1 / (1 + np.exp(logit[:asked] + shift))).astype(float)
        frames.append(pd.DataFrame({"question_id": IDS[:asked], "policy": policy, "successes": successes, "trials": 16}))
    pd.concat(frames).to_parquet(folder / "labels.parquet")
    return folder


@pytest.fixture(scope="module")
def fitted(world):
    fit_predictor.main(
        [
            *("--labels", str(world / "labels.parquet"), "--embeddings", str(world / "e.safetensors")),
            *("--output", str(world / "p.safetensors"), "--holdout-questions", "0.3"),
            *("--holdout-labels", str(world / "unseen.parquet"), "--holdout-policies", "strong"),
            *map(str, FIT),
        ]
    )
    return world / "p.safetensors"


def evaluated(run, world, *options):
    code, out, err = run(
        evaluate_predictor.main, "--labels", world / "unseen.parquet", "--embeddings", world / "e.safetensors",
        "--reference-size", 40, "--repeats", 3, "--json", *options,
    )  # fmt: skip
    assert code == 0, err
    return json.loads(out)


def test_the_report_covers_held_out_questions_and_policies_weaker_and_stronger(fitted):
    manifest = read_manifest(fitted)
    report = manifest["report"]
    assert report["questions"] == {"train": 441, "validation": 49, "held_out": 210}
    assert {(row["policy"], row["shift"]) for row in report["held_out"]} == {
        (policy, shift) for policy in ("weak", "strong (held out)") for shift in (-2.0, 0.0, 2.0)
    }
    assert all(row["pearson"] > 0.6 for row in report["held_out"])
    assert manifest["embedding_model"] == "a-model" and manifest["settings"]["side"] == ["hidden"]
    assert manifest["settings"]["width"] == 32 and report["settings"]["batch"] == 64
    assert manifest["members"] == len(report["best_epochs"]) == len(report["history"]) == 2
    assert fitted.with_suffix(".png").stat().st_size > 10_000


def test_the_held_out_labels_are_those_of_the_held_out_questions(world, fitted):
    unseen, labels = (pd.read_parquet(world / f"{name}.parquet") for name in ("unseen", "labels"))
    assert unseen["question_id"].nunique() == 210
    merged = unseen.merge(labels, on=["question_id", "policy"], suffixes=("", "_all"))
    assert len(merged) == len(unseen) and (merged["successes"] == merged["successes_all"]).all()


def test_evaluation_prints_one_object_and_side_features_count(run, world, fitted):
    given, hidden, permuted = (
        evaluated(run, world, "--checkpoint", fitted, "--side", side) for side in ("given", "hidden", "permuted")
    )
    assert KEYS <= set(given)
    assert given["pearson_mean"] > hidden["pearson_mean"] + 0.05
    assert permuted["pearson_mean"] > hidden["pearson_mean"] - 0.05
    assert given["precision_at_target"] > given["precision_random"]


def test_without_checkpoint_the_kernel_is_judged(run, world, fitted):
    assert 0.3 < evaluated(run, world, "--side", "hidden")["pearson_mean"] < 1


def test_a_shift_makes_questions_harder_and_one_policy_can_be_chosen(run, world, fitted):
    plain = evaluated(run, world, "--policy", "weak")
    harder = evaluated(run, world, "--policy", "weak", "--shift", 3)
    assert plain["questions"] == 210
    assert harder["precision_random"] < plain["precision_random"]


def test_the_table_for_people_has_the_same_numbers(run, world, fitted):
    code, out, _ = run(
        evaluate_predictor.main, "--labels", world / "unseen.parquet", "--embeddings", world / "e.safetensors",
        "--reference-size", 40, "--repeats", 1,
    )  # fmt: skip
    assert code == 0 and all(re.search(rf"\b{key}\b", out) for key in KEYS)


def test_the_same_seed_gives_the_same_checkpoint(world, fitted, run):
    again = world / "again.safetensors"
    code, _, err = run(
        fit_predictor.main, "--labels", world / "labels.parquet", "--embeddings", world / "e.safetensors",
        "--output", again, "--holdout-questions", 0.3, "--holdout-policies", "strong", *FIT,
    )  # fmt: skip
    assert code == 0, err
    assert again.read_bytes() == fitted.read_bytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--holdout-questions", "1.5"], "--holdout-questions 1.5"),
        (["--epochs", "0"], "--epochs 0"),
        (["--reference-size", "600"], "too few for --reference-size 600"),
        (["--holdout-policies", "unknown"], "'unknown' is not in the labels: they have strong, weak"),
        (["--holdout-policies", "weak", "strong"], "names every policy"),
        (["--dropout", "1"], "--dropout 1"),
        (["--output", "p.pt"], "must end in .safetensors"),
        (["--embeddings", "none.safetensors"], "no embeddings file 'none.safetensors'"),
    ],
)
def test_mistakes_in_fitting_are_one_line(tmp_path, run, world, options, says):
    defaults = {
        "--labels": world / "labels.parquet",
        "--embeddings": world / "e.safetensors",
        "--output": tmp_path / "p.safetensors",
    }
    given = [part for pair in defaults.items() if pair[0] != options[0] for part in pair]
    code, _, err = run(fit_predictor.main, *given, *options)
    assert code == 2 and says in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda frame: frame.drop(columns="trials"), "no column 'trials'"),
        (lambda frame: frame.assign(successes=frame["trials"] + 1), "17 successes in 16 trials"),
        (lambda frame: frame.assign(successes=np.nan), "impossible rows"),
        (lambda frame: frame.assign(question_id="f" + frame["question_id"].str[1:]), "of the 700 questions, first f"),
        (lambda frame: frame.head(30), "--reference-size 256 leaves none to predict"),
    ],
)
def test_mistakes_in_labels_are_one_line(tmp_path, run, world, change, says):
    change(pd.read_parquet(world / "labels.parquet").query("policy == 'weak'")).to_parquet(tmp_path / "l.parquet")
    options = ("--labels", tmp_path / "l.parquet", "--embeddings", world / "e.safetensors")
    code, _, err = run(evaluate_predictor.main, *options)
    assert code == 2 and says in err and err.count("\n") == 1
