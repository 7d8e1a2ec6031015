"""Batched sampling from a causal language model, with a KV cache. Needs neither verl nor Ray.

What a request gets does not depend on the requests that share its batch: every request has its own random stream, and
with a float64 model the logits of a row differ by about 1e-15 between batches, far below what sampling can notice.

Legend: B requests, S prompt length, V vocabulary.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

GREEDY_BELOW = 1e-5  # temperatures below this mean argmax, as in vLLM


@dataclass(frozen=True)
class Request:
    """One response to sample.

    Attributes:
        prompt: token ids.
        max_tokens: longest response, >= 1, end token included.
        seed: of the request's own random stream.
        temperature: >= 0; 0 is greedy.
        top_k: keep the k most probable tokens; -1 or 0 keeps all.
        top_p: keep the smallest set of tokens that holds this much probability, in (0, 1].
        stop: strings that end the response as soon as its text contains one.
        stop_token_ids: tokens that end the response, beside the model's end tokens.
        ignore_eos: the model's end tokens do not end the response.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    seed: int
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False

    def __post_init__(self):
        if not self.prompt:
            raise ValueError("empty prompt: at least one token is needed")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens {self.max_tokens} must be at least 1: shorten the prompt")
        if self.temperature < 0:
            raise ValueError(f"temperature {self.temperature} must not be negative")
        if self.top_k < -1:
            raise ValueError(f"top_k {self.top_k} must be -1 (off) or positive")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p {self.top_p} must be in (0, 1]")

    @classmethod
    def from_sampling_params(
        cls, prompt: Sequence[int], params: Mapping, *, max_tokens: int, seed: int, ignore_eos: bool = False
    ) -> "Request":
        """Read verl's sampling parameters (vLLM's names); `max_tokens`, `seed`, `ignore_eos` are the defaults.

        Raises ValueError for a parameter that would change the result and that this decoder does not know.
        """
        params = {key: value for key, value in params.items() if value is not None}
        params.pop("logprobs", None)  # always computed
        for name in ("repetition_penalty", "frequency_penalty", "presence_penalty"):
            neutral = 1.0 if name == "repetition_penalty" else 0.0
            if params.pop(name, neutral) != neutral:
                raise ValueError(f"{name} is not supported by the CPU rollout server: leave it at {neutral}")
        stop = params.pop("stop", ())
        request = cls(
            prompt=tuple(int(token) for token in prompt),
            max_tokens=int(params.pop("max_tokens", params.pop("max_new_tokens", max_tokens))),
            seed=int(params.pop("seed", seed)),
            temperature=float(params.pop("temperature", 1.0)),
            top_k=int(params.pop("top_k", -1)),
            top_p=float(params.pop("top_p", 1.0)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            stop_token_ids=frozenset(params.pop("stop_token_ids", ())),
            ignore_eos=bool(params.pop("ignore_eos", ignore_eos)),
        )
        if params:
            raise ValueError(f"sampling parameters {sorted(params)} are not supported by the CPU rollout server")
        return request

    def uniforms(self) -> np.ndarray:
        """The request's random numbers in [0, 1), one per token. # (max_tokens,)

        The prompt length is part of the stream's seed: a request that was interrupted comes back with what it has
        generated appended to its prompt, and must not draw the same numbers again.
        """
        return np.random.default_rng([self.seed, len(self.prompt)]).random(self.max_tokens)


@dataclass
class Completion:
    """`log_probs` are those of the chosen tokens under softmax(logits / temperature), before top-k and top-p: what a
    trainer recomputes. Greedy requests report temperature 1. `finished` is false for an aborted request."""

    tokens: list[int]
    log_probs: list[float]
    finished: bool


def keep_probable(probabilities: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Zero what top-k, and then top-p of the rest, leave out. Rows are not renormalised.

    Args:
        probabilities: (B, V), rows sum to 1.
        top_k: (B,) int; below 1 keeps all.
        top_p: (B,) in (0, 1].
    """
    values, order = probabilities.sort(dim=1, descending=True, stable=True)  # (B, V)
    rank = torch.arange(values.shape[1]).expand_as(values)
    kept = (top_k[:, None] < 1) | (rank < top_k[:, None])
    values = values * kept
    before = (values.cumsum(1) - values) / values.sum(1, keepdim=True)  # probability of what is more probable
    kept &= before < top_p[:, None]
    return torch.zeros_like(probabilities).scatter(1, order, values * kept)


def sample_by_inversion(probabilities: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The token at which a row's cumulative probability passes `uniform` times its total. # (B,) int64

    Each row's result depends on that row only. Tokens of probability 0 are never chosen.

    Args:
        probabilities: (B, V), not negative, rows need not sum to 1.
        uniform: (B,) in [0, 1).
    """
    cumulative = probabilities.cumsum(1)
    total = cumulative[:, -1]
    threshold = torch.minimum(uniform * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulative, threshold[:, None], right=True).squeeze(1)


class BatchDecoder:
    """Decodes many requests together.

    Args:
        model: a Hugging Face causal language model in eval mode. float64 makes results independent of batch mates.
        end_ids: the model's end tokens.
        pad_id: fills prompts on the left; masked, so any valid id does.
        detokenize: token ids -> text, needed for `stop` strings only.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        end_ids: Sequence[int],
        pad_id: int,
        detokenize: Callable[[list[int]], str] | None = None,
    ):
        self.model = model
        self.end_ids = frozenset(end_ids)
        self.pad_id = pad_id
        self.detokenize = detokenize

    @torch.inference_mode()
    def decode(self, requests: Sequence[Request], aborted: Callable[[], bool] = lambda: False) -> list[Completion]:
        """Sample a response for every request; results in the order of the requests.

        `aborted` is asked after every token; once true, unfinished requests come back with what they have.
        """
        if not requests:
            return []
        ids, mask = self._left_pad([request.prompt for request in requests])  # (B, S)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        settings = _Settings(requests)
        completions = [Completion([], [], finished=False) for _ in requests]
        cache, current = None, ids
        for step in range(settings.longest):
            output = self.model(
                input_ids=current,
                attention_mask=mask,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            tokens, log_probs = settings.choose(output.logits[:, -1].double(), step)  # (B,), (B,)
            self._append(requests, completions, tokens.tolist(), log_probs.tolist())
            if all(completion.finished for completion in completions) or aborted():
                break
            current = tokens[:, None]
            mask = torch.cat([mask, mask.new_ones(len(requests), 1)], dim=1)
            positions = positions[:, -1:] + 1
        return completions

    def _left_pad(self, prompts: list[tuple[int, ...]]) -> tuple[torch.Tensor, torch.Tensor]:
        longest = max(map(len, prompts))
        ids = torch.full((len(prompts), longest), self.pad_id)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        return ids, mask

    def _append(
        self, requests: Sequence[Request], completions: list[Completion], tokens: list[int], log_probs: list[float]
    ) -> None:
        for request, completion, token, log_prob in zip(requests, completions, tokens, log_probs, strict=True):
            if completion.finished:
                continue
            completion.tokens.append(token)
            completion.log_probs.append(log_prob)
            completion.finished = len(completion.tokens) >= request.max_tokens or self._ends(request, completion.tokens)

    def _ends(self, request: Request, tokens: list[int]) -> bool:
        if tokens[-1] in request.stop_token_ids or (tokens[-1] in self.end_ids and not request.ignore_eos):
            return True
        if not request.stop:
            return False
        assert self.detokenize is not None, "stop strings need a detokenizer"
        text = self.detokenize(tokens)
        return any(stop in text for stop in request.stop)


class _Settings:
    """The sampling settings and random numbers of a batch, as tensors."""

    def __init__(self, requests: Sequence[Request]):
        self.longest = max(request.max_tokens for request in requests)
        temperature = torch.tensor([request.temperature for request in requests], dtype=torch.float64)
        self.greedy = temperature < GREEDY_BELOW  # (B,)
        self.temperature = torch.where(self.greedy, 1.0, temperature)[:, None]  # (B, 1)
        self.top_k = torch.tensor([request.top_k for request in requests])  # (B,)
        self.top_p = torch.tensor([request.top_p for request in requests], dtype=torch.float64)  # (B,)
        self.truncates = bool((self.top_k > 0).any() or (self.top_p < 1).any())
        uniform = np.zeros((len(requests), self.longest))
        for row, request in enumerate(requests):
            uniform[row, : request.max_tokens] = request.uniforms()
        self.uniform = torch.from_numpy(uniform)  # (B, longest)

    def choose(self, logits: torch.Tensor, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and their log-probabilities from logits (B, V) float64. # (B,), (B,)"""
        log_probs = torch.log_softmax(logits / self.temperature, dim=1)  # (B, V)
        probabilities = log_probs.exp()
        if self.truncates:
            probabilities = keep_probable(probabilities, self.top_k, self.top_p)
        sampled = sample_by_inversion(probabilities, self.uniform[:, step])
        tokens = torch.where(self.greedy, logits.argmax(1), sampled)
        return tokens, log_probs.gather(1, tokens[:, None]).squeeze(1)
