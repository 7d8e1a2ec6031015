"""data_prep/build_questions.py refuses: a mistake or a failing system is one line and leaves nothing half-written."""

import os
import resource
import subprocess
import sys

import pytest
from build_questions import main
from sources.registry import DATA_SETS

from tests.data_prep.conftest import ROOT, SAMPLES, read_json


def refused(run, tmp_path, *arguments):
    """The one line of a refusal; nothing may be left behind."""
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run(main, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return err


def test_an_unknown_data_set(run, tmp_path):
    err = refused(run, tmp_path, "maths", "--output", tmp_path / "q.parquet")
    assert "'maths' is unknown" in err
    assert all(name in err for name in [*DATA_SETS, "jsonl", "parquet"])


def test_a_missing_column(run, tmp_path):
    err = refused(run, tmp_path, "deepmath", "--local-file", SAMPLES / "amc23.jsonl", "--output", tmp_path / "q.parquet")
    assert "no column 'final_answer': it has answer, id, question, url" in err


def test_a_missing_column_of_ones_own(run, tmp_path):
    err = refused(
        run, tmp_path, "jsonl", "--local-file", SAMPLES / "own.jsonl", "--output", tmp_path / "q.parquet",
        "--question-column", "prompt", "--answer-column", "truth.value",
    )  # fmt: skip
    assert "no column 'prompt': it has difficulty, meta, rate, truth" in err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.jsonl", b"", "is empty"),
        ("x.json", b"[]", "has no rows"),
        ("x.parquet", b"", "is empty"),
        ("x.parquet", b"not parquet at all", "not a readable parquet file"),
        ("x.json", b"[{]", "is not JSON"),
        ("x.jsonl", b'{"question": "q", "answer": "a"}\n{"question":', "line 2 is not JSON"),
        ("x.jsonl", b"\xff\xfe\x00", "not UTF-8"),
        ("x.jsonl", b"[1, 2]\n", "not objects"),
        ("x.csv", b"question,answer\n", "ends in .csv"),
        ("x.jsonl", b'{"question": "", "answer": "1"}\n', "no question of gsm8k is left"),
    ],
)
def test_a_broken_file(run, tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    err = refused(run, tmp_path, "gsm8k", "--local-file", tmp_path / name, "--output", tmp_path / "q.parquet")
    assert words in err


def test_half_a_surrogate_pair_is_left_out(run, tmp_path):
    rows = ['{"question": "\\ud800?", "answer": "#### 1"}', '{"question": "q", "answer": "#### 1"}']
    (tmp_path / "x.jsonl").write_text("\n".join(rows))
    code, _, err = run(main, "gsm8k", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet")
    assert code == 0, err
    assert read_json(tmp_path / "q.json")["unusable"] == {"half a surrogate pair: not valid Unicode": 1}


def test_a_missing_file(run, tmp_path):
    err = refused(run, tmp_path, "gsm8k", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet")
    assert "no such file" in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--max-questions", 0), "--max-questions 0: must be at least 1"),
        (("--ngram", 0), "--ngram 0"),
        (("--near-threshold", 1.5), "--near-threshold 1.5"),
        (("--levels", 5, 3), "--levels 5 3"),
        (("--drop-contaminated",), "needs --evaluation"),
        (("--filter-overlong", "nowhere", "many"), "'many'"),
        (("--filter-overlong", "/nowhere", 10), "the tokenizer of '/nowhere' cannot be loaded"),
        (("--question-column", "q"), "goes with jsonl and parquet only"),
        (("--unscorable", "maybe"), "invalid choice: 'maybe'"),
        (("--evaluation", "/nowhere/x.parquet"), "no such file"),
    ],
)
def test_bad_options(run, tmp_path, options, words):
    err = refused(
        run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", tmp_path / "q.parquet", *options
    )
    assert words in err


def test_no_network(run, tmp_path, monkeypatch):
    import datasets
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    for dataset in ("gsm8k", "minerva", "orz"):  # pinned, not pinned, one file
        err = refused(run, tmp_path, dataset, "--output", tmp_path / "q.parquet")
        assert DATA_SETS[dataset].hub in err
        assert "--local-file" in err


def test_a_hub_that_does_not_answer(tmp_path):
    """A real refusal of the system, as behind a firewall: nothing listens on port 9. Retries do not show."""
    done = subprocess.run(
        [sys.executable, ROOT / "data_prep" / "build_questions.py", "minerva", "--output", tmp_path / "q.parquet"],
        capture_output=True, text=True, env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "math-ai/minervamath" in done.stderr and "--local-file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_no_permission(run, tmp_path):
    err = refused(run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", "/sys/q.parquet")
    assert "no permission" in err


def test_an_output_that_is_a_directory(run, tmp_path):
    err = refused(run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", tmp_path)
    assert "is a directory" in err


def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    """A real failure in the middle of writing: the kernel refuses bytes beyond the limit."""

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    done = subprocess.run(
        [sys.executable, ROOT / "data_prep" / "build_questions.py", "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl",
         "--output", tmp_path / "q.parquet", "--workers", "1"],
        capture_output=True, text=True, preexec_fn=small_files,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
