"""Tables of the fast loop: medians and ranges over seeds, and what it took to reach plain GRPO's final accuracy.

Time, which a plain loop on a CPU cannot show, follows from the cost model: generation is a share of GRPO's step, .46 to .54
in the paper's runs on 8 GPUs, and costs what the generated groups cost; the rest of a step costs the same for all.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from summary import crossing, spread

COSTS = ("step", "groups", "tokens", "trained_tokens")
COLUMNS = (
    "method", "runs", "final accuracy", "points above GRPO's", "informative fresh / trained", "steps to GRPO's",
    "groups to GRPO's", "generated tokens to GRPO's", "time to GRPO's at a generation share of .46", "of .54", "reached",
)  # fmt: skip
HEADER = f"| {' | '.join(COLUMNS)} |\n" + "|---" * len(COLUMNS) + "|"
SHARES = (0.46, 0.54)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The lines of a study's file; a last line that a kill left unfinished is passed over."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return [json.loads(line) for line in lines if line.endswith("\n")]


def setting(run: dict[str, Any]) -> tuple[str, str]:
    """Pool and batch size: what runs must share to stand in one table. Tasks x_1, x_2, ... are the same pool."""
    batch = [override.partition("=")[2] for override in run["overrides"] if override.startswith("batch=")]
    return re.sub(r"_\d+$", "", run["task"]), batch[0] if batch else "16"


def to_target(run: dict[str, Any], target: float) -> dict[str, float] | None:
    """Steps, groups and tokens at which the run's accuracy first reached `target`; None: never."""
    curve = run["curve"]
    place = crossing(curve["step"], curve["accuracy"], target)
    if place is None:
        return None
    step, left, share = place
    following = min(left + 1, len(curve["step"]) - 1)
    costs = {name: curve[name][left] + share * (curve[name][following] - curve[name][left]) for name in COSTS[1:]}
    return {"step": step, **costs}


def compare(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Rows by label for the runs of one setting. Ratios are against GRPO's whole run, whose final accuracy is the target.

    The target is the median of GRPO's final accuracies on the same task; a run that never reached it has no ratio, and a
    median counts it as the worst.
    """
    by_label = defaultdict(list)
    baselines = defaultdict(list)
    for run in runs:
        by_label[run["label"]].append(run)
        if run["label"] == "grpo":
            baselines[run["task"]].append(run)
    rows = {}
    for label, group in by_label.items():
        row = {"runs": len(group)}
        for name in ("final_accuracy", "informative_share", "trained_informative_share", "groups", "tokens", "cpu_seconds"):
            row[name] = spread([run[name] for run in group])
        if all(run["task"] in baselines for run in group):
            row |= _against([(run, baselines[run["task"]]) for run in group])
        rows[label] = row
    return rows


def _against(pairs: Sequence[tuple[dict[str, Any], Sequence[dict[str, Any]]]]) -> dict[str, Any]:
    """What runs cost beside the runs of GRPO on their own tasks."""
    ratios, gains = defaultdict(list), []
    for run, baseline in pairs:
        target = spread([other["final_accuracy"] for other in baseline])["median"]
        whole = {name: spread([other["curve"][name][-1] for other in baseline])["median"] for name in COSTS}
        cost = to_target(run, target)
        gains.append(100 * (run["final_accuracy"] - target))
        for name in COSTS:
            ratios[f"{name}_ratio"].append(None if cost is None else cost[name] / whole[name])
        for share in SHARES:
            ratios[f"time_{share}_ratio"].append(None if cost is None else time(cost, whole, share))
    reached = sum(value is not None for value in ratios["step_ratio"])
    return {"reached": reached, "gain": spread(gains), **{name: spread(values) for name, values in ratios.items()}}


def time(cost: dict[str, float], reference: dict[str, float], share: float) -> float:
    """Time spent, in units of GRPO's whole run, of which generation is `share`."""
    return (1 - share) * cost["step"] / reference["step"] + share * cost["groups"] / reference["groups"]


def show(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown tables, one for each pool and batch size."""
    by_setting = defaultdict(list)
    for run in runs:
        by_setting[setting(run)].append(run)
    parts = []
    for (task, batch), group in sorted(by_setting.items()):
        lines = [f"### Pool {task}, batch {batch}", "", HEADER]
        lines += [_line(label, row) for label, row in compare(group).items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def _line(label: str, row: dict[str, Any]) -> str:
    cells = [label, row["runs"], _cell(row["final_accuracy"], ".3f"), _cell(row.get("gain"), "+.1f")]
    cells.append(f"{row['informative_share']['median']:.2f} / {row['trained_informative_share']['median']:.2f}")
    for name in ("step", "groups", "tokens", *(f"time_{share}" for share in SHARES)):
        cells.append(_cell(row.get(f"{name}_ratio"), ".2f"))
    cells.append(f"{row['reached']}/{row['runs']}" if "reached" in row else "")
    return "| " + " | ".join(map(str, cells)) + " |"


def _cell(values: dict[str, float | None] | None, form: str) -> str:
    """`median (min to max)`; a dash for what was never reached."""
    if values is None:
        return ""
    texts = ["-" if values[name] is None else format(values[name], form) for name in ("median", "min", "max")]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
