#!/usr/bin/env python
"""Methods x seeds through verl's real trainer on the CPU, one run after another, and the tables of what came out.

    python recipes/benchmarks/study.py --tasks pool_x pool_y --methods grpo dapo dots dots_rr --seeds 101-105
    python recipes/benchmarks/study.py --collect-only        # tables and results/study.json from the runs that are there

Every run is `recipes/quickstart_cpu.sh` in a folder of its own: FOLDER/<task>/<method>/seed<k>/ with run.json (settings,
command, commit, machine, versions), train.log, metrics and result.json. Runs are interleaved (seed by seed, then task by
task), so that the machine's drift hits all methods alike. A killed study continues where it was, also on another machine:
runs that stand in results/study_runs.jsonl are finished, an unfinished one starts anew. Methods are `grpo`, `dapo`, `dots`,
`rr`, `dots_rr`, and with a preset or a setting after a colon `dots_rr:paper`, `dots_rr:released`, `dots_rr:target70`
(see METHODS).

Accuracy at temperature 1 is computed from the models that a run saved, exactly (see arithmetic_world.py), and not sampled;
verl's own validation at the end stands beside it as a check. The time for saving and validating is taken out of the steps.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import study_tables
from study_runs import read_run

from verl_dots.files import Parser, atomic_path, run_cli

ROOT = Path(__file__).resolve().parents[2]
SAVE_EVERY = 5


@dataclass(frozen=True)
class TaskSettings:
    """A column of the study: how the task is built, and the size of its runs."""

    pool: str
    batch: int
    steps: int = 30
    build_args: str = ""


TASKS = {
    "pool_x": TaskSettings("x", 32),
    "pool_y": TaskSettings("y", 32),
    "carry_slip": TaskSettings("x", 32, build_args="--task carry_slip"),
    "pool_x_large": TaskSettings("x", 64, build_args="--width 192"),
}

_DAPO = (
    "algorithm.filter_groups.enable=True",
    "algorithm.filter_groups.metric=reward",
)
METHODS: dict[str, tuple[str, str, tuple[str, ...]]] = {  # name: quickstart's METHOD, PRESET, overrides
    "grpo": ("grpo", "default", ()),
    "dapo": ("grpo", "default", _DAPO),
    "dots": ("dots", "default", ()),
    "dots:target50": ("dots", "default", ("dots.selection.target=0.5",)),
    "rr": ("rr", "default", ()),
    "dots_rr": ("dots_rr", "default", ()),
    "dots_rr:target50": ("dots_rr", "default", ("dots.selection.target=0.5",)),
    "dots_rr:target70": ("dots_rr", "default", ("dots.selection.target=0.7",)),
    "dots_rr:fresh50": ("dots_rr", "default", ("dots.replay.fresh_fraction=0.5",)),
    "dots_rr:fresh50_target50": ("dots_rr", "default", ("dots.replay.fresh_fraction=0.5", "dots.selection.target=0.5")),
    "dots_rr:fresh75": ("dots_rr", "default", ("dots.replay.fresh_fraction=0.75",)),
    "dots_rr:fresh150": ("dots_rr", "default", ("dots.replay.fresh_fraction=1.5",)),
    "dots_rr:paper": ("dots_rr", "paper", ()),
    "dots_rr:released": ("dots_rr", "released", ()),
}


Key = tuple[str, str, int, int, int]


@dataclass(frozen=True)
class Run:
    """One run of the study."""

    task: str
    method: str
    seed: int
    steps: int
    batch: int

    @property
    def key(self) -> Key:
        return (self.task, self.method, self.seed, self.steps, self.batch)

    def folder(self, root: Path) -> Path:
        return root / self.task / self.method.replace(":", "_") / f"seed{self.seed}"

    def command(self, root: Path) -> tuple[dict[str, str], list[str]]:
        """Environment and command line of quickstart_cpu.sh."""
        task = TASKS[self.task]
        method, preset, overrides = METHODS[self.method]
        environment = {
            "METHOD": method,
            "PRESET": preset,
            "FRESH": "",  # the preset's own
            "POOL": task.pool,
            "TASK_DIR": str(root / self.task / "task"),
            "BUILD_ARGS": task.build_args,
            "TRAIN_BATCH": str(self.batch),
            "MINI_BATCH": str(max(1, self.batch // 2)),
            "STEPS": str(self.steps),
            "SEED": str(self.seed),
            "OUT": str(self.folder(root)),
            "TEST_FREQ": str(self.steps),  # verl's own validation, once at the start and once at the end
            "SAVE_FREQ": str(min(SAVE_EVERY, self.steps)),
        }
        extra = [
            "actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]",
            f"trainer.rollout_data_dir={self.folder(root) / 'rollouts'}",
            *overrides,
        ]
        if self.method == "dapo":  # a custom sampler gets verl's filter settings only this way
            kwargs = f"filter_groups_metric:reward,train_batch_size:{self.batch},gen_batch_size:1,max_inflight_gen_batches:1"
            extra.append(f"+trainer.v1.sampler.sampler_kwargs={{{kwargs}}}")
        if preset != "default":  # sizes made for batches of 512
            size = max(32, self.batch // 2)
            extra += [f"dots.reference.size={size}", f"dots.replay.capacity={self.batch}"]
        return environment, ["bash", "recipes/quickstart_cpu.sh", *extra]


def do_run(run: Run, root: Path, lock: Path) -> None:
    """Train, measure, write result.json, and drop the checkpoints and rollouts, which are large.

    Raises:
        ValueError: the run failed; its log is named.
    """
    folder = run.folder(root)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    environment, command = run.command(root)
    record = {**asdict(run), "environment": environment, "command": command, **about_this_machine()}
    (folder / "run.json").write_text(json.dumps(record, indent=2) + "\n")
    start = time.monotonic()
    with machine_lock(lock), (folder / "console.log").open("wb") as log:
        ended = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **environment}, stdout=log, stderr=subprocess.STDOUT, check=False
        )
    if ended.returncode:
        raise ValueError(f"{folder} ended with code {ended.returncode}: see {folder / 'console.log'} and train.log")
    result = read_run(folder, root / run.task / "task", run.batch, run.steps)
    result["wall_seconds"] = round(time.monotonic() - start, 1)
    with atomic_path(folder / "result.json") as path:
        path.write_text(json.dumps({**record, **result}) + "\n")
    shutil.rmtree(folder / "checkpoints")
    shutil.rmtree(folder / "rollouts")


@contextmanager
def machine_lock(path: Path) -> Iterator[None]:
    """Wait until no other verl run uses this machine: two of them would spoil each other's times."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def about_this_machine() -> dict:
    """What a reader needs to place the seconds: commit, versions, machine."""
    described = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=ROOT, capture_output=True, text=True)
    packages = ("verl", "torch", "ray", "transformers", "TransferQueue")
    return {
        "commit": described.stdout.strip(),
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in packages}},
        "machine": {"cpus": os.cpu_count(), "processor": processor(), "system": platform.system(), "boot": boot()},
        "load_at_start": round(os.getloadavg()[0], 1),
    }


def boot() -> str:
    """Tells machines, and their restarts, apart without naming them."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(path.read_bytes() if path.exists() else platform.node().encode()).hexdigest()[:8]


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def plan(
    tasks: Sequence[str], methods: Sequence[str], seeds: Sequence[int], steps: int | None, batch: int | None
) -> list[Run]:
    """Interleaved: all methods and tasks of a seed before the next seed."""
    return [
        Run(task, method, seed, steps or TASKS[task].steps, batch or TASKS[task].batch)
        for seed in seeds
        for task in tasks
        for method in methods
    ]


def finished(root: Path, output: Path) -> dict[Key, dict]:
    """Runs by task, method, seed, steps and batch: those beside `output`, perhaps of another machine, and those of `root`,
    which are newer."""
    results = [json.loads(path.read_text()) for path in sorted(root.glob("*/*/seed*/result.json"))]
    if (listed := runs_file(output)).exists():
        results = [json.loads(line) for line in listed.read_text().splitlines()] + results
    runs = {(run["task"], run["method"], run["seed"], run["steps"], run["batch"]): run for run in results}
    tasks, methods = list(TASKS), list(METHODS)
    for task, method, *_ in runs:
        if task not in tasks or method not in methods:
            raise ValueError(f"{runs_file(output)} or {root} has runs of {task} {method}, which is in no table: remove them")
    return dict(sorted(runs.items(), key=lambda item: (tasks.index(item[0][0]), methods.index(item[0][1]), item[0][2:])))


def runs_file(output: Path) -> Path:
    """One line for every run, beside the aggregates."""
    return output.with_name(f"{output.stem}_runs.jsonl")


def collect(root: Path, output: Path) -> None:
    """Tables from the finished runs, and one JSON of them."""
    results = list(finished(root, output).values())
    if not results:
        raise ValueError(f"{root} holds no finished run, and there is no {runs_file(output)}")
    study = study_tables.aggregate(results)
    output.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(output) as path:
        path.write_text(json.dumps(study, indent=1) + "\n")
    with atomic_path(runs_file(output)) as path:
        path.write_text("".join(json.dumps(_without_paths(result)) + "\n" for result in results))
    text = study_tables.show(results)
    with atomic_path(output.with_suffix(".md")) as path:
        path.write_text(text + "\n")
    print(text)


def _without_paths(result: dict) -> dict:
    """What says nothing of the folders of this machine; commit, task, method and seed give the command (`Run.command`)."""
    return {name: value for name, value in result.items() if name not in ("environment", "command")}


def seed_list(text: str) -> list[int]:
    """`101-105` or `7`."""
    first, _, last = text.partition("-")
    if not first.isdigit() or (last and not last.isdigit()) or int(last or first) < int(first):
        raise ValueError(f"--seeds {text!r} is not allowed: use one seed, or first-last")
    return list(range(int(first), int(last or first) + 1))


def size(text: str) -> int:
    """Of --steps and --batch."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: use a whole number >= 1")
    return int(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["pool_x", "pool_y"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["grpo", "dapo", "dots", "dots_rr"])
    parser.add_argument("--seeds", default="101-105", help="first-last (default: %(default)s)")
    parser.add_argument("--steps", type=size, help="instead of the task's own")
    parser.add_argument("--batch", type=size, help="instead of the task's own")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs" / "study", help="where the runs go")
    parser.add_argument("--output", type=Path, default=ROOT / "recipes" / "benchmarks" / "results" / "study.json")
    parser.add_argument("--lock", type=Path, default=Path(tempfile.gettempdir()) / "verl.lock", help="held during each run")
    parser.add_argument("--collect-only", action="store_true", help="run nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    root = args.folder.resolve()
    runs = [] if args.collect_only else plan(args.tasks, args.methods, seed_list(args.seeds), args.steps, args.batch)
    done = finished(root, args.output)
    for number, run in enumerate(runs, 1):
        if run.key in done:
            continue
        print(f"{number}/{len(runs)} {run.task} {run.method} seed {run.seed}", file=sys.stderr, flush=True)
        do_run(run, root, args.lock)
        collect(root, args.output)
    collect(root, args.output)  # also what a kill kept from being collected


if __name__ == "__main__":
    run_cli(main)
