"""data_prep/build_questions.py as a whole: same input, same bytes; same question, same id."""

import subprocess
import sys

import pytest
from sources import output
from sources.registry import DATA_SETS

from tests.data_prep.conftest import ROOT, SAMPLES, build


def test_the_script_runs_as_a_script(tmp_path):
    script = ROOT / "data_prep" / "build_questions.py"
    arguments = ["gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", "q.parquet"]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "q.parquet: 2 of 3 rows of gsm8k" in done.stdout
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in DATA_SETS)


def test_twice_gives_the_same_bytes(run, tmp_path):
    build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    first = (tmp_path / "q.parquet").read_bytes(), (tmp_path / "q.json").read_bytes()
    build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    assert ((tmp_path / "q.parquet").read_bytes(), (tmp_path / "q.json").read_bytes()) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.json", "q.parquet"]


@pytest.mark.parametrize(("given", "written"), [("qwen", output.SYSTEM_PROMPTS["qwen"]), ("Be brief.", "Be brief.")])
def test_the_system_prompt_can_be_chosen(run, tmp_path, given, written):
    rows, manifest, _ = build(run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet", "--system-prompt", given)
    assert rows[0]["prompt"][0] == {"role": "system", "content": written}
    assert manifest["system_prompt"] == written


def test_no_system_prompt(run, tmp_path):
    rows, _, _ = build(run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet", "--system-prompt", "none")
    assert [message["role"] for message in rows[0]["prompt"]] == ["user"]


def test_one_question_has_one_id_whatever_the_file(run, tmp_path):
    train, _, _ = build(run, "math", "math.jsonl", tmp_path / "a.parquet")
    evaluation, _, _ = build(run, "math500", "math500.jsonl", tmp_path / "b.parquet", "--system-prompt", "qwen")
    assert train[0]["extra_info"]["question_id"] == evaluation[0]["extra_info"]["question_id"]
