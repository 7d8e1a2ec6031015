"""The pool of questions of a run: who they are, how hard they look, which come next; and the start-up banner."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from torchdata.stateful_dataloader import StatefulDataLoader
from verl.utils.dataset.rl_dataset import collate_fn

import verl_dots
from verl_dots.config import DotsConfig
from verl_dots.difficulty.build import build_predictor
from verl_dots.difficulty.estimate import DifficultyEstimator
from verl_dots.difficulty.observations import QuestionLog
from verl_dots.integration import check, check_data, rows
from verl_dots.questions import Questions
from verl_dots.replay import RolloutReplay
from verl_dots.sampler import DifficultySampler
from verl_dots.selection import selection_entropy, selection_probabilities
from verl_dots.types import Draw, Observation

logger = logging.getLogger(__name__)


class RequestedLoader(StatefulDataLoader):
    """verl's dataloader without a state of its own: the sampler's is in our part of the checkpoint.

    verl saves and loads this one as `data.pt`. Empty, a run that goes on without selection, or with verl's own trainer,
    takes it for "from the beginning"; the state of another kind of sampler would end it with a KeyError.
    """

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Nothing to restore, whichever sampler wrote it."""


class Pool:
    """Sampler and difficulty estimator over the questions of a loaded verl data set.

    Attributes:
        sampler: decides which questions come next.
        estimator: what we believe about each question; its log holds every observation of the run.
        difficulty: last estimate, failure rates in [0, 1] in the order of `sampler.pool`; None before the first.
        predictor_name, row_count: for the banner.
    """

    def __init__(
        self,
        config: DotsConfig,
        sampler: DifficultySampler,
        estimator: DifficultyEstimator,
        question_log: QuestionLog,
        predictor_name: str,
        reward_function: str,
        row_count: int,
    ) -> None:
        self.config, self.sampler, self.estimator, self.question_log = config, sampler, estimator, question_log
        self.predictor_name, self.reward_function, self.row_count = predictor_name, reward_function, row_count
        self.difficulty: np.ndarray | None = None
        self._position = {question: i for i, question in enumerate(sampler.pool)}

    @classmethod
    def build(cls, dataset, config: DictConfig, dots: DotsConfig, folder: Path) -> Pool:
        """Identify the questions, find their vectors, and set up predictor and sampler.

        Args:
            dataset: verl's training data set, after its length filter.
            config: verl's configuration (for the name of the prompt column).
            dots: the checked `dots` block.
            folder: where the question log goes.

        Raises:
            ValueError: embeddings lack a question, or do not fit the predictor's checkpoint; rows that count as one
                question differ in more than their ground truth; rewards cannot lie in `dots.reward_range`.
        """
        questions = identify(dataset, config)
        check_data.check_default_rewards(config, dots, questions.sources)
        if conflicts := questions.conflicts:
            first = next(iter(conflicts))
            logger.warning(
                "dots: %d question ids have different ground truths (first %s): their rows share one question's evidence",
                len(conflicts), first,
            )  # fmt: skip
        selection = dots.selection
        sampler = DifficultySampler(
            questions.ids,
            target=selection.target,
            temperature=selection.temperature,
            refresh_every=selection.refresh_every,
            explore_fraction=selection.explore_fraction,
            seed=dots.seed,
        )
        predictor, name = build_predictor(dots.predictor, questions.distinct())
        estimator = DifficultyEstimator(predictor, sampler.pool, dots)
        custom = OmegaConf.select(config, "reward.custom_reward_function.path")
        reward_function = custom or "verl's default for the data source"
        return cls(dots, sampler, estimator, QuestionLog(folder), name, reward_function, len(questions.ids))

    def dataloader(self, dataset) -> RequestedLoader:
        """verl's dataloader, drawing what the sampler was asked for (workers would prefetch, so there are none)."""
        return RequestedLoader(
            dataset=dataset, batch_sampler=self.sampler.batches, num_workers=0, collate_fn=collate_fn
        )

    def refresh(self, step: int, expected: int) -> dict[str, float]:
        """Predict anew before `step` and start a new order for the `expected` draws until the next refresh."""
        start = time.monotonic()
        estimate = self.estimator.refresh(step)
        self._warn_of_constant_labels()
        self.difficulty = estimate.difficulty
        self.sampler.refresh(estimate.difficulty, expected)
        entropy = 1.0
        if estimate.difficulty is not None:
            selection = self.config.selection
            probabilities = selection_probabilities(estimate.difficulty, selection.target, selection.temperature)
            entropy = selection_entropy(probabilities)
        seconds = time.monotonic() - start
        return {**estimate.metrics, "dots/selection_entropy": entropy, "dots/refresh_seconds": seconds}

    def _warn_of_constant_labels(self) -> None:
        """All labels 0, or all 1: most often a reward function that does not parse the answers."""
        labels = {seen.difficulty for seen in self.estimator.reference_set()}
        if len(labels) == 1 and labels <= {0.0, 1.0}:
            logger.warning(
                "dots: every labelled question has success rate %g, so nothing can be predicted and no group teaches: check "
                "the reward function (%s)",
                1.0 - labels.pop(), self.reward_function,
            )  # fmt: skip

    def predictions(self, draws: Sequence[Draw]) -> list[float | None]:
        """The current estimate for the drawn questions."""
        if self.difficulty is None:
            return [None] * len(draws)
        return [float(self.difficulty[self._position[draw.question_id]]) for draw in draws]

    def observe(self, step: int, observations: Iterable[Observation]) -> None:
        """Record what groups showed, in memory and in the question log on disk."""
        observations = list(observations)
        self.estimator.observe(observations)
        self.question_log.append(step, observations)


def identify(dataset, config: DictConfig) -> Questions:
    """The rows of verl's loaded data set as questions.

    Raises:
        ValueError: rows of one question have different images or tool arguments, of which only the first would be seen.
    """
    data = config.data
    keys = ("image_key", "images"), ("video_key", "videos"), ("audio_key", "audios")
    questions = rows.identify(dataset, data.get("prompt_key", "prompt"), [data.get(*key) for key in keys])
    if merged := questions.merged:
        question, (first, other) = next(iter(merged.items()))
        raise ValueError(
            f"{len(merged)} question ids have rows with different images or tool arguments (first {question}, rows {first} "
            f"and {other} after verl's length filter): only the first row would be trained on, write another "
            "extra_info.question_id to each of these rows"
        )
    return questions


def banner(dots: DotsConfig, loss_mode: str, pool: Pool | None, replay: RolloutReplay) -> str:
    """What is active and with what, so that a plugin that is silently missing cannot pass unnoticed."""
    lines = [f"verl-dots {verl_dots.__version__}"]
    if pool is None:
        lines.append("  DOTS  off: verl's own sampler")
    else:
        s, r = dots.selection, dots.reference
        repeated = f"{pool.row_count:,} rows, " if pool.row_count != len(pool.sampler.pool) else ""
        lines.append(
            f"  DOTS  active: {repeated}{len(pool.sampler.pool):,} questions, target difficulty {s.target}, temperature "
            f"{s.temperature}, explore {100 * s.explore_fraction:.3g}%, refresh every {s.refresh_every} steps, "
            f"reference {r.mode} of {r.size}, predictor {pool.predictor_name}"
        )
    if not dots.replay.enable:
        lines.append("  RR    off: every group is generated")
    else:
        p = dots.replay
        lines.append(
            f"  RR    active: {p.fresh_fraction:.0%} fresh, capacity {p.capacity} groups (holds {len(replay)}), "
            f"fill {p.fill}, loss {loss_mode}{_weights(dots, loss_mode)}"
        )
    return "\n".join(["", *lines, ""])


def _weights(dots: DotsConfig, loss_mode: str) -> str:
    """What bounds the weights of replayed tokens; the behaviour form has none."""
    if loss_mode == check.BEHAVIOUR:
        return ""
    if dots.replay.behaviour == "rollout":
        return ", weights of algorithm.rollout_correction"
    return ", weights not cut" if dots.replay.max_weight is None else f", weights cut at {dots.replay.max_weight}"
