"""The trained predictor on disk: weights as safetensors, everything else as JSON beside them. Nothing executes on load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.embeddings import EmbeddingTable
from verl_dots.files import atomic_path, one_line
from verl_dots.manifests import manifest_path, read_manifest, write_manifest

FORMAT = "verl-dots difficulty predictor"
FORMAT_VERSION = 1


def save_checkpoint(
    path: str | os.PathLike, members: Sequence[AttentionModel], *, embedding_model: str, **fields: Any
) -> None:
    """Write `X.safetensors` and its manifest `X.json`.

    Args:
        path: ends in ``.safetensors``.
        members: networks fitted from different seeds, whose logits are averaged; all of the same settings.
        embedding_model: `EmbeddingTable.model` of the vectors it was fitted on.
        fields: how it was trained and how well it does, for the manifest.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"checkpoint {str(path)!r} must end in .safetensors")
    state = {
        f"{number}.{name}": tensor.detach().cpu().contiguous()
        for number, member in enumerate(members)
        for name, tensor in member.state_dict().items()
    }
    with atomic_path(path) as temporary:
        save_file(state, temporary)
    write_manifest(
        path,
        format=FORMAT,
        format_version=FORMAT_VERSION,
        embedding_model=embedding_model,
        members=len(members),
        settings=asdict(members[0].settings),
        **fields,
    )


def load_checkpoint(path: str | os.PathLike, table: EmbeddingTable) -> list[AttentionModel]:
    """Load a predictor for the vectors of `table`: its members.

    Raises:
        ValueError: no such file, not one of ours, another format version, weights that do not fit its settings, or vectors
            of another model, dimension or other side features than it was fitted on. One line that names the file.
    """
    path = Path(path)
    if not path.is_file() or not manifest_path(path).is_file():
        missing = path if not path.is_file() else manifest_path(path)
        raise ValueError(f"no predictor checkpoint {str(missing)!r}: {_again(path)}")
    manifest = read_manifest(path)
    if manifest.get("format") != FORMAT:
        raise ValueError(f"{str(path)!r} is not a difficulty predictor: {_again(path)}")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise ValueError(
            f"predictor {str(path)!r} has format version {manifest.get('format_version')!r}, this code reads "
            f"{FORMAT_VERSION}: {_again(path)}"
        )
    if manifest.get("output", {}).get("bytes") != path.stat().st_size:
        raise ValueError(f"predictor {str(path)!r} and its manifest do not belong together: {_again(path)}")
    try:
        settings = AttentionSettings(**{**manifest["settings"], "side": tuple(manifest["settings"]["side"])})
        members = nn.ModuleList(AttentionModel(settings) for _ in range(manifest["members"]))
        members.load_state_dict(load_file(path))
    except (KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ValueError(f"predictor {str(path)!r} cannot be read ({one_line(error)}): {_again(path)}") from error
    for what, fitted, given in (
        ("dimension", settings.dim, table.dim),
        ("vectors of", manifest.get("embedding_model"), table.model),
        ("side features", list(settings.side), list(table.side_names)),
    ):
        if fitted != given:
            raise ValueError(
                f"predictor {str(path)!r} was fitted on {what} {fitted}, but {str(table.path)!r} has {given}: "
                f"use the embeddings it was fitted on, or {_again(path)}"
            )
    if not all(torch.isfinite(tensor).all() for tensor in members.state_dict().values()):
        raise ValueError(f"predictor {str(path)!r} has weights that are NaN or infinite: {_again(path)}")
    return list(members.eval())


def _again(path: Path) -> str:
    return f"run python data_prep/fit_predictor.py --labels FILE --embeddings FILE --output {path}"
