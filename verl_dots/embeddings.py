"""Question vectors on disk, by question id: ``X.safetensors`` and its manifest ``X.json``.

The file holds ``embeddings`` float16 (N, D), ``question_id`` uint8 (N, 16), the 16 bytes behind the 32 hex digits, and
optionally ``side`` float32 (N, S): numeric columns of the question file (a pass rate of another model, a level), NaN where a
question has none. It is memory-mapped: opening a million questions costs one pass over the pages, no copy.

Shapes: N questions in the file, D dimensions, S side features, M questions asked for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from verl_dots.files import atomic_path
from verl_dots.manifests import check_output, manifest_path, read_manifest, write_manifest
from verl_dots.types import QUESTION_ID_HEX_DIGITS

ID_BYTES = QUESTION_ID_HEX_DIGITS // 2
CHUNK = 65_536
"""Rows converted or checked at a time."""


class EmbeddingTable:
    """Memory-mapped vectors of N distinct questions.

    Example:
        >>> table = EmbeddingTable.open("questions.safetensors")           # doctest: +SKIP
        >>> table.rows([question_id("1+1=?")]).shape                       # doctest: +SKIP
        (1, 384)
    """

    def __init__(
        self, path: Path, vectors: np.ndarray, ids: np.ndarray, side: np.ndarray, manifest: dict[str, Any]
    ) -> None:
        """Use :meth:`open`."""
        self.path = path
        self.vectors = vectors  # (N, D) float16, memory-mapped
        self.side = side  # (N, S) float32, NaN where unknown
        self.manifest = manifest
        self._ids = ids  # (N, 16) uint8
        keys = _keys(ids)
        self._order = np.argsort(keys, kind="stable")  # (N,)
        self._sorted = keys[self._order]
        twice = np.flatnonzero(self._sorted[1:] == self._sorted[:-1])
        if twice.size:
            first = ids[self._order[twice[0]]].tobytes().hex()
            raise ValueError(f"{str(path)!r} has {twice.size} duplicate question ids, first {first}: {_again(path)}")

    @classmethod
    def open(cls, path: str | os.PathLike) -> EmbeddingTable:
        """Open and check a file that :func:`write_embeddings` wrote.

        Raises:
            ValueError: no such file, not safetensors or cut off, wrong names, types or shapes, NaN or infinite values,
                duplicate ids, no manifest, or a manifest that describes another file. One line that names the file.
        """
        path = Path(path)
        if not path.is_file():
            raise ValueError(f"no embeddings file {str(path)!r}: {_again(path)}")
        vectors, ids, side = _map_tensors(path)
        manifest = _checked_manifest(path, vectors.shape, side.shape[1])
        bad = _first_not_finite(vectors)
        if bad is not None:
            raise ValueError(
                f"{str(path)!r} has NaN or infinite values, first in row {bad} (question {ids[bad].tobytes().hex()}): "
                f"{_again(path)}"
            )
        return cls(path, vectors, ids, side, manifest)

    @property
    def dim(self) -> int:
        """D, the number of dimensions."""
        return self.vectors.shape[1]

    @property
    def model(self) -> str:
        """What made the vectors, as recorded in the manifest."""
        return self.manifest["model"]

    @property
    def side_names(self) -> tuple[str, ...]:
        """Names of the S side features."""
        return tuple(self.manifest.get("side", ()))

    @property
    def question_ids(self) -> list[str]:
        """The ids in file order, N texts of 32 hex digits."""
        return [row.tobytes().hex() for row in self._ids]

    def __len__(self) -> int:
        return len(self._ids)

    def index(self, question_ids: Sequence[str]) -> np.ndarray:
        """Row numbers in the file of the questions asked for, int64 (M,).

        Raises:
            ValueError: ids that the file lacks; names the first, how many of how many, and the command that helps.
        """
        asked = [i if re.fullmatch(r"[0-9a-f]{32}", i) else None for i in question_ids]
        known = np.frombuffer(bytes.fromhex("".join(i or "0" * QUESTION_ID_HEX_DIGITS for i in asked)), np.uint8)
        keys = _keys(known.reshape(-1, ID_BYTES))
        place = np.minimum(np.searchsorted(self._sorted, keys), len(self) - 1)
        found = (self._sorted[place] == keys) & np.array([i is not None for i in asked], bool)
        if not found.all():
            missing = np.flatnonzero(~found)
            raise ValueError(
                f"{str(self.path)!r} lacks {missing.size} of the {len(asked)} questions, first "
                f"{question_ids[missing[0]]}: {_again(self.path)}"
            )
        return self._order[place]

    def rows(self, question_ids: Sequence[str]) -> np.ndarray:
        """The vectors of the questions asked for, in that order, float32 (M, D). Raises what :meth:`index` raises."""
        return self.vectors[self.index(question_ids)].astype(np.float32)


def write_embeddings(
    path: str | os.PathLike,
    question_ids: Sequence[str],
    vectors: np.ndarray,
    *,
    model: str,
    side: np.ndarray | None = None,
    side_names: Sequence[str] = (),
    extra: dict[str, Any] | None = None,
) -> None:
    """Write vectors (N, D) and their manifest, whole or not at all.

    Args:
        path: ends in ``.safetensors``.
        question_ids: N distinct ids of 32 hex digits.
        vectors: (N, D), any float type; stored as float16.
        model: what made the vectors; loading a predictor compares it.
        side: (N, S) side features, NaN where unknown.
        side_names: their S distinct names.
        extra: further fields of the manifest.

    Raises:
        ValueError: wrong suffix, shapes that do not fit, an id that is no id or occurs twice, or values that float16
            cannot hold.
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"embeddings file {str(path)!r} must end in .safetensors")
    check_output(path)
    vectors = np.asarray(vectors)
    if vectors.ndim != 2 or len(vectors) != len(question_ids) or 0 in vectors.shape:
        raise ValueError(f"vectors of shape {vectors.shape} do not fit {len(question_ids)} questions in {str(path)!r}")
    wrong = next((i for i in question_ids if not re.fullmatch(r"[0-9a-f]{32}", i)), None)
    if wrong is not None:
        raise ValueError(f"question id {wrong!r} is not 32 hex digits: use verl_dots.types.question_id")
    ids = np.frombuffer(bytes.fromhex("".join(question_ids)), np.uint8).reshape(-1, ID_BYTES)
    if len(np.unique(_keys(ids))) != len(ids):
        raise ValueError(f"question ids for {str(path)!r} are not distinct: write each question once")
    with np.errstate(over="ignore"):
        half = np.ascontiguousarray(vectors, dtype=np.float16)  # (N, D)
    bad = _first_not_finite(half)
    if bad is not None:
        raise ValueError(f"vector of question {question_ids[bad]} is NaN, infinite or beyond float16 (65504)")
    tensors = {"embeddings": half, "question_id": np.ascontiguousarray(ids)}
    if side_names:
        assert side is not None and side.shape == (len(ids), len(side_names)) and len({*side_names}) == len(side_names)
        tensors["side"] = np.ascontiguousarray(side, dtype=np.float32)
    with atomic_path(path) as temporary:
        save_file(tensors, temporary)
    write_manifest(path, model=model, count=len(ids), dim=half.shape[1], side=list(side_names), **(extra or {}))


def _again(path: Path) -> str:
    return f"run python data_prep/embed_questions.py --questions FILE --output {path}"


def _keys(ids: np.ndarray) -> np.ndarray:
    """Ids uint8 (N, 16) as one sortable array (N,); all have the same length, so dropped trailing NULs do no harm."""
    return np.ascontiguousarray(ids).view(f"S{ID_BYTES}").reshape(-1)


def _map_tensors(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Map embeddings, ids and side features, after the safetensors library has checked the file's structure."""
    try:
        with safe_open(path, framework="numpy") as stream:
            names = set(stream.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{str(path)!r} is not a whole safetensors file ({error}): {_again(path)}") from error
    if not {"embeddings", "question_id"} <= names:
        raise ValueError(f"{str(path)!r} holds {sorted(names)}, not 'embeddings' and 'question_id': {_again(path)}")
    with open(path, "rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
    vectors, ids, side = header["embeddings"], header["question_id"], header.get("side")
    rows = vectors["shape"][0] if vectors["shape"] else 0
    right = vectors["dtype"] == "F16" and len(vectors["shape"]) == 2 and 0 not in vectors["shape"]
    right &= ids["dtype"] == "U8" and ids["shape"] == [rows, ID_BYTES]
    right &= side is None or (side["dtype"] == "F32" and len(side["shape"]) == 2 and side["shape"][0] == rows)
    if not right:
        found = ", ".join(f"{name} {header[name]['dtype']} {header[name]['shape']}" for name in sorted(names))
        raise ValueError(
            f"{str(path)!r} has {found}, not embeddings F16 [N, D], question_id U8 [N, {ID_BYTES}] (and side F32 [N, S]): "
            f"{_again(path)}"
        )

    def mapped(entry: dict[str, Any], dtype: type) -> np.ndarray:
        offset = 8 + length + entry["data_offsets"][0]
        return np.memmap(path, dtype=dtype, mode="r", offset=offset, shape=tuple(entry["shape"]))

    has_side = side is not None and side["shape"][1] > 0
    side_values = np.array(mapped(side, np.float32)) if has_side else np.zeros((rows, 0), np.float32)
    return mapped(vectors, np.float16), np.array(mapped(ids, np.uint8)), side_values


def _checked_manifest(path: Path, shape: tuple[int, int], sides: int) -> dict[str, Any]:
    where = str(manifest_path(path))
    if not Path(where).is_file():
        raise ValueError(f"{str(path)!r} has no manifest {where!r}: {_again(path)}")
    manifest = read_manifest(path)
    size = (manifest.get("output") or {}).get("bytes")
    described = (manifest.get("count"), manifest.get("dim"))
    right = described == tuple(shape) and size == path.stat().st_size and len(manifest.get("side", ())) == sides
    if not right or not isinstance(manifest.get("model"), str):
        raise ValueError(
            f"manifest {where!r} describes {described[0]} questions of dimension {described[1]} in {size} bytes, but "
            f"{path.name!r} holds {shape[0]} of dimension {shape[1]} in {path.stat().st_size}: {_again(path)}"
        )
    return manifest


def _first_not_finite(vectors: np.ndarray) -> int | None:
    """First row of float16 (N, D) with NaN or infinity: all exponent bits set. Bit tests are 20 times np.isfinite."""
    bits = vectors.view(np.uint16)
    for start in range(0, len(bits), CHUNK):
        wrong = ((bits[start : start + CHUNK] & 0x7C00) == 0x7C00).any(axis=1)
        if wrong.any():
            return start + int(wrong.argmax())
    return None
