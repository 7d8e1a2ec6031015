"""GPU memory and hours of a run, by arithmetic from verl's configuration: no GPU, no weights.

What is left out (fragmentation, CUDA contexts, NCCL buffers, attention workspaces) is covered by `RESERVE` only, so read the
numbers as a check for gross mistakes. Units: bytes are decimal (1 GB = 1e9), as on a GPU's label.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from omegaconf import DictConfig

GB = 1e9
RESERVE = 4 * GB
"""CUDA context, NCCL, cuBLAS and fragmentation of the two engines on one GPU."""
TRAINING_SHARE = 0.5
"""Rollouts take .46 to .54 of a step on GPUs."""
UTILISATION = 0.35
"""Share of a GPU's peak that forward and backward reach at these sizes."""


@dataclass(frozen=True)
class ModelShape:
    """What sizes follow from; names as in Hugging Face's config.json."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    max_position_embeddings: int
    tie_word_embeddings: bool

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    @property
    def parameters(self) -> int:
        """Weights of a decoder with gated MLP and grouped queries, biases and norms left out (below 0.1 %)."""
        attention = 2 * self.hidden_size * self.head_dim * (self.num_attention_heads + self.num_key_value_heads)
        mlp = 3 * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * (attention + mlp) + embeddings

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in bfloat16, all layers."""
        return 2 * 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim


_QWEN_1_5B = ModelShape(1536, 8960, 28, 12, 2, 151936, 4096, True)
KNOWN = {
    "Qwen2.5-Math-1.5B": _QWEN_1_5B,
    "Qwen2.5-3B": ModelShape(2048, 11008, 36, 16, 2, 151936, 32768, True),
    "Qwen2.5-Math-7B": ModelShape(3584, 18944, 28, 28, 4, 152064, 4096, False),
}
"""Shapes of the recipes' models, so that a dry run needs no network."""


def model_shape(path: str) -> ModelShape:
    """The shape of a model: one of `KNOWN`, or read from its config.json, local or on the hub.

    Raises:
        ValueError: its configuration cannot be read, or lacks what is needed.
    """
    name = path.rstrip("/").rsplit("/", 1)[-1]
    if name in KNOWN and not os.path.isdir(path):
        return KNOWN[name]
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(path)
        fields = {field: getattr(config, field) for field in ModelShape.__dataclass_fields__}
    except (OSError, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise ValueError(f"actor_rollout_ref.model.path={path}: no configuration of a decoder there ({reason})") from None
    return ModelShape(**fields)


@dataclass(frozen=True)
class GpuMemory:
    """Bytes on one GPU, in the two phases that alternate there."""

    rollout: dict[str, float]
    update: dict[str, float]
    kv_sequences: float
    """Sequences of full length that the KV cache holds at once."""

    @property
    def peak(self) -> float:
        return max(sum(self.rollout.values()), sum(self.update.values()))


def gpu_memory(config: DictConfig, shape: ModelShape, gpu_bytes: float) -> GpuMemory:
    """Memory of one GPU: FSDP with float32 master weights and Adam, and a rollout engine that sleeps during the update."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    sharded = 4 * shape.parameters / ranks
    resident = 0.0 if actor.fsdp_config.param_offload else sharded
    optimiser = 0.0 if actor.fsdp_config.optimizer_offload else 2 * sharded
    weights = 2 * shape.parameters / rollout.tensor_model_parallel_size
    cache = max(0.0, rollout.gpu_memory_utilization * gpu_bytes - weights)
    tokens = actor.ppo_max_token_len_per_gpu
    layer = 2 * shape.parameters / shape.num_hidden_layers
    length = config.data.max_prompt_length + config.data.max_response_length
    return GpuMemory(
        rollout={
            "actor weights": resident,
            "optimiser": optimiser,
            "engine weights": weights,
            "KV cache and engine": cache,
            "reserve": RESERVE,
        },
        update={
            "actor weights": sharded,
            "gradients": sharded,
            "optimiser": 2 * sharded,
            "gathered layers": 2 * layer,
            # with gradient checkpointing: one hidden state a layer, and one layer's own activations
            "activations": tokens * 2 * (shape.num_hidden_layers * shape.hidden_size + 4 * shape.intermediate_size),
            # logits and their gradient in bfloat16, and one copy in float32 while log-probs are taken
            "logits": tokens * shape.vocab_size * (2 + 2 + 4),
            "reserve": RESERVE,
        },
        kv_sequences=cache * rollout.tensor_model_parallel_size / (shape.kv_bytes_per_token * length),
    )


def hours(config: DictConfig, shape: ModelShape, steps: int, response_length: float, peak_flops: float) -> float:
    """Hours of plain GRPO if responses have `response_length` tokens: 2 P a token and forward, 4 P backward.

    One forward for the log-probs, one forward and backward and one recomputation for the update: 10 P a token in all.
    """
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    prompt = 0.2 * config.data.max_prompt_length
    tokens = config.data.train_batch_size * config.actor_rollout_ref.rollout.n * (prompt + response_length)
    update_seconds = 10 * shape.parameters * tokens / (ranks * UTILISATION * peak_flops)
    return steps * update_seconds / TRAINING_SHARE / 3600
