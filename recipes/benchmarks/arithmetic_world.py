"""The arithmetic task trained in plain PyTorch: rollouts, exact success rates and updates for `step_loop`.

The model, the questions and the reward are those of `recipes/quickstart_cpu.sh`; the losses are `verl_dots.loss`. What
verl does around them (Ray, FSDP, TransferQueue, agent loop) is left out, which makes a run about 30 times shorter.

Two short cuts that change no result: a row whose advantage is zero has no gradient and is only counted, and accuracy at
temperature 1 is not sampled but computed: a response is right only if it is the answer, token by token, so its probability
under the model *is* the expected accuracy.

Shapes: N questions, S = 15 prompt tokens, T = 14 response tokens at most, R rows, G rollouts per question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from methods import Method
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from verl_dots.cpu.arithmetic.model import CHARACTERS, END_ID, PAD_ID, encode_questions
from verl_dots.loss import behaviour_clip_loss, decoupled_clip_loss, replay_weight
from verl_dots.types import Group

RESPONSE_LENGTH = 14
CHUNK = 512
CLIP = 0.2
GRADIENT_NORM = 1.0
"""verl's default `actor.optim.clip_grad`."""
EPSILON = 1e-6
"""Added to the standard deviation of a group, as verl does."""


@dataclass(frozen=True)
class Questions:
    """One split: `prompts` (N, S), `answers` (N, T) with the end token, padded with PAD."""

    ids: list[str]
    texts: list[str]
    truths: list[str]
    prompts: torch.Tensor
    answers: torch.Tensor

    @classmethod
    def load(cls, path: Path) -> Questions:
        frame = pd.read_parquet(path)
        texts = [info["question"] for info in frame["extra_info"]]
        truths = [model["ground_truth"] for model in frame["reward_model"]]
        answers = torch.full((len(texts), RESPONSE_LENGTH), PAD_ID)
        for row, truth in enumerate(truths):
            tokens = [*(CHARACTERS.index(digit) + 2 for digit in truth), END_ID]
            answers[row, : len(tokens)] = torch.tensor(tokens)
        ids = [info["question_id"] for info in frame["extra_info"]]
        return cls(ids, texts, truths, torch.from_numpy(encode_questions(texts)), answers)


    def rows(self, numbers: Sequence[int]) -> Questions:
        """The questions of these numbers."""
        chosen = torch.as_tensor(numbers)
        names = ([column[i] for i in numbers] for column in (self.ids, self.texts, self.truths))
        return Questions(*names, self.prompts[chosen], self.answers[chosen])


@dataclass(frozen=True)
class Task:
    """A folder written by data_prep/build_arithmetic.py."""

    folder: Path
    train: Questions
    val: Questions

    @classmethod
    def load(cls, folder: Path) -> Task:
        """Raises ValueError where the folder holds no built task."""
        if not (folder / "manifest.json").is_file():
            raise ValueError(f"{folder} holds no task: make it with data_prep/build_arithmetic.py --output {folder}")
        return cls(folder, Questions.load(folder / "train.parquet"), Questions.load(folder / "val.parquet"))

    def model(self) -> torch.nn.Module:
        """The warm-started model, float32."""
        logging.disable_progress_bar()
        return AutoModelForCausalLM.from_pretrained(self.folder / "model", attn_implementation="sdpa", dtype=torch.float32)


@dataclass(frozen=True)
class Rollouts:
    """The rows of one group: question number, tokens (G, T), log-probs of the policy that wrote them, mask, rewards (G,)."""

    question: int
    tokens: torch.Tensor
    log_probs: torch.Tensor
    mask: torch.Tensor
    rewards: torch.Tensor


def exact_success(model: torch.nn.Module, questions: Questions) -> np.ndarray:
    """Probability that a response sampled at temperature 1 is right, float64 (N,)."""
    rates = []
    for prompts, answers in zip(questions.prompts.split(CHUNK), questions.answers.split(CHUNK), strict=True):
        with torch.inference_mode():
            log_probs = response_log_probs(model, prompts, answers)
        rates.append(torch.where(answers != PAD_ID, log_probs, 0.0).double().sum(1).exp())
    return torch.cat(rates).numpy()


def response_log_probs(model: torch.nn.Module, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probs (R, T) of response tokens (R, T) after prompts (R, S). Causal, so padding at the end is harmless."""
    inputs = torch.cat([prompts, tokens[:, :-1]], dim=1)
    logits = model(input_ids=inputs, use_cache=False, logits_to_keep=tokens.shape[1]).logits
    return torch.log_softmax(logits, dim=-1).gather(-1, tokens[..., None]).squeeze(-1)


class ArithmeticWorld:
    """A `step_loop.World`: one policy in training."""

    def __init__(self, task: Task, method: Method, seed: int) -> None:
        self.task, self.method = task, method
        self.question_ids, self.texts = task.train.ids, task.train.texts
        self._model = task.model()
        self._generator = torch.Generator().manual_seed(seed)
        self._optimiser = torch.optim.Adam(self._model.parameters(), lr=method.learning_rate, betas=(0.9, 0.99))
        self._groups: dict[str, Rollouts] = {}

    def accuracy(self) -> float:
        """Expected accuracy on the validation questions at temperature 1."""
        return float(exact_success(self._model, self.task.val).mean())

    def true_difficulty(self, questions: np.ndarray) -> np.ndarray:
        """Failure rate of these training questions under the policy of now."""
        return 1 - exact_success(self._model, self.task.train.rows(questions))

    # ------------------------------------------------------------------------------------------------- rollouts

    def roll_out(self, uids: Sequence[str], questions: Sequence[int]) -> tuple[list[tuple[float, ...]], int]:
        """Generate one group for each uid; returns their rewards and the number of response tokens."""
        rollouts = self.method.rollouts
        rows = torch.tensor(questions)
        tokens, log_probs = self._sample(self.task.train.prompts[rows], rollouts)
        ends = (tokens == END_ID).int().cumsum(1)
        mask = (ends == 0) | ((ends == 1) & (tokens == END_ID))
        answers = self.task.train.answers[rows].repeat_interleave(rollouts, 0)
        rewards = (torch.where(mask, tokens, PAD_ID) == answers).all(1).float()
        parts = (part.split(rollouts) for part in (tokens, log_probs, mask, rewards))
        for uid, question, *group in zip(uids, questions, *parts, strict=True):
            self._groups[uid] = Rollouts(question, *group)
        return [tuple(self._groups[uid].rewards.tolist()) for uid in uids], int(mask.sum())

    @torch.inference_mode()
    def _sample(self, prompts: torch.Tensor, copies: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and their log-probs (R * copies, T) at temperature 1; PAD and 0 after the end token."""
        output = self._model(input_ids=prompts, use_cache=True, logits_to_keep=1)
        cache, logits = output.past_key_values, output.logits[:, -1].repeat_interleave(copies, 0)
        cache.batch_repeat_interleave(copies)
        alive = torch.arange(len(logits))
        tokens = torch.full((len(logits), RESPONSE_LENGTH), PAD_ID)
        log_probs = torch.zeros(tokens.shape)
        for place in range(RESPONSE_LENGTH):
            log_prob = torch.log_softmax(logits, dim=1)  # (alive, V)
            noise = torch.empty_like(log_prob).exponential_(generator=self._generator)
            chosen = (log_prob.exp() / noise).argmax(1)
            tokens[alive, place] = chosen
            log_probs[alive, place] = log_prob.gather(1, chosen[:, None]).squeeze(1)
            going = (chosen != END_ID).nonzero().squeeze(1)
            if place + 1 == RESPONSE_LENGTH or not len(going):
                break
            if len(going) < len(alive):
                alive, chosen = alive[going], chosen[going]
                cache.batch_select_indices(going)
            logits = self._model(input_ids=chosen[:, None], past_key_values=cache, logits_to_keep=1).logits[:, -1]
        return tokens, log_probs

    def forget(self, uids: Iterable[str]) -> None:
        """Drop the rows of groups that nobody will ask for again."""
        for uid in uids:
            self._groups.pop(uid, None)

    # ------------------------------------------------------------------------------------------------- updates

    def train(self, fresh: Sequence[Group], replayed: Sequence[Group]) -> int:
        """One step's updates on these groups, in mini-batches of whole groups. Returns the response tokens trained on."""
        groups = [self._groups[group.uid] for group in (*fresh, *replayed)]
        is_replayed = torch.arange(len(groups)) >= len(fresh)  # (groups,)
        prompts = self.task.train.prompts[[group.question for group in groups]]
        stacked = [torch.stack([getattr(g, name) for g in groups]) for name in ("tokens", "log_probs", "mask", "rewards")]
        tokens, behaviour, mask, rewards = stacked  # (groups, G, T), rewards (groups, G)
        advantages = rewards - rewards.mean(1, keepdim=True)
        if self.method.norm_by_std:
            advantages = advantages / (rewards.std(1, keepdim=True) + EPSILON)
        old, weight = behaviour.clone(), torch.ones_like(behaviour)
        if self.method.loss == "decoupled" and is_replayed.any():
            old[is_replayed] = self._log_probs(prompts[is_replayed], tokens[is_replayed])
            cap = self.method.dots.replay.max_weight
            log_cap = None if cap is None else math.log(cap)
            weight[is_replayed] = replay_weight(old[is_replayed], behaviour[is_replayed], mask[is_replayed], log_cap)
        order = torch.randperm(len(groups), generator=self._generator)
        for part in order.tensor_split(self.method.mini_batches):
            self._update(prompts[part], tokens[part], old[part], weight[part], mask[part], advantages[part])
        return int(mask.sum())

    def _log_probs(self, prompts: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """(groups, G, T) of prompts (groups, S) and tokens (groups, G, T)."""
        with torch.inference_mode():
            flat = response_log_probs(self._model, prompts.repeat_interleave(tokens.shape[1], 0), tokens.flatten(0, 1))
        return flat.clone().view(tokens.shape)

    def _update(self, prompts, tokens, old, weight, mask, advantages) -> None:
        """One optimiser step on (groups, G, T) tensors."""
        rows, length = mask.flatten(0, 1), mask.sum(-1).flatten()
        share = 1 / length.clamp(min=1) / len(length) if self.method.mean_of_rows else 1 / length.sum().expand(len(length))
        used = (advantages.flatten() != 0).nonzero().squeeze(1)
        if not len(used):
            return
        longest = int(length[used].max())
        tokens, old, weight = (part.flatten(0, 1)[used, :longest] for part in (tokens, old, weight))
        rows, share = rows[used, :longest], share[used, None]
        advantage = advantages.flatten()[used, None].expand(rows.shape)
        prompts = prompts.repeat_interleave(mask.shape[1], 0)[used]
        log_prob = response_log_probs(self._model, prompts, tokens)
        if self.method.loss == "decoupled":
            loss, _ = decoupled_clip_loss(log_prob, old, weight, advantage, rows, CLIP, CLIP)
        else:
            loss, _ = behaviour_clip_loss(log_prob, old, advantage, rows, CLIP, CLIP)
        self._optimiser.zero_grad(set_to_none=True)
        (loss * share).sum().backward()
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), GRADIENT_NORM)
        self._optimiser.step()
