"""Log files -> (step, metrics) pairs: our flat JSONL, verl's file logger, wandb exports, TensorBoard event files.

Every reader streams, so that a long log never stands in memory as text. Values that are not finite numbers are left out.
"""

from __future__ import annotations

import csv
import json
import math
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

WALL_SECONDS = "wall_seconds"
"""Our name for the clock of TensorBoard (`wall_time`) and wandb (`_runtime`), in seconds since the run's first record."""

_STEP_NAMES = ("step", "_step", "Step", "training/global_step", "global_step")
_KEPT = (
    "dots/",
    "replay/",
    "timing_s/",
    "val-core/",
    "training/filter_groups/",
    "critic/score/mean",
    "response_length/mean",
    "prompt_length/mean",
    "perf/total_num_tokens",
    "perf/time_per_step",
    WALL_SECONDS,
)
"""Prefixes of the metrics a report uses; verl logs a hundred others."""

Record = tuple[int, Mapping[str, Any]]


@dataclass(frozen=True)
class Series:
    """One metric of one run. `steps` (S,) int64 is ascending and distinct, `values` (S,) float64 finite."""

    steps: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.steps)

    @classmethod
    def of(cls, steps: Iterable[int], values: Iterable[float]) -> Series:
        """Sort by step; where a step comes twice (a resumed run) the later record counts."""
        all_steps, all_values = np.asarray(list(steps), np.int64), np.asarray(list(values), np.float64)
        order = np.argsort(all_steps, kind="stable")
        all_steps, all_values = all_steps[order], all_values[order]
        last = np.append(all_steps[1:] != all_steps[:-1], True) if len(all_steps) else np.zeros(0, bool)
        return cls(all_steps[last], all_values[last])


EMPTY = Series(np.zeros(0, np.int64), np.zeros(0))


def collect(records: Iterable[Record]) -> dict[str, Series]:
    """The series of every kept metric."""
    steps: dict[str, array] = {}
    values: dict[str, array] = {}
    for step, metrics in records:
        for name, value in metrics.items():
            number = _number(value) if name.startswith(_KEPT) else None
            if number is not None:
                steps.setdefault(name, array("q")).append(step)
                values.setdefault(name, array("d")).append(number)
    return {name: Series.of(steps[name], values[name]) for name in steps}


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def read_jsonl(path: Path, damaged: list[int] | None = None) -> Iterator[Record]:
    """Lines `{"step": 3, "name": value}` (ours), `{"step": 3, "data": {...}}` (verl) or `{"_step": 3, ...}` (wandb).

    Args:
        path: the file.
        damaged: receives the numbers of lines that are not JSON; a kill leaves one, and a resumed run may add to it. A
            last line without its end is not among them: the run may be writing it.

    Raises:
        ValueError: the first line is not JSON, so this is another kind of file; or a line is no object with a step.
    """
    with path.open(encoding="utf-8", errors="replace") as stream:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError:
                if number == 1:
                    raise ValueError(
                        f"{path}, line 1: not JSON: give a metrics file of verl, verl-dots or wandb"
                    ) from None
                if damaged is not None and line.endswith("\n"):
                    damaged.append(number)
                continue
            yield _record(row, f"{path}, line {number}")


def _record(row: Any, where: str) -> Record:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: not a JSON object: give a metrics file of verl, verl-dots or wandb")
    step = next((_number(row[name]) for name in _STEP_NAMES if name in row), None)
    if step is None:
        raise ValueError(f"{where}: no step under any of {', '.join(_STEP_NAMES)}")
    data = row["data"] if isinstance(row.get("data"), dict) else row
    return int(step), _with_clock(data)


def _with_clock(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row, WALL_SECONDS: row["_runtime"]} if "_runtime" in row else row


def read_csv(path: Path) -> dict[str, list[Record]]:
    """A wandb CSV: the history of one run (`_step`, one column per metric), or a panel of several (`run - metric`).

    Returns:
        Records by run name; the name is empty for a history, which does not carry one.

    Raises:
        ValueError: no step column.
    """
    runs: dict[str, list[Record]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as stream:
        reader = csv.DictReader(stream)
        names = [name for name in reader.fieldnames or [] if name]
        step_name = next((name for name in _STEP_NAMES if name in names), None)
        if step_name is None:
            raise ValueError(f"{path}: no column {' or '.join(_STEP_NAMES)}: export the run's history, or a panel, as CSV")
        columns = [(name, *_split_panel_name(name)) for name in names if not name.endswith(("__MIN", "__MAX"))]
        for row in reader:
            step = _number(row.get(step_name))
            if step is None:
                continue
            by_run: dict[str, dict[str, Any]] = {}
            for column, run, metric in columns:
                if metric.startswith(_KEPT) or metric == "_runtime":
                    by_run.setdefault(run, {})[metric] = row[column]
            for run, metrics in by_run.items():
                runs.setdefault(run, []).append((int(step), _with_clock(metrics)))
    return runs


def _split_panel_name(column: str) -> tuple[str, str]:
    """`my run - val-core/x/acc/mean@1` -> run and metric; a plain metric belongs to the run without a name."""
    run, separator, metric = column.rpartition(" - ")
    return (run, metric) if separator else ("", column)


def read_tensorboard(folder: Path) -> Iterator[Record]:
    """Scalars of the event files of one folder, oldest file first.

    Raises:
        ValueError: TensorBoard is not installed.
    """
    try:
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise ValueError(f"{folder} has TensorBoard event files, to read them: pip install tensorboard") from None
    start: float | None = None
    for path in sorted(folder.glob("events.out.tfevents*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                start = event.wall_time if start is None else start
                number = value.simple_value if value.HasField("simple_value") else _tensor_scalar(value)
                yield event.step, {value.tag: number, WALL_SECONDS: event.wall_time - start}


def _tensor_scalar(value: Any) -> float | None:
    """What newer writers store as a tensor of one number."""
    numbers = list(value.tensor.float_val) or list(value.tensor.double_val)
    return numbers[0] if len(numbers) == 1 else None
