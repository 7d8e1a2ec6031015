#!/usr/bin/env python
"""The arithmetic task in plain PyTorch, with the package's own selection, estimate, replay and loss: one run, or a study.

    python recipes/benchmarks/fast_loop.py --task outputs/arithmetic_x --method dots_rr --seed 1
    python recipes/benchmarks/fast_loop.py --task outputs/arithmetic_x --method dots_rr replay.fresh_fraction=0.75 batch=32
    python recipes/benchmarks/fast_loop.py --study headline --seeds 101-105
    python recipes/benchmarks/fast_loop.py --table recipes/benchmarks/results/fast_loop.jsonl --figure outputs/fast_loop.png

A run prints one JSON line per evaluation and a summary; a study appends one line per run to --output and skips the runs
that are there, so it can be killed and started again. One thread, one process at a time for each output file. A run of 80
steps takes 10 s (grpo) to 20 s (dots_rr) of CPU time at batch 16.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy and torch start their threads
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import dataclasses
import fcntl
import functools
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from arithmetic_world import ArithmeticWorld, Task
from fast_figure import draw
from fast_studies import STUDIES, Run
from fast_tables import read_runs, show
from methods import METHODS, PRESETS, Method
from step_loop import StepLoop, Totals

from verl_dots.difficulty.build import build_predictor
from verl_dots.files import Parser, run_cli
from verl_dots.questions import DistinctQuestions

PROBES = (3, 21, 41, 61, 79)
"""Steps at whose refresh the estimate is compared with the true difficulty."""
EVALUATE_EVERY = 10


Report = Callable[[dict], None]


def train(task: Task, method: Method, seed: int, on_evaluation: Report = lambda line: None) -> dict[str, Any]:
    """One run from the warm-started model. Returns the curve, one list per quantity, and the totals."""
    torch.set_num_threads(1)
    start = time.process_time()
    world = ArithmeticWorld(task, method, seed)
    predictor = cached_predictor(task.folder, method.dots.predictor) if method.dots.selection.enable else None
    loop = StepLoop(world, method, predictor, PROBES)
    curve: dict[str, list] = {name: [] for name in ("step", "accuracy", "groups", "tokens", "trained_tokens")}
    for step in range(method.steps + 1):
        if step:
            loop.step(step)
        if step % EVALUATE_EVERY == 0 or step == method.steps:
            totals = loop.totals
            line = (step, round(world.accuracy(), 4), totals.groups, totals.tokens, totals.trained_tokens)
            for name, value in zip(curve, line, strict=True):
                curve[name].append(value)
            on_evaluation(dict(zip(curve, line, strict=True)))
    return {
        "curve": curve,
        **summary(loop.totals),
        "final_accuracy": curve["accuracy"][-1],
        "pearson": [[step, round(both, 3), round(prior, 3), round(near, 3)] for step, both, prior, near in loop.refreshes],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


@functools.cache
def load_task(folder: Path) -> Task:
    return Task.load(folder)


@functools.cache
def cached_predictor(folder: Path, config):
    """Predictors keep no state between refreshes, so the runs of a study share one."""
    train = load_task(folder).train
    return build_predictor(config, DistinctQuestions(train.ids, train.texts, train.truths))[0]


def summary(totals: Totals) -> dict[str, Any]:
    """Shares and totals of a run."""
    return {
        "informative_share": round(totals.fresh_informative / totals.fresh_groups, 4),
        "trained_informative_share": round(totals.trained_informative / totals.trained_groups, 4),
        **dataclasses.asdict(totals),
    }


def run_study(runs: Sequence[Run], tasks: Path, output: Path) -> None:
    """Do the runs that `output` lacks, in order; each is one line."""
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{output} is being written by another study: wait for it") from None
        drop_unfinished_line(output)
        done = {run["name"]: run.get("settings") for run in read_runs(output)}
        for number, run in enumerate(runs, 1):
            method = Method.make(run.method, run.preset, run.overrides, run.seed)
            settings = digest(method)
            if run.name in done:
                if done[run.name] not in (settings, None):
                    raise ValueError(f"{output} has {run.name} with other settings, a default has changed: rename that file")
                continue
            result = train(load_task(tasks / f"arithmetic_{run.task}"), method, run.seed)
            line = {"name": run.name, **dataclasses.asdict(run), **result, "settings": settings, "commit": commit()}
            stream.write(json.dumps(line) + "\n")
            stream.flush()
            numbers = f"{result['final_accuracy']:.3f}, {result['cpu_seconds']} s CPU"
            print(f"{number}/{len(runs)} {run.name}: {numbers}", flush=True)


def digest(method: Method) -> str:
    """Tells settings apart that a name leaves to the defaults."""
    return hashlib.sha256(repr(method).encode()).hexdigest()[:12]


def drop_unfinished_line(path: Path) -> None:
    """Cut off what a kill left of a last line, so that the next one starts on its own."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        os.truncate(path, whole)


@functools.cache
def commit() -> str:
    """The checked-out commit, `+` when files differ from it."""
    here = Path(__file__).parent
    described = subprocess.run(["git", "describe", "--always", "--dirty=+"], cwd=here, capture_output=True, text=True)
    return described.stdout.strip() or "unknown"


def seed_list(text: str) -> list[int]:
    """`101-105`, or a number of seeds from 101."""
    first, dash, last = text.partition("-")
    try:
        return list(range(int(first), int(last) + 1)) if dash else list(range(101, 101 + int(first)))
    except ValueError:
        raise ValueError(f"--seeds {text!r} is not allowed: use a number of seeds, or first-last") from None


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the dots block, or batch, steps, loss, ...")
    parser.add_argument("--task", type=Path, default=Path("outputs/arithmetic_x"), help="built task (default: %(default)s)")
    parser.add_argument("--method", choices=METHODS, default="dots_rr")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--study", choices=STUDIES, help="do many runs")
    parser.add_argument("--seeds", default="101-105", help="of a study: first-last, or how many (default: %(default)s)")
    parser.add_argument("--tasks", type=Path, default=Path("outputs"), help="where a study finds arithmetic_x, ...")
    parser.add_argument("--output", type=Path, default=Path("recipes/benchmarks/results/fast_loop.jsonl"))
    parser.add_argument("--table", type=Path, help="show the tables of a study's file")
    parser.add_argument("--figure", type=Path, help="with --table: draw accuracy against groups generated, a PNG")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.figure and not args.table:
        raise ValueError(f"--figure {args.figure}: name the runs to draw with --table FILE")
    if args.table:
        runs = read_runs(args.table)
        print(show(runs))
        if args.figure:
            draw(runs, args.figure)
    elif args.study:
        run_study(STUDIES[args.study](seed_list(args.seeds)), args.tasks, args.output)
    else:
        method = Method.make(args.method, args.preset, args.overrides, args.seed)
        result = train(load_task(args.task), method, args.seed, lambda line: print(json.dumps(line), flush=True))
        json.dump({name: value for name, value in result.items() if name != "curve"}, sys.stdout)
        print()


if __name__ == "__main__":
    run_cli(main)
