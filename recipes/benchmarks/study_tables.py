"""Aggregates of the study: medians and ranges over seeds, and ratios against plain GRPO of the same task.

To GRPO's final accuracy: the target is the median of GRPO's final accuracies, and what a run had spent when its accuracy
(linear between the saved models) first reached it is divided by what GRPO's whole run spends (median over seeds). A run that
never gets there counts as worse than any number; its ratio is null. Seconds are divided by those of the GRPO run of the same
seed, which ran next to it: a shared machine is not equally fast in the morning and at night. Runs of a machine on which GRPO
did not run have no seconds here.

Re-weighted seconds: on a CPU the agent loop takes most of a step, on GPUs generation takes .46 to .54 of it. A step is
charged `share * generation / GRPO's mean generation + (1 - share) * rest / GRPO's mean rest`, from measured seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from predictor_in_training import summary
from summary import crossing, spread

BASELINE = "grpo"
GPU_SHARES = (0.46, 0.54)
COSTS = ("seconds", "steps", "generated_tokens", "trained_tokens", "generated_groups")
Result = dict[str, Any]


def aggregate(results: Sequence[Result]) -> dict[str, dict[str, Any]]:
    """{task: {method: quantities}} in the form that README documents; ratios are null where GRPO is missing."""
    return {
        task: {method: _quantities(runs, methods.get(BASELINE, [])) for method, runs in methods.items()}
        for task, methods in _grouped(results).items()
    }


def _quantities(runs: Sequence[Result], baseline: Sequence[Result]) -> dict[str, Any]:
    ratios = to_baseline(runs, baseline)
    return {
        "seeds": len(runs),
        "final_accuracy": spread([run["curve"]["accuracy"][-1] for run in runs]),
        "step_seconds_ratio": _step_ratio(runs, baseline),
        "informative_share": spread([float(np.mean(run["per_step"]["trained_informative"])) for run in runs]),
        "to_baseline_accuracy": {f"{name}_ratio": ratios[name] for name in ("seconds", "steps", "generated_tokens")},
    }


def _grouped(results: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    grouped: dict[str, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        grouped[result["task"]][result["method"]].append(result)
    return grouped


def cumulative(run: Result, scale: dict[str, float] | None) -> dict[str, np.ndarray]:
    """What the run had spent after 0, 1, ... steps, by cost; `scale`: GRPO's mean seconds of generation and of the rest."""
    per_step = {name: np.array(values) for name, values in run["per_step"].items()}
    costs = {name: per_step[name] for name in COSTS if name != "steps"}
    costs["steps"] = np.ones(len(per_step["seconds"]))
    if scale is not None:
        generation = per_step["seconds_gen"] / scale["gen"]
        rest = (per_step["seconds"] - per_step["seconds_gen"]) / scale["rest"]
        costs |= {f"seconds_{share}": share * generation + (1 - share) * rest for share in GPU_SHARES}
    return {name: np.concatenate([[0.0], np.cumsum(values)]) for name, values in costs.items()}


def neighbours(run: Result, baseline: Sequence[Result]) -> Sequence[Result]:
    """GRPO's runs on the machine of `run`: that of its seed, which shared its hour; all of them where there is none."""
    here = [other for other in baseline if other["machine"].get("boot") == run["machine"].get("boot")]
    return [other for other in here if other["seed"] == run["seed"]] or here


def baseline_scale(baseline: Sequence[Result]) -> dict[str, float]:
    """Mean seconds per step of GRPO: generation, and everything else."""
    generation = [np.mean(run["per_step"]["seconds_gen"]) for run in baseline]
    total = [np.mean(run["per_step"]["seconds"]) for run in baseline]
    return {"gen": float(np.median(generation)), "rest": float(np.median(np.subtract(total, generation)))}


def to_baseline(runs: Sequence[Result], baseline: Sequence[Result]) -> dict[str, Any]:
    """Ratio of every cost at the target accuracy, as median, min and max; and `reached`, how many runs got there."""
    names = [*COSTS, *(f"seconds_{share}" for share in GPU_SHARES)]
    if not baseline:
        return {**dict.fromkeys(names), "reached": 0}
    target = spread([run["curve"]["accuracy"][-1] for run in baseline])["median"]
    ratios = defaultdict(list)
    for run in runs:
        peers = neighbours(run, baseline)
        scale = baseline_scale(peers) if peers else None
        place = crossing(run["curve"]["step"], run["curve"]["accuracy"], target)
        for name, spent in cumulative(run, scale).items():
            others = peers if name.startswith("seconds") else baseline
            if others:
                at = None if place is None else float(np.interp(place[0], np.arange(len(spent)), spent))
                whole = [cumulative(other, scale)[name][-1] for other in others]
                ratios[name].append(None if at is None else at / np.median(whole))
    reached = sum(ratio is not None for ratio in ratios["steps"])
    return {**{name: spread(ratios[name]) if ratios[name] else None for name in names}, "reached": reached}


def _step_ratio(runs: Sequence[Result], baseline: Sequence[Result]) -> dict[str, float | None] | None:
    """Mean seconds of a step, without the first, which warms up, against GRPO's. Not the median: where a reference set is
    rolled out every second step, a median would see only the steps without one."""

    def seconds(run: Result) -> float:
        return float(np.mean(run["per_step"]["seconds"][1:]))

    pairs = [(run, peers) for run in runs if (peers := neighbours(run, baseline))]
    ratios = [seconds(run) / np.median([seconds(peer) for peer in peers]) for run, peers in pairs]
    return spread(ratios) if ratios else None


# ---------------------------------------------------------------------------------------------------------- markdown

HEADER = (
    "| method | seeds | final accuracy | informative: trained (fresh) | steps | generated tokens | trained tokens | groups "
    "| seconds, measured | seconds at .46 / .54 rollout | seconds per step | reached |\n" + "|---" * 12 + "|"
)


def show(results: Sequence[Result]) -> str:
    """Markdown: one table for each task; columns from `steps` on are ratios at GRPO's final accuracy."""
    parts = []
    for task, methods in _grouped(results).items():
        baseline = methods.get(BASELINE, [])
        lines = [f"### {task}", "", HEADER, *(_line(method, runs, baseline) for method, runs in methods.items())]
        lines += ["", *_curves(methods), ""]
        phases = "; ".join(map(_phases, methods, methods.values()))
        lines += [f"Mean seconds of a step by phase, median of the seeds: {phases}."]
        parts.append("\n".join([*lines, *_estimates(methods)]))
    return "\n\n".join(parts)


def _curves(methods: dict[str, list[Result]]) -> list[str]:
    """Accuracy against steps and against generated tokens, medians over seeds."""
    steps = max(run["curve"]["step"][-1] for runs in methods.values() for run in runs)
    marks = [round(steps * third / 3) for third in (1, 2, 3)]
    baseline = methods.get(BASELINE, [])
    whole = float(np.median([sum(run["per_step"]["generated_tokens"]) for run in baseline])) if baseline else None
    header = f"| method | groups generated a step | accuracy at step {', '.join(map(str, marks))} "
    lines = [header + "| after .2, .4, all of GRPO's generated tokens |", "|---" * 4 + "|"]
    for method, runs in methods.items():
        groups = np.median([np.mean(run["per_step"]["generated_groups"]) for run in runs])
        at_steps = [accuracy_at(runs, "steps", mark) for mark in marks]
        at_tokens = [accuracy_at(runs, "generated_tokens", whole * share) for share in (0.2, 0.4, 1)] if whole else []
        cells = (", ".join("-" if value is None else f"{value:.3f}" for value in values) for values in (at_steps, at_tokens))
        lines.append(f"| {method} | {groups:.1f} | {' | '.join(cells)} |")
    return lines


def accuracy_at(runs: Sequence[Result], cost: str, spent: float) -> float | None:
    """Median accuracy (linear between the saved models) when `spent` of a cost was spent; None: a run ended before."""
    values = []
    for run in runs:
        at = np.interp(run["curve"]["step"], np.arange(len(run["per_step"]["seconds"]) + 1), cumulative(run, None)[cost])
        if spent > at[-1] * 1.02:  # GRPO's own whole is a median of seeds
            return None
        values.append(float(np.interp(spent, at, run["curve"]["accuracy"])))
    return float(np.median(values))


def _estimates(methods: dict[str, list[Result]]) -> list[str]:
    """How well the difficulty was known: means over the saved models of a run, the median of the runs."""
    cells = []
    for method, runs in methods.items():
        known = [summary(run["estimate"]) for run in runs if any("pearson" in row for row in run.get("estimate", []))]
        if known:
            early, whole = (np.median([one[name] for one in known]) for name in ("pearson_early", "pearson_mean"))
            cells.append(f"{method} {early:.2f}, {whole:.2f}")
    return ["", f"Pearson of estimated and true difficulty, first 20 steps and all: {'; '.join(cells)}."] if cells else []


def _line(method: str, runs: Sequence[Result], baseline: Sequence[Result]) -> str:
    quantities, ratios = _quantities(runs, baseline), to_baseline(runs, baseline)
    fresh = np.median([np.mean(run["per_step"]["fresh_informative"]) for run in runs])
    cells = [method, str(len(runs)), _cell(quantities["final_accuracy"], ".3f")]
    cells.append(f"{quantities['informative_share']['median']:.2f} ({fresh:.2f})")
    cells += [_cell(ratios[name]) for name in ("steps", "generated_tokens", "trained_tokens", "generated_groups", "seconds")]
    cells.append(" / ".join(_number(ratios[f"seconds_{share}"]) for share in GPU_SHARES))
    cells += [_cell(quantities["step_seconds_ratio"]), f"{ratios['reached']}/{len(runs)}"]
    return "| " + " | ".join(cells) + " |"


def _phases(method: str, runs: Sequence[Result]) -> str:
    names = ("gen", "old_log_prob", "update_actor")
    values = {name: np.median([np.mean(run["per_step"][f"seconds_{name}"][1:]) for run in runs]) for name in names}
    total = np.median([np.mean(run["per_step"]["seconds"][1:]) for run in runs])
    return f"{method} {total:.2f} (" + ", ".join(f"{name} {value:.2f}" for name, value in values.items()) + ")"


def _number(values: dict[str, float | None] | None) -> str:
    return "-" if values is None or values["median"] is None else format(values["median"], ".2f")


def _cell(values: dict[str, float | None] | None, form: str = ".2f") -> str:
    """`median (min to max)`, a dash for what was never reached."""
    if values is None:
        return "-"
    texts = ["-" if values[name] is None else format(values[name], form) for name in ("median", "min", "max")]
    return f"{texts[0]} ({texts[1]} to {texts[2]})"
