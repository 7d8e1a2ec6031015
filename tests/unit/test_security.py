"""Nothing of ours executes what it reads, and nothing of ours writes down the environment."""

from __future__ import annotations

import ast
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from verl_dots.difficulty.trained import empty_array
from verl_dots.files import atomic_path
from verl_dots.manifests import write_manifest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [path for folder in ("verl_dots", "data_prep", "recipes") for path in sorted((ROOT / folder).rglob("*.py"))]

EXECUTING_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
EXECUTING_CALLS = {"eval", "exec", "compile", "os.system", "os.popen", "torch.load", "yaml.load", "yaml.unsafe_load"}
UNSAFE_ARGUMENTS = {("shell", True), ("trust_remote_code", True), ("allow_pickle", True), ("weights_only", False)}
INSECURE_TEMPORARY = {"tempfile.mktemp", "os.tempnam", "os.tmpnam"}


def findings(source: str) -> list[str]:
    """What a file does that could execute what it reads."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            found += [f"line {node.lineno}: import {name}" for name in names if name.split(".")[0] in EXECUTING_MODULES]
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in EXECUTING_CALLS | INSECURE_TEMPORARY:
                found.append(f"line {node.lineno}: {name}()")
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in UNSAFE_ARGUMENTS:
                    found.append(f"line {node.lineno}: {keyword.arg}={value}")
    return found


@pytest.mark.parametrize(
    "source",
    ["import pickle", "from dill import loads", "eval(x)", "torch.load(p)", "f(shell=True)", "g(trust_remote_code=True)"],
)
def test_the_scan_finds_what_it_looks_for(source):
    assert findings(source)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_executes_what_it_reads(path):
    assert findings(path.read_text(encoding="utf-8")) == []


def test_a_manifest_holds_nothing_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "a-secret-of-the-user")
    monkeypatch.setenv("HF_TOKEN", "another-secret")
    (tmp_path / "x.parquet").write_bytes(b"x")
    text = write_manifest(tmp_path / "x.parquet", stage="test").read_text()
    assert "secret" not in text
    assert set(json.loads(text)) == {"tool", "tool_version", "output", "stage"}


def test_temporary_files_are_private(tmp_path):
    large = empty_array((64, 4), np.float16, limit=16)
    assert isinstance(large, np.memmap)
    assert not Path(large.filename).exists()  # removed at once, the mapping keeps it
    with atomic_path(tmp_path / "x.txt") as temporary:
        temporary.write_text("x")
        assert temporary.parent == tmp_path  # of the output itself, never a shared folder
        assert temporary.name.startswith(".")
    assert stat.S_IMODE((tmp_path / "x.txt").stat().st_mode) & 0o022 == 0
