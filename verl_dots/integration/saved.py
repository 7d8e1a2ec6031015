"""The files of our part of a checkpoint; needs neither verl nor Ray. Read only when every byte is as it was written.

    state.json                  one JSON object
    observations.parquet        see `verl_dots.difficulty.observations`
    rows-00000.safetensors ...  token columns of replayed rows
    files.json                  size and SHA-256 of each of the others; written last
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from verl_dots.files import atomic_path
from verl_dots.manifests import describe_file

FORMAT = 2
STATE, FILES, OBSERVATIONS = "state.json", "files.json", "observations.parquet"
_NARROW = {torch.int64: torch.int32}
"""Token ids and positions fit 32 bits; they are widened again when they are read."""


def seal(folder: Path) -> None:
    """Write `files.json`: from now on `check` sees every change."""
    described = {path.name: describe_file(path) for path in sorted(folder.iterdir())}
    listed = {name: {"bytes": entry["bytes"], "sha256": entry["sha256"]} for name, entry in described.items()}
    (folder / FILES).write_text(json.dumps(listed, indent=1), encoding="utf-8")


def check(folder: Path) -> None:
    """Compare every file with `files.json`.

    Raises:
        ValueError: a file is missing, damaged or not ours; one line that names it.
    """
    listed = _read_json(folder / FILES)
    found = {path.name: path for path in folder.iterdir() if path.name != FILES}
    for name, entry in listed.items():
        path = found.pop(name, None)  # a name is looked up, never used as a path
        if path is None or not path.is_file():
            raise ValueError(f"{str(folder / FILES)!r} names a file {name[:80]!r} that is missing: {_remedy(folder)}")
        described = describe_file(path)
        if entry != {"bytes": described["bytes"], "sha256": described["sha256"]}:
            raise ValueError(f"{str(path)!r} is not what {FILES} says was written: {_remedy(folder)}")
    if found:
        raise ValueError(f"{str(min(found.values()))!r} is not listed in {FILES}: {_remedy(folder)}")
    if STATE not in listed:
        raise ValueError(f"{str(folder / STATE)!r} is missing: {_remedy(folder)}")


def read_state(folder: Path) -> dict[str, Any]:
    """The state of a checked folder.

    Raises:
        ValueError: what `check` refuses, or another format version.
    """
    check(folder)
    state = _read_json(folder / STATE)
    if state.get("format") != FORMAT:
        raise ValueError(
            f"{str(folder / STATE)!r} has format {state.get('format')!r}, this version of verl-dots reads {FORMAT}: resume "
            "with the version that wrote it, or remove its folder to start with empty selection and replay"
        )
    return state


def write_rows(path: Path, keys: Sequence[str], columns: Mapping[str, Any]) -> int:
    """Write rows to one file; returns its bytes.

    Args:
        path: a new `rows-*.safetensors`.
        keys: one key per row.
        columns: by name, a jagged tensor (rows, tokens), or one plain JSON value per row.
    """
    tensors, plain = {}, {}
    for name, value in columns.items():
        if isinstance(value, torch.Tensor) and value.is_nested:
            values = value.values()
            tensors[f"{name}.values"] = values.to(_NARROW.get(values.dtype, values.dtype)).contiguous()
            tensors[f"{name}.offsets"] = value.offsets().contiguous()
        else:
            plain[name] = value.tolist()
    metadata = {"keys": json.dumps(list(keys)), "plain": json.dumps(plain, default=str)}
    with atomic_path(path) as temporary:  # safetensors' own files are the owner's alone
        save_file(tensors, temporary, metadata=metadata)
    return path.stat().st_size


def read_rows(path: Path) -> tuple[list[str], dict[str, list]]:
    """Keys and, by field, one value per row of one file of a checked folder."""
    with safe_open(path, framework="pt") as stream:
        metadata = stream.metadata()
    tensors = load_file(path)
    fields: dict[str, list] = dict(json.loads(metadata["plain"]))
    for name in [name[: -len(".values")] for name in tensors if name.endswith(".values")]:
        values, offsets = tensors[f"{name}.values"], tensors[f"{name}.offsets"].tolist()
        if values.dtype == torch.int32:
            values = values.to(torch.int64)
        fields[name] = [values[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    return json.loads(metadata["keys"]), fields


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{str(path)!r} is missing: {_remedy(path.parent)}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is no JSON ({type(error).__name__}): {_remedy(path.parent)}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} is not a JSON object: {_remedy(path.parent)}")
    return content


def _remedy(folder: Path) -> str:
    return (
        "the checkpoint is damaged, resume from another one with trainer.resume_mode=resume_path and "
        f"trainer.resume_from_path, or remove {str(folder)!r} to start with empty selection and replay"
    )
