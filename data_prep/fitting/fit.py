"""Split, train, and judge on what was held out.

Shapes: N labelled questions, P policies, D dimensions, S side features.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from fitting.figure import draw
from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.evaluation import TrialSettings, evaluate, shifted
from verl_dots.difficulty.pass_rates import PassRates
from verl_dots.difficulty.trained import TrainedPredictor
from verl_dots.difficulty.training import FitSettings, fit

VALIDATION = 0.1
"""Share of the training questions that decides when to stop."""
SHIFTS = (-2.0, 0.0, 2.0)
REPEATS = 5


@dataclass(frozen=True)
class Judged:
    """What fit_predictor.py writes."""

    members: list[AttentionModel]
    held_out: np.ndarray  # question numbers
    report: dict[str, Any]
    figure: Figure


def fit_and_judge(
    args: argparse.Namespace, vectors: np.ndarray, side: np.ndarray, side_names: tuple[str, ...], rates: PassRates
) -> Judged:
    """Train on vectors (N, D) and side features (N, S); deterministic for one seed and thread count.

    Raises:
        ValueError: too few questions are labelled.
    """
    if args.threads:
        torch.set_num_threads(args.threads)
    train, validation, held_out = split(len(rates.question_ids), args.holdout_questions, args.seed)
    if min(len(train), len(validation), len(held_out)) < 2 or len(train) <= args.reference_size:
        raise ValueError(
            f"{len(rates.question_ids)} labelled questions are too few for --reference-size {args.reference_size} and "
            f"--holdout-questions {args.holdout_questions:g}: label more questions or lower these"
        )
    seen = np.array([policy not in args.holdout_policies for policy in rates.policies])
    trained_on = PassRates(
        rates.question_ids, tuple(np.array(rates.policies)[seen]), rates.successes[seen], rates.trials[seen]
    )
    model_settings = AttentionSettings(vectors.shape[1], side_names, args.width, args.layers, args.dropout)
    settings = FitSettings(
        epochs=args.epochs,
        batch=args.batch_size,
        reference=args.reference_size,
        rollouts=args.rollouts,
        learning_rate=args.learning_rate,
        weight_decay=args.weight_decay,
        shift=args.shift,
        patience=args.patience,
        seed=args.seed,
    )
    columns = (TextColumn("fit"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns) as progress:
        results = []
        for number in range(args.members):
            task = progress.add_task("", total=args.epochs)

            def on_epoch(record: dict[str, float], task: TaskID = task) -> None:
                text = f"loss {record['loss']:.4f}  validation Pearson {record['pearson']:.3f}"
                progress.update(task, advance=1, description=text)

            seeded = replace(settings, seed=args.seed + number)
            results.append(fit(vectors, side, trained_on, train, validation, model_settings, seeded, on_epoch))
            progress.update(task, total=len(results[-1].history))
    members = [result.model for result in results]
    rows, scatter = judge(args, members, vectors[held_out], side[held_out], rates.take(held_out))
    report = {
        "questions": {"train": len(train), "validation": len(validation), "held_out": len(held_out)},
        "held_out_policies": list(args.holdout_policies),
        "settings": {**vars(settings)},
        "best_epochs": [result.best_epoch for result in results],
        "history": [result.history for result in results],
        "held_out": rows,
    }
    return Judged(members, held_out, report, draw(scatter, results[0].history))


def split(count: int, share: float, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Question numbers to train on, to stop by, and to judge by."""
    order = np.random.default_rng(seed).permutation(count)
    held = int(round(share * count))
    validation = max(1, int(VALIDATION * (count - held)))
    return np.sort(order[held + validation :]), np.sort(order[held : held + validation]), np.sort(order[:held])


def judge(
    args: argparse.Namespace, members: list[AttentionModel], vectors: np.ndarray, side: np.ndarray, rates: PassRates
) -> tuple[list[dict[str, Any]], tuple[np.ndarray, np.ndarray]]:
    """Quality on the held-out questions under every policy and its shifts; predictions and truth for the figure."""
    rows, scatter = [], (np.zeros(0), np.zeros(0))
    logits, failure = rates.failure_logits(), rates.failure_rates()
    for number, policy in enumerate(rates.policies):
        asked = np.flatnonzero(rates.trials[number] > 0)
        size = min(args.reference_size, len(asked) // 2)
        if size < 2:
            continue
        predictor = TrainedPredictor(members, vectors[asked], side[asked])
        for shift in SHIFTS:
            truth = failure[number, asked] if shift == 0 else shifted(logits[number, asked], shift)
            quality = evaluate(predictor, truth, TrialSettings(size, args.rollouts, REPEATS, seed=args.seed))
            rows.append(
                {
                    "questions": f"{len(asked)} held out",
                    "policy": f"{policy} (held out)" if policy in args.holdout_policies else policy,
                    "shift": shift,
                    "pearson": quality["pearson_mean"],
                    "spearman": quality["spearman_mean"],
                    "calibration_error": quality["calibration_error"],
                }
            )
            if shift == 0 and not len(scatter[0]):
                scatter = _scatter(predictor, truth, size, args)
    return rows, scatter


def _scatter(predictor: TrainedPredictor, truth: np.ndarray, size: int, args: argparse.Namespace):
    generator = np.random.default_rng(args.seed)
    reference = generator.choice(len(truth), size, replace=False)
    successes = generator.binomial(args.rollouts, 1 - truth[reference]).astype(float)
    prediction = predictor.predict(reference, successes, np.full(size, float(args.rollouts)), np.zeros(size))
    others = np.setdiff1d(np.arange(len(truth)), reference)
    return prediction.difficulty[others], truth[others]
