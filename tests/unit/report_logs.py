"""Synthetic runs of realistic shape, written as verl, verl-dots, wandb and TensorBoard write them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np

from verl_dots.difficulty.observations import QuestionLog
from verl_dots.types import Observation

ROWS, PROMPT, RESPONSE = 128, 15.0, 10.0


def plain_steps(steps: int, *, accuracy=None, every: int = 10, seconds: float = 4.0) -> list[dict]:
    """What verl's own GRPO logs: one dict per step, step 0 with the first validation."""
    lines = [{"step": 0, **validation(accuracy, 0)}] if accuracy else []
    for step in range(1, steps + 1):
        line = {
            "step": step,
            "critic/score/mean": 0.5,
            "response_length/mean": RESPONSE,
            "prompt_length/mean": PROMPT,
            "perf/total_num_tokens": ROWS * (PROMPT + RESPONSE),
            "timing_s/gen": 0.5 * seconds,
            "timing_s/old_log_prob": 0.1 * seconds,
            "timing_s/update_actor": 0.3 * seconds,
            "timing_s/step": seconds,
            "actor/grad_norm": 1.0,  # not used by a report
        }
        if accuracy and step % every == 0:
            line |= {**validation(accuracy, step), "timing_s/testing": 2.0}
        lines.append(line)
    return lines


def validation(accuracy, step: int) -> dict:
    return {"val-core/arithmetic/acc/mean@4": accuracy(step), "val-core/arithmetic/acc/best@4/mean": 1.0}


def dots_steps(steps: int, **options) -> list[dict]:
    """What DotsTrainer logs: half of the rollouts generated, the rest replayed."""
    lines = plain_steps(steps, **options)
    for line in lines:
        if line["step"]:
            shares = {"dots/observed_0": 0.1, "dots/observed_low": 0.2, "dots/observed_mid": 0.4}
            line |= shares | {"dots/observed_high": 0.2, "dots/observed_1": 0.1}
            line |= {"dots/generated_tokens": ROWS / 2 * RESPONSE, "dots/informative_share": 0.8}
            line |= {"dots/trained_informative_share": 1.0, "dots/refresh_seconds": 0.01}
            line |= {"replay/size": 8.0 * line["step"], "replay/drawn": 8.0, "replay/filled": 1.0, "replay/age_mean": 3.0}
            line |= {"replay/weight_max": 1.5, "replay/truncated_share": 0.0, "replay/effective_sample_size": 0.97}
            if line["step"] > 4:
                line |= {"dots/pearson": 0.6, "dots/calibration_error": 0.05}
    return lines


def write_flat(path: Path, lines: list[dict]) -> Path:
    """Ours: `metrics.jsonl`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_nested(path: Path, lines: list[dict]) -> Path:
    """verl's file logger."""
    nested = [{"step": line["step"], "data": {name: v for name, v in line.items() if name != "step"}} for line in lines]
    return write_flat(path, nested)


def write_wandb_history(path: Path, lines: list[dict]) -> Path:
    """`run.history().to_csv()`: a number in the first column, empty cells where a metric was not logged."""
    names = sorted({name for line in lines for name in line} - {"step"})
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["", "_step", "_runtime", *names])
        for number, line in enumerate(lines):
            writer.writerow([number, line["step"], 5.0 * line["step"], *(line.get(name, "") for name in names)])
    return path


def write_wandb_panel(path: Path, metric: str, runs: dict[str, list[dict]]) -> Path:
    """A panel's CSV from wandb's page: one column per run, with the extremes of its smoothing."""
    steps = sorted({line["step"] for lines in runs.values() for line in lines if metric in line})
    by_run = {name: {line["step"]: line.get(metric, "") for line in lines} for name, lines in runs.items()}
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, quoting=csv.QUOTE_ALL)
        writer.writerow(["Step", *(f"{run} - {metric}{end}" for run in runs for end in ("", "__MIN", "__MAX"))])
        for step in steps:
            writer.writerow([step, *(by_run[run].get(step, "") for run in runs for _ in range(3))])
    return path


def write_tensorboard(folder: Path, lines: list[dict]) -> Path:
    """As verl's adapter does (verl/utils/tracking.py)."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder))
    for line in lines:
        for name, value in line.items():
            if name != "step":
                writer.add_scalar(name, value, line["step"])
    writer.close()
    return folder


def write_questions(folder: Path, steps: int, *, groups: int = 8, pool: int = 40, noise: float = 0.1, seed: int = 0) -> Path:
    """A question log through the class that writes it in a run. Predictions are right up to `noise`."""
    generator = np.random.default_rng(seed)
    truth = np.linspace(0.05, 0.95, pool)
    log = QuestionLog(folder)
    for step in range(1, steps + 1):
        seen = []
        for place, question in enumerate(generator.choice(pool, size=groups, replace=False)):
            failures = generator.binomial(8, truth[question])
            predicted = float(np.clip(truth[question] + noise * generator.standard_normal(), 0, 1))
            source = "explored" if place < 2 else "selected"
            guess = None if step == 1 else predicted
            seen.append(Observation(f"{question:032x}", step, source, float(8 - failures), 8, guess))
        log.append(step, seen)
    log.flush()
    return folder
