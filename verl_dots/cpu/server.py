"""The rollout server: an asynchronous Ray actor that collects concurrent requests and decodes them together."""

import asyncio
import os
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from omegaconf import DictConfig
from transformers import AutoModelForCausalLM, AutoTokenizer
from verl.workers.config import RolloutConfig
from verl.workers.rollout.replica import TokenOutput

from verl_dots.cpu.decoding import BatchDecoder, Completion, Request

GATHER_SECONDS = 0.03  # a batch starts once no request has arrived for this long
DRAIN_SECONDS = 0.005  # between two looks whether the running batch is done
MULTIMODAL = ("image_data", "video_data", "audio_data")


@dataclass
class _Pending:
    request: Request
    result: asyncio.Future

    def finish(self, outcome: Completion | Exception) -> None:
        if self.result.done():  # whoever asked has gone
            return
        if isinstance(outcome, Exception):
            self.result.set_exception(outcome)
        else:
            self.result.set_result(outcome)


class RolloutServer:
    """Serves one model. The methods are those that verl calls on a rollout server (verl/workers/rollout/replica.py).

    `rollout.dtype=float64` makes a response independent of the requests that happen to share its batch
    (`verl_dots.cpu.decoding`); the model is small.
    """

    def __init__(self, config: RolloutConfig, model_config: DictConfig, replica_rank: int):
        torch.set_num_threads(int(os.environ.get("VERL_DOTS_CPU_ROLLOUT_THREADS", "1")))
        self.config = config
        self.model = AutoModelForCausalLM.from_pretrained(
            model_config.path, dtype=getattr(torch, config.dtype), attn_implementation="sdpa"
        ).eval()
        tokenizer = AutoTokenizer.from_pretrained(model_config.path)
        self.decoder = BatchDecoder(
            self.model,
            _end_ids(self.model.config, tokenizer),
            pad_id=0,
            detokenize=partial(tokenizer.decode, skip_special_tokens=True),
        )
        # Requests normally bring a seed (verl_dots.cpu.agent_loop); the others get one from here.
        self.seeds = np.random.default_rng([config.seed, replica_rank])
        self.global_steps: int | None = None
        self.pending: list[_Pending] = []
        self.arrived = asyncio.Event()
        self.awake = asyncio.Event()  # between wake_up and sleep
        self.running = asyncio.Event()  # cleared from abort_all_requests to resume_generation
        self.running.set()
        self.rejecting = self.aborting = self.decoding = False
        self.loop: asyncio.Task | None = None

    async def generate(self, prompt_ids: list[int], sampling_params: dict, request_id: str, **inputs) -> TokenOutput:
        """Sample one response.

        Raises ValueError for images, video or audio, and for sampling parameters that are not supported.
        """
        given = [name for name in MULTIMODAL if inputs.get(name)]
        if given:
            raise ValueError(f"the CPU rollout server is for text only, got {given}: use a text data set")
        request = Request.from_sampling_params(
            prompt_ids,
            sampling_params,
            max_tokens=min(
                self.config.response_length,
                self.config.prompt_length + self.config.response_length - len(prompt_ids),
            ),
            seed=int(self.seeds.integers(2**63)),
            ignore_eos=self.config.ignore_eos,
        )
        if self.rejecting and not self.running.is_set():
            return self._output(Completion([], [], finished=False))
        if self.loop is None:
            self.loop = asyncio.get_running_loop().create_task(self._serve())
        pending = _Pending(request, asyncio.get_running_loop().create_future())
        self.pending.append(pending)
        self.arrived.set()
        return self._output(await pending.result)

    def _output(self, completion: Completion) -> TokenOutput:
        return TokenOutput(
            token_ids=completion.tokens,
            log_probs=completion.log_probs,
            stop_reason="completed" if completion.finished else "aborted",
            extra_fields={"global_steps": self.global_steps},
        )

    async def _serve(self) -> None:
        while True:
            await self.arrived.wait()
            await self.awake.wait()
            await self.running.wait()
            await self._gather()
            if not (self.awake.is_set() and self.running.is_set()):  # put to sleep or aborted meanwhile
                continue
            batch, self.pending = self.pending[: self.config.max_num_seqs], self.pending[self.config.max_num_seqs :]
            if not self.pending:
                self.arrived.clear()
            if not batch:
                continue
            self.decoding = True
            try:
                completions = await asyncio.to_thread(
                    self.decoder.decode, [item.request for item in batch], lambda: self.aborting
                )
            except Exception as error:
                completions = [error] * len(batch)  # goes to whoever asked
            finally:
                self.decoding = False
            for item, completion in zip(batch, completions, strict=True):
                item.finish(completion)

    async def _gather(self) -> None:
        """Wait until no more requests arrive or a full batch is there."""
        waiting = -1
        while waiting != len(self.pending) and len(self.pending) < self.config.max_num_seqs:
            waiting = len(self.pending)
            await asyncio.sleep(GATHER_SECONDS)

    async def wait_for_requests_to_drain(self) -> None:
        while self.decoding:
            await asyncio.sleep(DRAIN_SECONDS)

    async def sleep(self) -> None:
        await self.wait_for_requests_to_drain()
        self.awake.clear()

    async def wake_up(self, tags: list[str] | None = None) -> None:
        if tags is None or "kv_cache" in tags:  # verl wakes "weights" first, loads them, then "kv_cache"
            self.awake.set()

    async def update_weights(self, state: dict[str, torch.Tensor], global_steps: int | None = None) -> None:
        await self.wait_for_requests_to_drain()
        missing, unexpected = self.model.load_state_dict(state, strict=False)
        tied = {"lm_head.weight"} if self.model.config.tie_word_embeddings else set()
        assert not set(missing) - tied and not unexpected, f"weights differ: {missing=} {unexpected=}"
        if global_steps is not None:
            self.global_steps = global_steps

    async def set_global_steps(self, global_steps: int) -> None:
        self.global_steps = global_steps

    async def abort_all_requests(self, reset_prefix_cache: bool = True, reject_request: bool = False) -> dict:
        """End what is being decoded and what waits; both come back with stop_reason `aborted`."""
        self.running.clear()
        self.rejecting, self.aborting = reject_request, True
        await self.wait_for_requests_to_drain()
        self.aborting = False
        waiting, self.pending = self.pending, []
        self.arrived.clear()
        for item in waiting:
            item.finish(Completion([], [], finished=False))
        return {"aborted_count": len(waiting), "request_ids": []}

    async def resume_generation(self) -> None:
        self.rejecting = False
        self.running.set()

    async def ready(self) -> bool:
        return True

    async def clear_kv_cache(self) -> None:
        """Nothing to do: a cache lives as long as its batch."""

    release_kv_cache = resume_kv_cache = start_profile = stop_profile = clear_kv_cache


def _end_ids(config, tokenizer) -> set[int]:
    ids = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return {i for i in [*ids, tokenizer.eos_token_id] if i is not None}
