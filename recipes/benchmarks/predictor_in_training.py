#!/usr/bin/env python
"""How well a run's estimate knew the true difficulty, at every model that it saved.

    SAVE_FREQ=2 SEED=1 OUT=outputs/pearson/seed1 bash recipes/quickstart_cpu.sh \\
        'actor_rollout_ref.actor.checkpoint.save_contents=[hf_model]'
    python recipes/benchmarks/predictor_in_training.py --task outputs/arithmetic_x outputs/pearson/seed*

The run's question log is read up to each saved step and the estimate of the next step is made from it, by the code and the
settings of the run; a saved model gives the true success rate of every question of the pool, exactly (see
arithmetic_world.py), where sampling would add noise. Prints one JSON object a run: Pearson of the whole estimate and of the
prediction alone, the calibration error, and the standard deviation of the true difficulty.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from arithmetic_world import Questions, Task, exact_success
from omegaconf import OmegaConf
from transformers import AutoModelForCausalLM

from verl_dots.config import DotsConfig
from verl_dots.difficulty.build import build_predictor
from verl_dots.difficulty.estimate import DifficultyEstimator
from verl_dots.difficulty.labels import pearson
from verl_dots.difficulty.observations import QuestionLog, calibration_error, read_observations
from verl_dots.files import Parser, run_cli
from verl_dots.questions import DistinctQuestions


def saved_models(checkpoints: Path) -> Iterator[tuple[int, torch.nn.Module]]:
    """The models of a run in the order of their steps."""
    for step, path in sorted((int(path.name.rpartition("_")[2]), path) for path in checkpoints.glob("global_step_*")):
        huggingface = path / "actor" / "huggingface"
        yield step, AutoModelForCausalLM.from_pretrained(huggingface, attn_implementation="sdpa", dtype=torch.float32)


def estimator_of(folder: Path, questions: Questions) -> DifficultyEstimator:
    """The estimator of a run, as it was before the first step."""
    config = OmegaConf.load(folder / "hydra" / ".hydra" / "config.yaml")
    dots = DotsConfig.from_mapping(OmegaConf.to_container(config.dots, resolve=True))
    dots = dots.resolve(train_batch_size=config.data.train_batch_size)
    predictor, _ = build_predictor(
        dots.predictor, DistinctQuestions(questions.ids, questions.texts, questions.truths)
    )
    return DifficultyEstimator(predictor, questions.ids, dots)


def follow(folder: Path, task: Task) -> list[dict[str, Any]]:
    """One row per saved model of a run.

    Raises:
        ValueError: the run saved no models or kept no question log.
    """
    parts = QuestionLog(folder / "checkpoints" / "dots" / "questions").parts()
    log = [seen for part in parts for seen in read_observations(part)]
    if not log:
        raise ValueError(f"{folder} has no question log: METHOD was grpo or rr, or the run has not reached a checkpoint")
    estimator, rows = estimator_of(folder, task.train), []
    for step, model in saved_models(folder / "checkpoints"):
        done = len(estimator.log)
        estimator.observe(seen for seen in log[done:] if seen.step <= step)
        estimate = estimator.refresh(step + 1)
        truth = 1.0 - exact_success(model, task.train)
        row = {"step": step, "spread": round(float(truth.std()), 3)}
        if estimate.difficulty is not None:
            row["pearson"] = round(pearson(estimate.difficulty, truth), 3)
            row["prediction_alone"] = round(pearson(estimate.prior, truth), 3)
            row["calibration_error"] = round(calibration_error(estimate.difficulty, truth), 3)
        rows.append(row)
    if not rows:
        raise ValueError(f"{folder}/checkpoints holds no model: set SAVE_FREQ=2")
    return rows


def summary(rows: Sequence[dict[str, Any]], early: int = 20) -> dict[str, float]:
    """Means over the refreshes of the first `early` steps and of all."""
    known = [(row["step"], row["pearson"]) for row in rows if "pearson" in row]
    first = [value for step, value in known if step <= early]
    values = [value for _, value in known]
    numbers = {"pearson_early": np.mean(first), "pearson_mean": np.mean(values), "pearson_min": min(values)}
    return {name: round(float(value), 3) for name, value in numbers.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of quickstart_cpu.sh")
    parser.add_argument("--task", type=Path, default=Path("outputs/arithmetic_x"), help="of the runs (default: %(default)s)")
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    task = Task.load(args.task)
    for folder in args.runs:
        rows = follow(folder, task)
        print(json.dumps({"run": folder.name, **summary(rows), "refreshes": rows}), flush=True)


if __name__ == "__main__":
    run_cli(main)
