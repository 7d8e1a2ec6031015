"""The manifest beside an output: ``X.json`` says how ``X.parquet`` was made, and by its digest that the two belong together.

A script refuses an output that could not have one before its long work (:func:`check_output`) and writes it when the output
is whole (:func:`write_manifest`). Nothing here imports torch or pandas.
"""

from __future__ import annotations

import hashlib
import json
import os
from importlib import metadata
from pathlib import Path
from typing import Any

from verl_dots.files import atomic_path, check_writable


def manifest_path(output_path: str | os.PathLike) -> Path:
    """Where the manifest of an output lies: ``X.parquet``, ``X.safetensors`` and ``X.jsonl`` all have ``X.json``.

    Raises:
        ValueError: the output itself ends in ``.json``, so its manifest would replace it.
    """
    path = Path(output_path)
    if path.suffix == ".json":
        raise ValueError(f"output {str(path)!r} ends in .json, the name of its manifest: choose another suffix")
    return path.with_suffix(".json")


def check_output(output_path: str | os.PathLike) -> None:
    """Refuse an output that could not be finished; call it before work that takes long.

    Raises:
        ValueError: it is a directory, ends in ``.json``, or its manifest's name is taken: ``X.parquet`` and
            ``X.safetensors`` in one directory would share ``X.json``.
        OSError: no file can be made in its directory, or in the one above that exists.
    """
    path = Path(output_path)
    if path.is_dir():
        raise ValueError(f"output {str(path)!r} is a directory: give a file name inside it")
    check_writable(path)
    if not manifest_path(path).exists():
        return
    output = read_manifest(path).get("output")
    owner = output.get("file") if isinstance(output, dict) else None
    if owner != path.name:
        whose = f"the manifest of {owner!r}" if owner else "not a manifest of ours"
        raise ValueError(f"{str(manifest_path(path))!r} is {whose}: give the output {path.name!r} another name")


def write_manifest(output_path: str | os.PathLike, **fields: Any) -> Path:
    """Write the manifest of a finished output: UTF-8 JSON, one object, ``fields`` in the order given.

    In front of ``fields`` stand ``tool`` and ``tool_version`` (this package), and ``output``: name, bytes and SHA-256
    of the file, by which a reader sees whether manifest and output belong together. Nothing is taken from the
    environment; paths among ``fields`` are recorded as the user typed them. Numpy scalars and arrays become plain
    numbers and lists.

    Raises:
        ValueError: a field is NaN or infinite, or of a type JSON cannot hold; or what :func:`check_output` refuses.
    """
    output_path = Path(output_path)
    check_output(output_path)
    manifest = {
        "tool": "verl-dots",
        "tool_version": tool_version(),
        "output": {**describe_file(output_path), "file": output_path.name},
        **fields,
    }
    try:
        text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise ValueError(f"manifest of {output_path.name} cannot be written as JSON: {error}") from error
    target = manifest_path(output_path)
    with atomic_path(target) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
    return target


def _plain(value: Any) -> Any:
    """JSON's ``default``: what numpy and pathlib give us, nothing else."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r} is not JSON")


def read_manifest(output_path: str | os.PathLike) -> dict[str, Any]:
    """The manifest beside ``output_path``.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is not a JSON object.
    """
    path = manifest_path(output_path)
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"manifest {str(path)!r} is no JSON ({error}): make {Path(output_path).name} again") from error
    if not isinstance(manifest, dict):
        raise ValueError(f"manifest {str(path)!r} is not a JSON object: make {Path(output_path).name} again")
    return manifest


def describe_file(path: str | os.PathLike) -> dict[str, Any]:
    """``{"file", "bytes", "sha256"}`` of an input, for a manifest; ``file`` is the path as it was typed."""
    with open(path, "rb") as stream:
        digest = hashlib.file_digest(stream, "sha256") if hasattr(hashlib, "file_digest") else _sha256(stream)
        size = stream.tell()
    return {"file": os.fspath(path), "bytes": size, "sha256": digest.hexdigest()}


def _sha256(stream: Any) -> Any:
    """Python 3.10 has no ``hashlib.file_digest``."""
    digest = hashlib.sha256()
    while block := stream.read(1 << 20):
        digest.update(block)
    return digest


def tool_version() -> str:
    """Version of the installed package, or ``"source tree"`` where it is not installed."""
    try:
        return metadata.version("verl-dots")
    except metadata.PackageNotFoundError:
        return "source tree"
