"""Offline fit of the trained predictor on labelled pass rates of one or several policies.

Every batch poses the problem of the run: a policy, a reference set of K questions of which only `rollouts` outcomes are
known, a batch of other questions to predict. At run time the policy is weaker or stronger than any in the file, and grows
while it trains; so each batch's pass rates are shifted and scaled in logit space, another policy that orders the questions
alike.

Shapes: N questions, P policies, D dimensions, S side features, B batch, K reference set.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.pass_rates import PassRates


@dataclass(frozen=True)
class FitSettings:
    """How to train; the paper's values where it gives them (Adam 1e-3, batch 256, 20 epochs, warm-up, linear decay)."""

    epochs: int = 20
    batch: int = 256
    reference: int = 256
    rollouts: int = 8
    learning_rate: float = 1e-3
    weight_decay: float = 0.0
    warm_up: float = 0.1
    shift: float = 2.0
    scale: tuple[float, float] = (0.7, 1.4)
    side_dropout: float = 0.3
    patience: int = 5
    seed: int = 1


@dataclass
class FitResult:
    """The model of the best epoch, and how it got there: one dict per epoch, `loss` and validation `pearson`."""

    model: AttentionModel
    history: list[dict[str, float]] = field(default_factory=list)
    best_epoch: int = 0


def fit(
    embedding: np.ndarray,
    side: np.ndarray,
    labels: PassRates,
    train: np.ndarray,
    validation: np.ndarray,
    model_settings: AttentionSettings,
    settings: FitSettings,
    on_epoch: Callable[[dict[str, float]], None] = lambda record: None,
) -> FitResult:
    """Train on the questions `train`, keep the epoch with the best correlation on the questions `validation`.

    Args:
        embedding: (N, D) float.
        side: (N, S) float, NaN where unknown.
        labels: pass rates.
        train, validation: question numbers, disjoint.

    Deterministic for one seed and thread count. Leaves torch's global generator as it was.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = AttentionModel(model_settings)
        data = _Data(embedding, side, labels, settings)
        model.fit_inputs(data.embedding[train], data.side[train])
        return _train(model, data, train, validation, settings, on_epoch)


def _train(model, data, train, validation, settings, on_epoch) -> FitResult:
    generator = np.random.default_rng(settings.seed)
    steps = settings.epochs * math.ceil(len(train) / settings.batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    warm_up = max(1, int(settings.warm_up * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warm_up, max(0.0, (steps - step) / max(1, steps - warm_up)))
    )
    result, best, best_state = FitResult(model), -math.inf, None
    for epoch in range(1, settings.epochs + 1):
        model.train()
        losses = []
        for batch in data.batches(train, generator):
            loss = data.loss(model, batch)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
        pearson = data.validate(model, train, validation)
        record = {"epoch": epoch, "loss": float(np.mean(losses)), "pearson": pearson}
        result.history.append(record)
        on_epoch(record)
        if pearson > best:
            best, best_state, result.best_epoch = pearson, copy.deepcopy(model.state_dict()), epoch
        elif epoch - result.best_epoch >= settings.patience:
            break
    model.load_state_dict(best_state)
    model.eval()
    return result


@dataclass(frozen=True)
class _Batch:
    query: np.ndarray  # (B,) question numbers
    target: Tensor  # (B,) failure rates of the batch's policy
    reference: np.ndarray  # (K,)
    difficulty: Tensor  # (K,) what `rollouts` rollouts showed
    blind: bool = False  # side features are hidden


class _Data:
    """The training problem as tensors."""

    def __init__(self, embedding: np.ndarray, side: np.ndarray, labels: PassRates, settings: FitSettings) -> None:
        self.embedding = torch.from_numpy(np.asarray(embedding, dtype=np.float32))
        self.side = torch.from_numpy(np.asarray(side, dtype=np.float32))
        self.logits = labels.failure_logits()  # (P, N)
        self.settings = settings

    def batches(self, questions: np.ndarray, generator: np.random.Generator) -> Iterator[_Batch]:
        """One pass over the questions; each batch under a policy of its own, with a reference set of other questions."""
        order = generator.permutation(questions)
        for start in range(0, len(order), self.settings.batch):
            query = order[start : start + self.settings.batch]
            others = np.concatenate([order[:start], order[start + self.settings.batch :]])
            policy = generator.integers(len(self.logits))
            low, high = self.settings.scale
            shift = generator.uniform(-self.settings.shift, self.settings.shift)
            scale = math.exp(generator.uniform(math.log(low), math.log(high)))
            batch = self.pose(query, others, policy, shift, scale, generator)
            blind = generator.random() < self.settings.side_dropout
            if batch is not None:
                yield replace(batch, blind=blind)

    def pose(self, query, others, policy, shift, scale, generator) -> _Batch | None:
        """The prediction problem of one shifted policy; None where it answered too few of these questions."""
        logits = self.logits[policy]
        query = query[~np.isnan(logits[query])]
        others = others[~np.isnan(logits[others])]
        reference = generator.choice(others, min(self.settings.reference, len(others)), replace=False)
        if len(query) == 0 or len(reference) < 2:
            return None
        failure = 1 / (1 + np.exp(-(scale * logits + shift)))  # (N,)
        seen = generator.binomial(self.settings.rollouts, failure[reference]) / self.settings.rollouts
        return _Batch(
            query, torch.from_numpy(failure[query]).float(), reference, torch.from_numpy(seen).float()
        )

    def inputs(self, questions: np.ndarray, blind: bool = False) -> tuple[Tensor, Tensor]:
        """Embeddings and side features of some questions; `blind` hides the side features."""
        side = self.side[questions]
        return self.embedding[questions], torch.full_like(side, torch.nan) if blind else side

    def loss(self, model: AttentionModel, batch: _Batch) -> Tensor:
        """Binary cross-entropy with the failure rates as soft labels, mean over the batch."""
        query = model.project_query(*self.inputs(batch.query, batch.blind))
        reference = model.project_reference(*self.inputs(batch.reference, batch.blind))
        return F.binary_cross_entropy_with_logits(model(query, reference, batch.difficulty), batch.target)

    @torch.no_grad()
    def validate(self, model: AttentionModel, train: np.ndarray, validation: np.ndarray) -> float:
        """Mean correlation on the validation questions over shifts of every policy; the same draws every time."""
        model.eval()
        generator = np.random.default_rng(self.settings.seed + 1)
        query_all = model.project_query(*self.inputs(validation))
        place = {int(question): row for row, question in enumerate(validation)}
        found = []
        for policy in range(len(self.logits)):
            for shift in (-self.settings.shift, 0.0, self.settings.shift):
                batch = self.pose(validation, train, policy, shift, 1.0, generator)
                if batch is None:
                    continue
                reference = model.project_reference(*self.inputs(batch.reference))
                rows = [place[int(question)] for question in batch.query]
                predicted = torch.sigmoid(model(query_all[rows], reference, batch.difficulty))
                found.append(float(np.corrcoef(predicted.numpy(), batch.target.numpy())[0, 1]))
        return float(np.nanmean(found)) if found else math.nan
