"""A RUN argument of the report -> `Run`: its series, its question log, its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from verl_dots.reporting.questions import QuestionTable, read_question_log
from verl_dots.reporting.readers import EMPTY, Series, collect, read_csv, read_jsonl, read_tensorboard

_OUR_FILES = ("dots/metrics.jsonl", "checkpoints/dots/metrics.jsonl")
"""Where DotsTrainer's metrics lie: the whole run, whatever was resumed."""
_VERL_FILES = ("metrics.jsonl", "verl_metrics.jsonl")
"""Where recipes keep verl's: what ran before a resume, and verl's own file, which starts anew; read in this order."""
_QUESTION_FOLDERS = (Path("dots", "questions"), Path("checkpoints", "dots", "questions"), Path("questions"))
_HYDRA_FOLDERS = ("hydra/.hydra", ".hydra", "../hydra/.hydra")


@dataclass(frozen=True)
class Run:
    """One training run.

    Attributes:
        name: how the report calls it.
        source: the file or folder its metrics came from.
        series: by metric name; only the metrics a report uses.
        questions: what was rolled out and how it went, None where the run kept no question log.
        overrides: verl's command line as `key -> value`, empty where Hydra's folder was not found.
        rollouts: verl's `rollout.n`, None where the configuration was not found.
        notes: what a reader must know about these logs, one sentence each.
    """

    name: str
    source: Path
    series: dict[str, Series]
    questions: QuestionTable | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    rollouts: int | None = None
    notes: tuple[str, ...] = ()

    def get(self, metric: str) -> Series:
        """The series of a metric, empty where it was not logged."""
        return self.series.get(metric, EMPTY)

    @property
    def uses_dots(self) -> bool:
        """Whether difficulty selection or rollout replay was active."""
        return any(name.startswith(("dots/", "replay/")) for name in self.series)

    @property
    def last_step(self) -> int:
        return max((int(series.steps[-1]) for series in self.series.values()), default=0)


def read_runs(arguments: list[str]) -> list[Run]:
    """Read every RUN argument, `PATH` or `NAME=PATH`; names are made distinct.

    Raises:
        ValueError: nothing there, or no metrics of verl in it.
    """
    runs: list[Run] = []
    for argument in arguments:
        name, separator, path = argument.partition("=")
        if not separator or Path(argument).exists():
            name, path = "", argument
        runs += _read(Path(path), name)
    return _distinct(runs)


def _read(path: Path, name: str) -> list[Run]:
    if not path.exists():
        raise ValueError(f"no such file or folder: {str(path)!r}")
    if path.is_dir():
        return [_read_folder(path, name)]
    if path.name.startswith("events.out.tfevents"):
        return [_read_folder(path.parent, name)]
    if path.suffix == ".csv":
        runs = [(run, collect(records)) for run, records in read_csv(path).items()]
        label = f"{name} " if name and len(runs) > 1 else ""
        runs = [(label + run if run else name or path.stem, series) for run, series in runs]
        return [_run(run, path, series) for run, series in runs]
    folder = path.parent if path.name in _VERL_FILES else None
    return [_read_lines(name or _name(path.with_suffix("")), [path], folder)]


def _read_folder(folder: Path, name: str) -> Run:
    ours = [folder / file for file in _OUR_FILES if (folder / file).is_file()][:1]
    files = ours or [folder / file for file in _VERL_FILES if (folder / file).is_file()]
    if files:
        return _read_lines(name or _name(folder), files, folder)
    holders = sorted({path.parent for path in folder.rglob("events.out.tfevents*")})
    if len(holders) > 1 and folder not in holders:
        raise ValueError(f"{str(folder)!r} holds {len(holders)} TensorBoard runs: name one, such as {str(holders[0])!r}")
    if holders:
        where = folder if folder in holders else holders[0]
        return _run(name or _name(where), where, collect(read_tensorboard(where)), folder)
    lines = sorted(folder.glob("*.jsonl"))
    if len(lines) == 1:
        return _read_lines(name or _name(folder), lines, folder)
    more = f": it has {len(lines)} .jsonl files, name one" if lines else ""
    remedy = more or ": give a run folder, a metrics.jsonl, a TensorBoard folder or a wandb export"
    raise ValueError(f"no metrics in {str(folder)!r}{remedy}")


def _read_lines(name: str, files: list[Path], folder: Path | None) -> Run:
    """One run from JSON lines in one or several files, the later file the newer."""
    damaged: dict[Path, list[int]] = {path: [] for path in files}
    series = collect(chain.from_iterable(read_jsonl(path, damaged[path]) for path in files))
    notes = [
        f"{len(numbers)} damaged line(s) of {path.name} were left out, first line {numbers[0]}"
        for path, numbers in damaged.items()
        if numbers
    ]
    return _run(name, files[-1], series, folder, notes)


def _run(
    name: str, source: Path, series: dict[str, Series], folder: Path | None = None, notes: Sequence[str] = ()
) -> Run:
    if not series:
        raise ValueError(f"no metrics of verl in {str(source)!r} (looked for val-core/..., timing_s/..., dots/...)")
    questions, overrides, rollouts = None, {}, None
    if folder is not None:
        found = next((folder / name for name in _QUESTION_FOLDERS if (folder / name).is_dir()), None)
        questions = None if found is None else read_question_log(found)
        hydra = next((folder / name for name in _HYDRA_FOLDERS if (folder / name / "config.yaml").is_file()), None)
        if hydra is not None:
            overrides, rollouts = _read_hydra(hydra)
    return Run(name, source, series, questions, overrides, rollouts, (*notes, *_notes(series)))


def _notes(series: dict[str, Series]) -> list[str]:
    steps = next((series[name].steps for name in ("timing_s/step", "critic/score/mean") if name in series), None)
    if steps is None or not len(steps):
        return []
    notes = []
    if steps[0] > 1:
        notes.append(f"its log begins at step {steps[0]}: hours and tokens count from there")
    holes = int(steps[-1] - steps[0]) + 1 - len(steps)
    if holes:
        notes.append(f"{holes} of its steps are not in the log: each is counted like the next one that is")
    return notes


def _read_hydra(folder: Path) -> tuple[dict[str, str], int | None]:
    """The command line and `rollout.n` that Hydra wrote down."""
    overrides: dict[str, str] = {}
    path = folder / "overrides.yaml"
    if path.is_file():
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")) or []:
            key, _, value = str(entry).partition("=")
            overrides[key.lstrip("+~")] = value
    config: Any = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")) or {}
    for key in ("actor_rollout_ref", "rollout", "n"):
        config = config.get(key) if isinstance(config, dict) else None
    return overrides, config if isinstance(config, int) else None


def _name(path: Path) -> str:
    """The last part of a path that says something; `dots` may be our folder in verl's, or a run of METHOD=dots."""
    path = path.resolve()
    while path.parent != path and (
        path.name in ("checkpoints", "metrics", "verl_metrics")
        or (path.name == "dots" and (path.parent.name == "checkpoints" or (path / "questions").is_dir()))
    ):
        path = path.parent
    return path.name


def _distinct(runs: list[Run]) -> list[Run]:
    seen: dict[str, int] = {}
    named = []
    for run in runs:
        seen[run.name] = seen.get(run.name, 0) + 1
        name = run.name if seen[run.name] == 1 else f"{run.name} ({seen[run.name]})"
        named.append(Run(**{**run.__dict__, "name": name}))
    return named
