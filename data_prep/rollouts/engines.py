"""A model that writes responses. vLLM where it is installed, transformers otherwise: the same sampling, other speed."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from common.tokens import load_tokenizer

from verl_dots.files import one_line

ENGINES = ("auto", "vllm", "transformers")


def chosen_engine(name: str) -> str:
    """The engine meant by ``name``: ``auto`` is vLLM if it is installed.

    Raises:
        ValueError: vLLM is asked for and not installed.
    """
    installed = importlib.util.find_spec("vllm") is not None
    if name == "vllm" and not installed:
        raise ValueError("--engine vllm: vLLM is not installed here; install it, or use --engine transformers")
    return name if name != "auto" else ("vllm" if installed else "transformers")


@dataclass(frozen=True)
class Sampling:
    """How responses are sampled: no top-k, no penalties, whatever the model's own generation config says."""

    rollouts: int  # per question, >= 1
    temperature: float  # 0 is greedy
    top_p: float  # (0, 1]
    max_tokens: int  # per response, >= 1


@dataclass(frozen=True)
class Response:
    """One response: its text without special tokens, as verl's reward loop sees it, and its length with the end token."""

    text: str
    tokens: int


class Engine(Protocol):
    """``generate`` gives ``sampling.rollouts`` responses for each prompt."""

    def generate(self, prompts: Sequence[list[int]], seed: int) -> list[list[Response]]: ...  # (prompts, rollouts)


def check_lengths(model: str, prompts: Sequence[list[int]], sampling: Sampling) -> None:
    """Refuse prompts that leave no room for a whole response.

    Raises:
        ValueError: the longest prompt and response together are longer than the model's positions.
    """
    from transformers import AutoConfig

    positions = getattr(AutoConfig.from_pretrained(model, trust_remote_code=False), "max_position_embeddings", None)
    longest = max(map(len, prompts))
    if positions and longest + sampling.max_tokens > positions:
        raise ValueError(
            f"the longest prompt has {longest} tokens, with --max-tokens {sampling.max_tokens} more than the model's "
            f"{positions} positions: lower --max-tokens, or build the questions with --filter-overlong"
        )


def load_engine(name: str, model: str, sampling: Sampling, **options: Any) -> Engine:
    """The engine called ``name`` (:func:`chosen_engine`) with the model in it.

    Raises:
        ValueError: the model cannot be loaded.
    """
    kind = {"vllm": VllmEngine, "transformers": TransformersEngine}[name]
    try:
        return kind(model, sampling, **options)
    except OSError as error:
        raise ValueError(f"model {model!r} cannot be loaded ({one_line(error)[:300]})") from error


class VllmEngine:
    """vLLM's offline engine. It batches by itself, so ``batch_size`` does not matter."""

    def __init__(self, model: str, sampling: Sampling, *, tensor_parallel: int, dtype: str, **_: Any) -> None:
        import vllm

        self._vllm = vllm
        self._sampling = sampling
        self._model = vllm.LLM(model=model, tensor_parallel_size=tensor_parallel, dtype=dtype, generation_config="vllm")

    def generate(self, prompts: Sequence[list[int]], seed: int) -> list[list[Response]]:
        parameters = [
            self._vllm.SamplingParams(
                n=self._sampling.rollouts,
                temperature=self._sampling.temperature,
                top_p=self._sampling.top_p,
                max_tokens=self._sampling.max_tokens,
                seed=seed + position * self._sampling.rollouts,  # vLLM counts up from it within a request
            )
            for position in range(len(prompts))
        ]
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._model.generate(requests, parameters, use_tqdm=False)
        return [[Response(each.text, len(each.token_ids)) for each in output.outputs] for output in outputs]


class TransformersEngine:
    """``model.generate`` of transformers, on a GPU if there is one."""

    def __init__(self, model: str, sampling: Sampling, *, batch_size: int, dtype: str, **_: Any) -> None:
        import torch
        from transformers import AutoModelForCausalLM, GenerationConfig

        self._tokenizer = load_tokenizer(model)
        self._sampling = sampling
        self._prompts_at_once = max(1, batch_size // sampling.rollouts)
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype, trust_remote_code=False)
        self._model = loaded.to(self._device).eval()
        own = loaded.generation_config
        self._ends = own.eos_token_id if own.eos_token_id is not None else self._tokenizer.eos_token_id
        self._pad = self._tokenizer.pad_token_id
        if self._pad is None:
            self._pad = self._tokenizer.eos_token_id
        greedy = sampling.temperature == 0
        # In place of the model's own: it may hold penalties and a top-k, which verl's rollouts do not use.
        loaded.generation_config = GenerationConfig(
            do_sample=not greedy,
            temperature=None if greedy else sampling.temperature,
            top_p=None if greedy else sampling.top_p,
            top_k=None if greedy else 0,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=self._ends,
            pad_token_id=self._pad,
        )

    def generate(self, prompts: Sequence[list[int]], seed: int) -> list[list[Response]]:
        import torch

        responses: list[list[Response]] = []
        # generate() draws from torch's global generators: seeded in here, and as before after it.
        with torch.random.fork_rng(), torch.inference_mode():
            torch.manual_seed(seed)
            for start in range(0, len(prompts), self._prompts_at_once):
                responses += self._batch(prompts[start : start + self._prompts_at_once])
        return responses

    def _batch(self, prompts: Sequence[list[int]]) -> list[list[Response]]:
        import torch

        width = max(map(len, prompts))
        count = 1 if self._sampling.temperature == 0 else self._sampling.rollouts
        ids = torch.full((len(prompts), width), self._pad)  # (B, S), padded on the left
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        written = self._model.generate(
            input_ids=ids.to(self._device), attention_mask=mask.to(self._device), num_return_sequences=count
        )[:, width:].tolist()  # (B * count, T)
        responses = [self._response(tokens) for tokens in written]
        groups = [responses[start : start + count] for start in range(0, len(responses), count)]
        return [group * (self._sampling.rollouts // count) for group in groups]  # greedy responses are all alike

    def _response(self, tokens: list[int]) -> Response:
        ends = self._ends if isinstance(self._ends, list) else [self._ends]
        length = next((position + 1 for position, token in enumerate(tokens) if token in ends), len(tokens))
        return Response(self._tokenizer.decode(tokens[:length], skip_special_tokens=True), length)
