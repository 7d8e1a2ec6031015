#!/usr/bin/env python
"""What a training step costs against plain GRPO's: a little arithmetic, checked against the paper and measured steps.

    python recipes/benchmarks/cost_model.py                                             # the tables
    python recipes/benchmarks/cost_model.py --share 0.7 --tail 0.3 --fresh 0.75         # one setting
    python recipes/benchmarks/cost_model.py --study recipes/benchmarks/results/study_runs.jsonl

A step of GRPO is 1: `share` of it generates B groups, the rest (log-probs, update, weight sync) trains on B groups.
Selection and replay change only how many groups are generated; the batch that is trained on stays B. So

    step = 1 - share + share * generation + refresh / refresh_every
    generation = tail + (1 - tail) * (groups / B)  [+ tail / refresh_every when the reference set is rolled out alone]
    groups = fresh_fraction * B + K / refresh_every          (K = 0 with `reference.mode: window`)

`tail` is the part of generation that does not shrink with the number of groups, because the longest response sets it: 0
where the engine is saturated. `reuse` and `explore` do not change the time of a step but what it buys: see
`informative_per_generated`. What the check against the paper shows: one range of shares, .46 to .54, explains all three of
its figures with nothing but 768 groups in place of 1,024; the shares themselves are read off these figures.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from verl_dots.files import Parser, run_cli

PAPER_REDUCTION = (0.117, 0.115, 0.135)
"""Time per step saved, arXiv 2506.05316, for the three settings whose step times it prints."""


@dataclass(frozen=True)
class Setting:
    """One way to train; times are fractions of a GRPO step.

    Attributes:
        share: of a GRPO step that generates.
        batch: groups per step.
        fresh_fraction: generated share of the batch, up to 2; 1 without replay.
        reference: groups rolled out only as labels at each refresh.
        refresh_every: steps between refreshes.
        alone: the reference set is rolled out before the step's own prompts (mode `fresh`), not together with them.
        refresh: time of one prediction and selection.
        tail: part of the generation time that does not depend on the number of groups.
        explore: share of the fresh groups drawn uniformly.
        reuse: informative reference groups are trained on.
    """

    share: float = 0.5
    batch: int = 512
    fresh_fraction: float = 1.0
    reference: int = 0
    refresh_every: int = 2
    alone: bool = True
    refresh: float = 0.0
    tail: float = 0.0
    explore: float = 0.0
    reuse: bool = True

    def __post_init__(self) -> None:
        for name, most in (("share", 1), ("tail", 1), ("explore", 1), ("fresh_fraction", 2)):
            if not 0 <= getattr(self, name) <= most:
                raise ValueError(f"{name} {getattr(self, name)} is not allowed: use a share in [0, {most}]")


def groups_per_step(setting: Setting) -> float:
    """Groups generated per step, reference set included."""
    return setting.fresh_fraction * setting.batch + setting.reference / setting.refresh_every


def step_time(setting: Setting) -> float:
    """Time of a step as a fraction of GRPO's."""
    generation = setting.tail + (1 - setting.tail) * groups_per_step(setting) / setting.batch
    if setting.reference and setting.alone:
        generation += setting.tail / setting.refresh_every
    return 1 - setting.share + setting.share * generation + setting.refresh / setting.refresh_every


def informative_per_generated(setting: Setting, selected: float, uniform: float) -> float:
    """Informative groups that a generated group yields, given the shares among selected and among uniform draws."""
    fresh = setting.fresh_fraction * setting.batch
    reference = setting.reference / setting.refresh_every
    useful = fresh * ((1 - setting.explore) * selected + setting.explore * uniform)
    return (useful + (reference * uniform if setting.reuse else 0.0)) / (fresh + reference)


def filter_groups(informative: float) -> float:
    """Groups per step as a multiple of B for verl's DAPO filter: k evicted ones allow 2k more, at most B at a time."""
    if not 0 < informative <= 1:
        raise ValueError(f"informative share {informative} is not allowed: use a share in (0, 1]")
    kept, total, credit = informative, 1.0, 2 * (1 - informative)
    while kept < 1 and credit > 1e-9:
        size = min(credit, 1.0)
        total, kept = total + size, kept + size * informative
        credit += 2 * size * (1 - informative) - size
    return total


SETTINGS: dict[str, Setting] = {
    "grpo": Setting(),
    "paper: K 256 fresh, delta .5": Setting(fresh_fraction=0.5, reference=256),
    "dots, reference set fresh": Setting(reference=256),
    "dots, window": Setting(explore=0.125),
    "dots_rr default: window, delta .5": Setting(fresh_fraction=0.5, explore=0.125),
    "dots_rr, delta .75": Setting(fresh_fraction=0.75, explore=0.125),
    "dots_rr, delta 1.5": Setting(fresh_fraction=1.5, explore=0.125),
    "dots_rr, delta .5, overlap K 256 every 4": Setting(fresh_fraction=0.5, reference=256, refresh_every=4, alone=False),
    "dots_rr, delta .25": Setting(fresh_fraction=0.25, explore=0.125),
}


def tables(refresh_seconds: float = 1.7, step_seconds: float = 250.0) -> str:
    """Markdown: the paper's reductions, and settings on 8 GPUs at several shares.

    `refresh_seconds`: of one prediction, here the paper's for 10,000 questions; `step_seconds`: of a GRPO step.
    """
    lines = ["Paper, 768 instead of 1,024 groups in 2 steps; the share of generation that its figures imply:", ""]
    lines += ["| time per step, printed | share needed | model at .46 | model at .54 |", "|---|---|---|---|"]
    paper = SETTINGS["paper: K 256 fresh, delta .5"]
    ends = [step_time(replace(paper, share=share)) - 1 for share in (0.46, 0.54)]
    for reduction in PAPER_REDUCTION:
        share = reduction / (1 - groups_per_step(paper) / paper.batch)
        lines.append(f"| -{reduction:.1%} | {share:.3f} | {ends[0]:+.1%} | {ends[1]:+.1%} |")
    shares = (0.46, 0.5, 0.54, 0.7)
    lines += ["", "8 GPUs, batches of 512: time per step against GRPO at these shares of generation", ""]
    lines += ["| setting | groups per step | " + " | ".join(map(str, shares)) + " | .54, a tail of .3 |", "|---" * 7 + "|"]
    refresh = refresh_seconds / step_seconds
    for name, setting in SETTINGS.items():
        setting = replace(setting, refresh=0.0 if name == "grpo" else refresh)
        times = [step_time(replace(setting, share=share)) - 1 for share in shares]
        times.append(step_time(replace(setting, share=0.54, tail=0.3)) - 1)
        lines.append(f"| {name} | {groups_per_step(setting):.0f} | " + " | ".join(f"{time:+.1%}" for time in times) + " |")
    extra = filter_groups(0.55)
    times = [share * (extra - 1) for share in shares] + [0.54 * 0.7 * (extra - 1)]
    cells = " | ".join(f"{time:+.1%}" for time in times)
    lines.append(f"| DAPO filter, .55 informative | {512 * extra:.0f} | {cells} |")
    return "\n".join(lines)


def check_study(path: Path) -> str:
    """Measured seconds per step of a study against the model's, from GRPO's own share of generation."""
    runs = defaultdict(lambda: defaultdict(list))
    for line in path.read_text(encoding="utf-8").splitlines():
        run = json.loads(line)
        runs[run["task"]][run["method"]].append(run)
    lines = ["| task | method | groups per step / B | step, measured | step, model | share of GRPO |", "|---" * 6 + "|"]
    for task, methods in runs.items():
        if "grpo" not in methods:
            continue
        seconds = {name: np.median([_mean(run, "seconds") for run in group]) for name, group in methods.items()}
        share = np.median([_mean(run, "seconds_gen") / _mean(run, "seconds") for run in methods["grpo"]])
        for method, group in methods.items():
            used = np.median([_mean(run, "generated_groups") / run["batch"] for run in group])
            model = 1 + share * (used - 1)
            measured = seconds[method] / seconds["grpo"]
            lines.append(f"| {task} | {method} | {used:.2f} | {measured:.2f} | {model:.2f} | {share:.2f} |")
    return "\n".join(lines)


def _mean(run: dict, name: str) -> float:
    """Mean over the steps, without the first, which warms up."""
    return float(np.mean(run["per_step"][name][1:]))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, help="of a GRPO step that generates; with it, one setting is computed")
    parser.add_argument("--batch", type=int, default=512, help="groups per step (default: %(default)s)")
    parser.add_argument("--fresh", type=float, default=0.5, help="generated share of the batch (default: %(default)s)")
    parser.add_argument("--reference", type=int, default=0, metavar="K", help="reference groups at each refresh (0: window)")
    parser.add_argument("--refresh-every", type=int, default=2, metavar="STEPS", help="default: %(default)s")
    parser.add_argument("--tail", type=float, default=0.0, help="part of generation that does not shrink (default: 0)")
    parser.add_argument("--study", type=Path, help="check against study_runs.jsonl")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.study:
        print(check_study(args.study))
    elif args.share is not None:
        setting = Setting(
            share=args.share, batch=args.batch, fresh_fraction=args.fresh, reference=args.reference,
            refresh_every=args.refresh_every, tail=args.tail,
        )  # fmt: skip
        print(f"{groups_per_step(setting):.0f} groups per step, time {step_time(setting) - 1:+.1%}")
    else:
        print(tables())


if __name__ == "__main__":
    run_cli(main)
