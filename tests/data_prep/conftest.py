"""Scripts of data_prep/ are run as a user runs them, or imported as modules from that folder."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "samples"
sys.path.insert(0, str(ROOT / "data_prep"))


@pytest.fixture
def run(capsys):
    """``run(main, *arguments) -> (exit code, stdout, stderr)``, in this process."""
    from verl_dots.files import run_cli

    def call(main, *arguments):
        with pytest.raises(SystemExit) as caught:
            run_cli(main, [str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


@pytest.fixture
def tokenizer_path(tmp_path_factory):
    """A word tokenizer with a chat template, made here: no network, no model."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "<pad>": 1, "<eos>": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>", eos_token="<eos>"
    )
    fast.chat_template = "{% for message in messages %}{{ message.role }} : {{ message.content }} {% endfor %}assistant :"
    path = tmp_path_factory.mktemp("tokenizer")
    fast.save_pretrained(path)
    return str(path)


def build(run, dataset, file, path, *options):
    """build_questions.py on a sample -> (rows of `path`, its manifest, stdout); `run` is the fixture above."""
    import pyarrow.parquet as pq
    from build_questions import main

    code, out, err = run(main, dataset, "--local-file", SAMPLES / file, "--output", path, "--workers", 2, *options)
    assert code == 0, err
    return pq.read_table(path).to_pylist(), read_json(path.with_suffix(".json")), out


def read_json(path):
    return json.loads(Path(path).read_text(encoding="utf-8"))
