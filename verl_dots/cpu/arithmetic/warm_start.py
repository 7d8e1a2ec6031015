"""Supervised training on noisy demonstrations: a model that gets every kind of question right, but not often."""

from collections.abc import Callable

import numpy as np
import torch
from transformers import Qwen2ForCausalLM

from verl_dots.cpu.arithmetic.model import END_ID, PAD_ID, build_model, encode, encode_questions
from verl_dots.cpu.arithmetic.settings import WarmStart
from verl_dots.cpu.arithmetic.task import ANSWER_LENGTH, QUESTION_LENGTH, Problems, draw_problems, running_values

IGNORED = -100  # label that takes no part in the loss


def demonstrations(problems: Problems, values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Training pairs: input ids (N, 15 + 13) and next-token labels of the same shape, IGNORED outside the response."""
    size = len(problems)
    ids = np.full((size, QUESTION_LENGTH + ANSWER_LENGTH + 1), PAD_ID)
    ids[:, :QUESTION_LENGTH] = encode_questions(problems.questions())
    tens, units = np.divmod(values, 10)
    digits = np.stack([units, tens], axis=2).reshape(size, ANSWER_LENGTH)  # (N, 12)
    end = 2 * problems.length[:, None]  # (N, 1) position of the end token in the response
    position = np.arange(ANSWER_LENGTH + 1)[None]
    response = np.full((size, ANSWER_LENGTH + 1), PAD_ID)
    response[:, :ANSWER_LENGTH] = encode(list("0123456789")).ravel()[digits]
    response = np.where(position < end, response, np.where(position == end, END_ID, PAD_ID))
    ids[:, QUESTION_LENGTH:] = response
    labels = np.full_like(ids, IGNORED)
    labels[:, QUESTION_LENGTH - 1 : -1] = np.where(position <= end, response, IGNORED)
    return torch.from_numpy(ids), torch.from_numpy(labels)


def warm_start(settings: WarmStart, on_step: Callable[[int, float], None] = lambda step, loss: None) -> Qwen2ForCausalLM:
    """Train a fresh model; about a minute on 2 cores at the default size. `on_step(step, loss)` follows the progress."""
    model = build_model(settings.size, settings.seed).train()
    rng = np.random.default_rng([settings.seed, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.98))
    step = 0
    for stage in settings.stages:
        for i in range(stage.steps):
            fraction = 1 - (1 - stage.decay) * i / stage.steps
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * fraction
            problems = draw_problems(stage.mix, settings.batch_size, rng)
            ids, labels = demonstrations(problems, running_values(problems, stage.slips, rng))
            logits = model(input_ids=ids).logits  # (batch, 28, V)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            step += 1
            on_step(step, loss.item())
    return model.eval()
