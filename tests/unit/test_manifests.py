"""verl_dots.manifests: the file beside an output says how it was made, and no two outputs share one."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from verl_dots import manifests


def test_it_lies_beside_the_output_and_describes_it(tmp_path):
    output = tmp_path / "questions.parquet"
    output.write_bytes(b"data")
    path = manifests.write_manifest(output, rows=np.int64(3), weights=np.array([0.5, 1]), source=Path("a/b.json"))
    assert path == tmp_path / "questions.json"
    manifest = manifests.read_manifest(output)
    assert manifest["tool"] == "verl-dots"
    assert manifest["tool_version"]
    assert manifest["output"] == {
        "file": "questions.parquet",
        "bytes": 4,
        "sha256": hashlib.sha256(b"data").hexdigest(),
    }
    assert (manifest["rows"], manifest["weights"], manifest["source"]) == (3, [0.5, 1.0], "a/b.json")
    assert str(tmp_path) not in path.read_text()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object()])
def test_what_json_cannot_hold_is_refused_and_leaves_nothing(tmp_path, value):
    output = tmp_path / "x.parquet"
    output.write_bytes(b"")
    with pytest.raises(ValueError, match="manifest of x.parquet"):
        manifests.write_manifest(output, value=value)
    assert [path.name for path in tmp_path.iterdir()] == ["x.parquet"]


def test_an_output_named_like_its_manifest_is_refused():
    with pytest.raises(ValueError, match="ends in .json"):
        manifests.manifest_path("x.json")


def test_two_outputs_cannot_share_one_manifest(tmp_path):
    for name in ("x.parquet", "x.safetensors"):
        (tmp_path / name).write_bytes(name.encode())
    manifests.write_manifest(tmp_path / "x.parquet", rows=1)
    manifests.write_manifest(tmp_path / "x.parquet", rows=2)  # safe to run twice
    with pytest.raises(ValueError, match="manifest of 'x.parquet'"):
        manifests.check_output(tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="another name"):
        manifests.write_manifest(tmp_path / "x.safetensors")
    assert manifests.read_manifest(tmp_path / "x.parquet")["rows"] == 2


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_broken_manifest_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        manifests.read_manifest(tmp_path / "x.parquet")


def test_describe_file_keeps_the_path_as_typed(tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_bytes(b"abc")
    monkeypatch.chdir(tmp_path)
    assert manifests.describe_file("./a.txt") == {
        "file": "./a.txt",
        "bytes": 3,
        "sha256": hashlib.sha256(b"abc").hexdigest(),
    }
