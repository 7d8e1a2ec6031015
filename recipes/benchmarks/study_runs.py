"""A finished verl run -> its numbers: accuracy of the saved models, and per step seconds by phase, tokens and groups."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from arithmetic_world import Task, exact_success
from predictor_in_training import follow, saved_models

from verl_dots.runlog import read_metrics

PHASES = ("gen", "old_log_prob", "adv", "update_actor", "update_weights")
APART = ("save_checkpoint", "testing", "dump_rollout_generations")
"""Phases that training for real would not have at this rate; taken out of a step's seconds where verl counts them in."""


def read_run(folder: Path, task_folder: Path, batch: int, steps: int) -> dict[str, Any]:
    """Curve of accuracy, and a list of one number per step for every cost.

    Raises:
        ValueError: the run has fewer steps than it should.
    """
    metrics = {line["step"]: line for line in read_metrics(folder / "metrics.jsonl")}
    missing = [step for step in range(1, steps + 1) if step not in metrics]
    if missing:
        raise ValueError(f"{folder}/metrics.jsonl lacks step {missing[0]} of {steps}: the run did not finish")
    per_step = defaultdict(list)
    for step in range(1, steps + 1):
        for name, value in step_numbers(metrics[step], batch, rollout_rows(folder / "rollouts", step)).items():
            per_step[name].append(value)
    curve = accuracy_curve(folder / "checkpoints", task_folder)
    validation = {step: accuracy for step in (0, steps) if (accuracy := verl_validation(metrics.get(step, {}))) is not None}
    pearson = [(step, line["dots/pearson"]) for step, line in metrics.items() if line.get("dots/pearson") is not None]
    selected = (folder / "checkpoints" / "dots" / "questions").is_dir()
    estimate = follow(folder, Task.load(task_folder)) if selected else []
    return {
        "curve": curve,
        "per_step": dict(per_step),
        "verl_validation": validation,
        "pearson": pearson,
        "estimate": estimate,
    }


def step_numbers(line: dict[str, Any], batch: int, rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Costs of one step.

    Runs of `DotsTrainer` count their own tokens and groups. For verl's own trainer they follow from the rows it trained on;
    the groups its filter evicted or discarded are charged with the mean length of the kept ones, which is an estimate.
    """
    seconds = {name: line.get(f"timing_s/{name}", 0.0) for name in (*PHASES, *APART)}
    total = line["timing_s/step"] - seconds["save_checkpoint"] - seconds["dump_rollout_generations"]
    groups = defaultdict(set)
    count = 0
    for row in rows:
        groups[row["uid"].split("_")[0]].add(row["score"])
        count += 1
    trained_tokens = line["response_length/mean"] * count
    numbers = {"seconds": total, **{f"seconds_{name}": seconds[name] for name in PHASES}, "trained_tokens": trained_tokens}
    numbers["trained_informative"] = sum(len(scores) > 1 for scores in groups.values()) / max(1, len(groups))
    if "dots/generated_tokens" in line:
        numbers["generated_tokens"] = line["dots/generated_tokens"]
        numbers["generated_groups"] = line["dots/generated_groups"]
        numbers["fresh_informative"] = line["dots/informative_share"]
        return numbers
    evicted = line.get("training/filter_groups/evicted_samples", 0)
    lost = evicted + line.get("training/filter_groups/discarded_surplus_samples", 0)
    numbers["generated_groups"] = len(groups) + lost
    numbers["generated_tokens"] = trained_tokens * (1 + lost / max(1, len(groups)))
    numbers["fresh_informative"] = numbers["trained_informative"] * len(groups) / max(1, len(groups) + evicted)
    return numbers


def rollout_rows(folder: Path, step: int) -> list[dict[str, Any]]:
    """Rows that verl dumped for a step."""
    path = folder / f"{step}.jsonl"
    if not path.exists():
        raise ValueError(f"{path} is missing: the run was started without trainer.rollout_data_dir")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def accuracy_curve(checkpoints: Path, task_folder: Path) -> dict[str, list[float]]:
    """Expected accuracy at temperature 1 of the starting model and of every saved one, exact."""
    task = Task.load(task_folder)
    torch.set_num_threads(1)
    curve = {"step": [0], "accuracy": [float(exact_success(task.model(), task.val).mean())]}
    for step, model in saved_models(checkpoints):
        curve["step"].append(step)
        curve["accuracy"].append(round(float(exact_success(model, task.val).mean()), 4))
    return curve


def verl_validation(line: dict[str, Any]) -> float | None:
    """verl's own validation accuracy in a line of metrics."""
    values = [value for name, value in line.items() if re.match(r"val-core/.*/mean@\d+$", name)]
    return sum(values) / len(values) if values else None
