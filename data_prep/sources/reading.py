"""Rows of a data set, from the hub or from local files of the same format.

Every failure is one line that names the file or the repository and what to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sources.registry import DataSet
from verl_dots.files import one_line, read_parquet
from verl_dots.manifests import describe_file

Rows = list[Any]


def read_local(path: str, ignored: Sequence[str] = ()) -> Rows:
    """All rows of a ``.parquet``, ``.jsonl`` or ``.json`` file.

    A ``.json`` file may hold one array (DeepScaleR publishes that), or one object a line as ``.jsonl`` does.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another suffix, an empty file, or content that is not of its format.
    """
    suffix = Path(path).suffix
    if suffix == ".parquet":
        return read_parquet(path, ignored=ignored).to_dict("records")
    if suffix not in (".json", ".jsonl"):
        raise ValueError(f"{path!r} ends in {suffix or 'no suffix'}: give a .parquet, .jsonl or .json file")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path!r} is not UTF-8 text ({one_line(error)})") from error
    if not text.strip():
        raise ValueError(f"{path!r} is empty")
    rows = _array(path, text) if suffix == ".json" and text.lstrip().startswith("[") else list(_lines(path, text))
    if not rows:
        raise ValueError(f"{path!r} has no rows")
    return rows


def _array(path: str, text: str) -> Rows:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path!r} is not JSON: {one_line(error)}") from error


def _lines(path: str, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: JSON strings may hold U+2028
        if line.strip():
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path!r}, line {number} is not JSON: {one_line(error)}") from error


def check_columns(rows: Rows, columns: Sequence[Sequence[str]], where: str) -> None:
    """Refuse rows that lack a column; one name out of each tuple is enough.

    Raises:
        ValueError: naming the column and the columns there are.
    """
    for choices in columns:
        if not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(f"{where} has rows that are not objects with columns: is it the right data set?")
        if not any(name in row for row in rows[:100] for name in choices):
            present = ", ".join(sorted({str(name) for row in rows[:100] for name in row})) or "none"
            raise ValueError(f"{where} has no column {' or '.join(map(repr, choices))}: it has {present}")


def read_files(data_set: DataSet, paths: Sequence[str], split: str) -> tuple[list[tuple[str, Rows]], dict[str, Any]]:
    """Rows of local files, as ``(split, rows)`` pairs, and what the manifest says of them."""
    parts = []
    for path in paths:
        rows = read_local(path, data_set.ignored)
        check_columns(rows, data_set.columns, f"{path!r}")
        parts.append((split, rows))
    return parts, {"files": [describe_file(path) for path in paths], "split": split}


def read_hub(
    data_set: DataSet, splits: Sequence[str], revision: str | None
) -> tuple[list[tuple[str, Rows]], dict[str, Any]]:
    """Rows from the hub, as ``(split, rows)`` pairs, and what the manifest says of them.

    Raises:
        ValueError: the hub cannot be reached, or has no such repository, revision or split.
    """
    revision = revision or data_set.revision
    try:
        commit = _commit(data_set.hub, revision)
        parts = list(_hub_parts(data_set, splits, commit))
    except Exception as error:
        if not _is_hub_error(error):
            raise
        raise ValueError(
            f"{data_set.hub} at {revision!r} cannot be read from the hub ({one_line(error)[:300]}): "
            "check the network, or give the file itself with --local-file"
        ) from error
    source = {"hub": data_set.hub, "revision": revision, "commit": commit, "splits": list(splits)}
    if data_set.configs != (None,):
        source["configs"] = list(data_set.configs)
    return parts, source


def _commit(hub: str, revision: str) -> str:
    """The commit that ``revision`` stands for now; a full commit stands for itself, so that a filled cache is enough."""
    if len(revision) == 40:
        return revision
    from huggingface_hub import HfApi

    return HfApi().dataset_info(hub, revision=revision).sha


def _hub_parts(data_set: DataSet, splits: Sequence[str], commit: str) -> Iterator[tuple[str, Rows]]:
    if data_set.file is not None:
        from huggingface_hub import hf_hub_download

        path = hf_hub_download(data_set.hub, data_set.file, repo_type="dataset", revision=commit)
        yield splits[0], read_local(path)
        return
    import datasets

    for split in splits:
        for config in data_set.configs:
            table = datasets.load_dataset(data_set.hub, config, split=split, revision=commit)
            rows = table.remove_columns([name for name in data_set.ignored if name in table.column_names]).to_list()
            check_columns(rows, data_set.columns, f"{data_set.hub} ({config or 'default'}, {split})")
            yield split, rows


def _is_hub_error(error: Exception) -> bool:
    """Whether an exception tells of the network or the hub. ``huggingface_hub`` raises httpx's errors, which are not
    ``OSError``, and ``datasets`` its own."""
    import datasets
    import httpx
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    kinds = (OSError, httpx.HTTPError, HfHubHTTPError, LocalEntryNotFoundError, datasets.exceptions.DatasetsError)
    return isinstance(error, kinds) or (isinstance(error, ValueError) and "split" in str(error).lower())
