#!/usr/bin/env python
"""What the arithmetic task cannot show: large pools, weak predictors, drifting policies, mixed domains, in simulation.

    python recipes/benchmarks/simulate.py --check recipes/benchmarks/results/fast_loop.jsonl   # are methods ordered alike?
    python recipes/benchmarks/simulate.py --study
    python recipes/benchmarks/simulate.py --method dots_rr --questions 100000 --steps 500 --quality 0.4

The policy is simulated (simulated_world.py); selection, estimate, replay and the batch are the package's own code. A
simulation shows consequences of its assumptions: read its tables as "if learning worked like this", and only as far as
--check agrees. The pool of 1e6 questions takes a few seconds per refresh, so it is refreshed every 10 steps.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fast_studies import HEADLINE
from fast_tables import compare, read_runs, setting
from methods import METHODS, PRESETS, Method
from scipy.stats import spearmanr
from simulated_world import SimulatedWorld, WorldSettings
from step_loop import StepLoop

from verl_dots.difficulty.kernel import KernelPredictor
from verl_dots.files import Parser, atomic_path, run_cli

POINTS = 16
"""Evaluations of a run."""


def simulate(method: Method, world: SimulatedWorld) -> dict[str, Any]:
    """One run, in the form of `fast_loop.train`."""
    start = time.process_time()
    predictor = KernelPredictor(world.vectors) if method.dots.selection.enable else None
    every = max(1, method.steps // POINTS)
    refresh = method.dots.selection.refresh_every
    probes = [1 + refresh * (quarter * method.steps // (4 * refresh)) for quarter in (1, 2, 3)]
    loop = StepLoop(world, method, predictor, probes)
    curve: dict[str, list] = {name: [] for name in ("step", "accuracy", "groups", "tokens", "trained_tokens")}
    for step in range(method.steps + 1):
        if step:
            loop.step(step)
        if step % every == 0 or step == method.steps:
            totals = loop.totals
            values = (step, round(world.accuracy(), 4), totals.groups, totals.tokens, totals.trained_tokens)
            for name, value in zip(curve, values, strict=True):
                curve[name].append(value)
    totals = loop.totals
    return {
        "curve": curve,
        "final_accuracy": curve["accuracy"][-1],
        "informative_share": totals.fresh_informative / totals.fresh_groups,
        "trained_informative_share": totals.trained_informative / totals.trained_groups,
        "groups": totals.groups,
        "tokens": totals.tokens,
        "pearson": [[step, round(both, 3), round(prior, 3), round(near, 3)] for step, both, prior, near in loop.refreshes],
        "cpu_seconds": round(time.process_time() - start, 1),
    }


@dataclass(frozen=True)
class Scenario:
    """A situation, and how long and how large the runs in it are."""

    world: WorldSettings
    steps: int = 200
    batch: int = 64
    overrides: tuple[str, ...] = ("selection.refresh_every=4",)
    labels: tuple[str, ...] = ("grpo", "dots", "dots_rr fresh .5", "dots_rr fresh 1", "dapo", "thompson")


_BASE = WorldSettings(questions=10_000, rate=0.02)
SCENARIOS: dict[str, Scenario] = {
    "10,000 questions": Scenario(_BASE),
    "weak predictor (quality .3)": Scenario(replace(_BASE, quality=0.3)),
    "no predictor (quality 0)": Scenario(replace(_BASE, quality=0.0, cluster_share=0.0)),
    "drifting policy": Scenario(replace(_BASE, drift=0.1)),
    "five domains, .1 transfer": Scenario(replace(_BASE, domains=5, clusters=8, domain_spread=3.0, transfer=0.1)),
    "hard pool (start -3)": Scenario(replace(_BASE, start=-3.0)),
    "easy pool (start 3)": Scenario(replace(_BASE, start=3.0)),
    "2,000 steps": Scenario(replace(_BASE, rate=0.002), 2000, overrides=("selection.refresh_every=40",)),
    "1,000,000 questions": Scenario(
        replace(_BASE, questions=1_000_000),
        steps=100,
        overrides=("selection.refresh_every=10",),
        labels=("grpo", "dots", "dots_rr fresh .5", "dapo"),
    ),
}


def run_variant(label: str, scenario: Scenario, seed: int) -> dict[str, Any]:
    """One run of a row of the headline table in a simulated world."""
    batch = scenario.batch
    _, name, preset, overrides = next(variant for variant in HEADLINE if variant[0] == label)
    own = [*scenario.overrides, f"steps={scenario.steps}", f"batch={batch}"]
    method = Method.make(name, preset, [*overrides, *own], seed)
    result = simulate(method, SimulatedWorld(scenario.world, seed, method.rollouts, batch))
    return {"task": "simulated", "label": label, "seed": seed, "overrides": [f"batch={batch}"], **result}


def study(seeds: Sequence[int], names: Sequence[str], output: Path) -> None:
    """All scenarios; the JSON is rewritten after each, and scenarios that it holds are skipped."""
    done = json.loads(output.read_text()) if output.exists() else {}
    for name in names:
        if name in done:
            continue
        scenario = SCENARIOS[name]
        here = seeds[:1] if scenario.world.questions > 100_000 else seeds
        runs = [run_variant(label, scenario, seed) for seed in here for label in scenario.labels]
        rows = compare(runs)
        for label, row in rows.items():
            row["pearson"] = next(run["pearson"] for run in runs if run["label"] == label)
        done[name] = rows
        with atomic_path(output) as path:
            path.write_text(json.dumps(done, indent=1) + "\n")
        print(table(name, rows), flush=True)


def table(name: str, rows: dict[str, dict[str, Any]]) -> str:
    """Markdown for one scenario."""
    columns = ("method", "final accuracy", "informative", "steps to GRPO's", "groups to GRPO's", "Pearson")
    lines = [f"### {name}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for label, row in rows.items():
        medians = [row[key]["median"] for key in ("step_ratio", "groups_ratio")]
        ratios = ["-" if median is None else f"{median:.2f}" for median in medians]
        pearson = ", ".join(f"{both:.2f}" for _, both, _, _ in row["pearson"])
        lines.append(
            f"| {label} | {row['final_accuracy']['median']:.3f} | {row['informative_share']['median']:.2f} | "
            f"{ratios[0]} | {ratios[1]} | {pearson or '-'} |"
        )
    return "\n".join(lines) + "\n"


def check(path: Path, task: str, batch: int, seeds: Sequence[int]) -> str:
    """Medians of the real runs beside simulated ones of the same length, and the rank correlation of final accuracies."""
    real = compare([run for run in read_runs(path) if setting(run) == (task, str(batch))])
    scenario = Scenario(WorldSettings(questions=2048), steps=80, batch=batch)
    labels = [variant[0] for variant in HEADLINE if variant[0] in real]
    if len(labels) < 3:
        raise ValueError(f"{path} has {len(labels)} methods of task {task} at batch {batch}: three are needed")
    simulated = compare([run_variant(label, scenario, seed) for seed in seeds for label in labels])
    medians = {  # real and simulated, one value for each method
        key: [[rows[label][key]["median"] for label in labels] for rows in (real, simulated)]
        for key in ("final_accuracy", "informative_share")
    }
    lines = ["| method | accuracy, real | simulated | informative, real | simulated |", "|---" * 5 + "|"]
    for label, *values in zip(labels, *(column for pair in medians.values() for column in pair), strict=True):
        lines.append(f"| {label} | " + " | ".join(f"{value:.3f}" for value in values) + " |")
    accuracy, informative = (spearmanr(*pair).statistic for pair in medians.values())
    ranks = f"final accuracy {accuracy:.2f}, informative share {informative:.2f}"
    lines += ["", f"Rank correlation over {len(labels)} methods: {ranks}."]
    return "\n".join(lines)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the dots block, or batch, ...")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare with the real runs of the fast loop")
    parser.add_argument("--check-task", default="x", help="task of these runs (default: %(default)s)")
    parser.add_argument("--study", action="store_true", help="do the scenarios")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=list(SCENARIOS))
    parser.add_argument("--seeds", type=int, default=3, help="of a study or check, from 1 (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=Path("recipes/benchmarks/results/simulate.json"))
    parser.add_argument("--method", choices=METHODS, default="dots_rr")
    parser.add_argument("--preset", choices=PRESETS, default="default")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16)
    for item in fields(WorldSettings):
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=type(item.default), help=f"default: {item.default}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    seeds = range(1, args.seeds + 1)
    if args.check:
        print(check(args.check, args.check_task, args.batch, seeds))
    elif args.study:
        study(seeds, args.scenarios, args.output)
    else:
        chosen = {item.name: value for item in fields(WorldSettings) if (value := getattr(args, item.name)) is not None}
        own = [*args.overrides, f"steps={args.steps}", f"batch={args.batch}"]
        method = Method.make(args.method, args.preset, own, args.seed)
        world = SimulatedWorld(replace(WorldSettings(), **chosen), args.seed, method.rollouts, args.batch)
        print(json.dumps(simulate(method, world)))


if __name__ == "__main__":
    run_cli(main)
