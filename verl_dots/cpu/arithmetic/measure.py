"""What a model can do: success rates by sampling, and embeddings of questions from its hidden states."""

from collections.abc import Callable

import numpy as np
import torch
from transformers import PreTrainedModel

from verl_dots.cpu.arithmetic.model import CHARACTERS, END_ID, PAD_ID, encode_questions
from verl_dots.cpu.arithmetic.task import ANSWER_LENGTH
from verl_dots.cpu.decoding import BatchDecoder, Request

BATCH = 512
HISTOGRAM = ("0", "(0, .25]", "(.25, .75]", "(.75, 1)", "1")


def success_rates(
    model: PreTrainedModel,
    questions: list[str],
    answers: list[str],
    samples: int,
    seed: int,
    on_batch: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Share of `samples` responses at temperature 1 that are right, for every question. # (N,) in [0, 1]"""
    decoder = BatchDecoder(model, [END_ID], PAD_ID)
    prompts = encode_questions(questions).tolist()
    expected = [[*(CHARACTERS.index(digit) + 2 for digit in answer), END_ID] for answer in answers]
    seeds = np.random.default_rng(seed).integers(2**63, size=(len(questions), samples))
    jobs = [(row, int(seeds[row, i])) for row in range(len(questions)) for i in range(samples)]
    right = np.zeros(len(questions))
    for first in range(0, len(jobs), BATCH):
        batch = jobs[first : first + BATCH]
        completions = decoder.decode([Request(tuple(prompts[row]), ANSWER_LENGTH + 1, s) for row, s in batch])
        for (row, _), completion in zip(batch, completions, strict=True):
            right[row] += completion.tokens == expected[row]
        on_batch(first + len(batch))
    return right / samples


def success_histogram(rates: np.ndarray) -> dict[str, float]:
    """Share of questions by success rate, in the bins of HISTOGRAM."""
    bins = np.select([rates == 0, rates <= 0.25, rates <= 0.75, rates < 1], [0, 1, 2, 3], 4)
    return {name: float(np.mean(bins == i)) for i, name in enumerate(HISTOGRAM)}


@torch.inference_mode()
def embed_questions(model: PreTrainedModel, questions: list[str]) -> np.ndarray:
    """The model's last hidden states, averaged over the question's tokens. # (N, width) float32"""
    ids = torch.from_numpy(encode_questions(questions))
    return (
        torch.cat([model.model(input_ids=batch).last_hidden_state.mean(dim=1) for batch in ids.split(BATCH)]).float().numpy()
    )
