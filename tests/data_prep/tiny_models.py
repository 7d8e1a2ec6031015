"""Language models small enough to make here: no network."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from verl_dots.cpu.arithmetic.model import CHAT_TEMPLATE, END, PAD, PAD_ID, VOCABULARY


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


def arithmetic_model_that_reads_any_text(trained: Path, path: Path, positions: int) -> None:
    """Save the quickstart's model with every byte in its vocabulary: it still does sums, and writes digits about the rest.

    Args:
        trained: the quickstart's model.
        path: folder to write.
        positions: tokens of the longest prompt and response.
    """
    more = [byte for byte in sorted(pre_tokenizers.ByteLevel.alphabet()) if byte not in VOCABULARY]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(VOCABULARY + more)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(trained, dtype=torch.float32)
    model.resize_token_embeddings(len(VOCABULARY) + len(more), mean_resizing=False)
    with torch.no_grad():  # as unlikely to be written as padding, which the model never writes
        for table in (model.get_input_embeddings(), model.get_output_embeddings()):
            table.weight[len(VOCABULARY) :] = table.weight[PAD_ID]
    model.config.max_position_embeddings = positions
    model.save_pretrained(path)
