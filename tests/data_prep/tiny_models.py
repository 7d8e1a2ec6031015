"""A language model small enough to make here: no network."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def tiny_causal_model(path: Path) -> str:
    """Save a random two-layer Qwen2 and a character tokenizer with a chat template; returns the folder.

    The vocabulary has byte-level names: transformers loads any tokenizer beside a Qwen2 as a byte-level one.
    """
    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<|endoftext|>", *characters])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.chat_template = "Be brief.{% for message in messages %}[{{ message.content }}]{% endfor %}"
    fast.save_pretrained(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=len(vocabulary), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=64,
        )  # fmt: skip
        Qwen2ForCausalLM(config).save_pretrained(path)
    return str(path)
