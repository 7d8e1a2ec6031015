"""The arithmetic task's builder: complete output, instant second run, one-line errors. The warm start is cut short."""

import json
from dataclasses import replace

import build_arithmetic
import numpy as np
import pandas as pd
import pytest
from build_arithmetic import main
from safetensors.torch import load_file, save_file

from verl_dots.cpu.arithmetic import settings, warm_start
from verl_dots.embeddings import EmbeddingTable
from verl_dots.types import question_id

STAGES = dict(settings.STAGES)
SMALL = ["--train-size", "40", "--val-size", "10", "--width", "16", "--layers", "1", "--heads", "2"]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Output folder, cache folder, and how often a warm start ran."""
    folder = tmp_path_factory.mktemp("built")
    runs = []

    def counted(*args, **kwargs):
        runs.append(args)
        return original(*args, **kwargs)

    original = warm_start.warm_start
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(settings.STAGES, "tens_slip", (replace(settings.STAGES["tens_slip"][0], steps=3),))
        patch.setattr(warm_start, "warm_start", counted)
        main(["--output", str(folder / "x"), "--cache", str(folder / "cache"), *SMALL])
        yield folder, runs


def test_rows_are_what_verl_reads(built):
    frame = pd.read_parquet(built[0] / "x" / "train.parquet")
    assert len(frame) == 40 and len(pd.read_parquet(built[0] / "x" / "val.parquet")) == 10
    row = frame.iloc[7]
    info = row.extra_info
    assert row.data_source == "arithmetic" and row.ability == "arithmetic"
    assert [dict(message) for message in row.prompt] == [{"role": "user", "content": info["question"]}]
    assert info["index"] == 7 and info["split"] == "train"
    assert info["question_id"] == question_id(info["question"])
    assert len(row.reward_model["ground_truth"]) == 2 * info["grade"]
    assert row.reward_model["style"] == "rule"


def test_train_and_validation_share_no_question(built):
    ids = [
        info["question_id"]
        for name in ("train", "val")
        for info in pd.read_parquet(built[0] / "x" / f"{name}.parquet").extra_info
    ]
    assert len(set(ids)) == 50


def test_embeddings_cover_all_questions(built):
    table = EmbeddingTable.open(built[0] / "x" / "embeddings.safetensors")
    assert (len(table), table.dim) == (50, 16)
    info = pd.read_parquet(built[0] / "x" / "val.parquet").extra_info[3]
    assert np.isfinite(table.rows([info["question_id"]])).all()


def test_others_may_read_all_files_like_any_new_file(built, tmp_path):
    (tmp_path / "new").touch()
    files = [path for path in (built[0] / "x").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} >= {".safetensors", ".parquet", ".json"}
    assert {path.stat().st_mode for path in files} == {(tmp_path / "new").stat().st_mode}


def test_manifest_says_what_was_measured(built):
    manifest = json.loads((built[0] / "x" / "manifest.json").read_text())
    measured = manifest["initial_success"]["train"]
    assert measured["questions"] == 40 and sum(measured["histogram"].values()) == pytest.approx(1)
    assert manifest["settings"]["pool"] == "x" and manifest["parameters"] > 0


def test_model_loads_as_verl_loads_it(built):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = built[0] / "x" / "model"
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == len(AutoTokenizer.from_pretrained(folder))


def test_second_run_does_nothing_and_another_pool_reuses_the_model(built):
    folder, runs = built
    before = {path: path.stat().st_mtime_ns for path in (folder / "x").rglob("*")}
    main(["--output", str(folder / "x"), "--cache", str(folder / "cache"), *SMALL])
    assert {path: path.stat().st_mtime_ns for path in (folder / "x").rglob("*")} == before
    main(["--output", str(folder / "y"), "--pool", "y", "--cache", str(folder / "cache"), *SMALL])
    assert len(runs) == 1
    assert (folder / "y" / "model" / "model.safetensors").read_bytes() == (
        folder / "x" / "model" / "model.safetensors"
    ).read_bytes()


def test_shipped_weights_are_taken_instead_of_training(built, tmp_path, monkeypatch):
    folder, runs = built
    trained = folder / "x" / "model" / "model.safetensors"
    warm = settings.WarmStart("tens_slip", settings.ModelSize(16, 1, 2))
    monkeypatch.setattr(build_arithmetic, "SHIPPED", tmp_path)
    load_file_and_add(trained, 1.0, build_arithmetic.shipped(warm))
    arguments = ["--cache", str(tmp_path / "cache"), *SMALL]
    before = len(runs)
    main(["--output", str(tmp_path / "shipped"), *arguments])
    weights = load_file(tmp_path / "shipped" / "model" / "model.safetensors")
    assert len(runs) == before and all((weights[name] == one + 1).all() for name, one in load_file(trained).items())
    main(["--output", str(tmp_path / "anew"), *arguments, "--train"])
    assert len(runs) == before + 1
    assert not json.loads((tmp_path / "shipped" / "manifest.json").read_text())["settings"]["trained_here"]
    assert json.loads((tmp_path / "anew" / "manifest.json").read_text())["settings"]["trained_here"]


def load_file_and_add(source, number, target):
    save_file({name: weight + number for name, weight in load_file(source).items()}, target)


@pytest.mark.parametrize("task", STAGES)
def test_the_models_of_the_default_size_are_shipped(task, monkeypatch):
    """Whoever changes what they depend on makes them anew: build with --train, and copy model.safetensors there."""
    monkeypatch.setitem(settings.STAGES, task, STAGES[task])  # `built` cuts one short
    assert build_arithmetic.shipped(settings.WarmStart(task)).is_file()


def test_an_interrupted_build_is_not_taken_for_a_finished_one(built):
    folder, runs = built
    before = len(runs)
    (folder / "x" / "val.parquet").unlink()
    main(["--output", str(folder / "x"), "--cache", str(folder / "cache"), *SMALL])
    assert (folder / "x" / "val.parquet").is_file() and len(runs) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pool", "q"], "invalid choice: 'q'"),
        (["--width", "65"], "width 65 must be a multiple of twice the heads (4)"),
        (["--train-size", "0"], "--train-size 0: must be 1 to 1000000"),
    ],
)
def test_mistakes_are_one_line(arguments, message, tmp_path, run):
    code, _, error = run(main, "--output", tmp_path / "x", *arguments)
    assert code == 2
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "x").exists()
