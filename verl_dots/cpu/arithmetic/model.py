"""The small Qwen2-like model of the arithmetic task, and its tokenizer."""

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from verl_dots.cpu.arithmetic.settings import ModelSize
from verl_dots.cpu.arithmetic.task import FILLER, OPERATIONS, QUESTION_LENGTH

PAD, END = "<|endoftext|>", "<|im_end|>"
# The byte-level name of newline. transformers 5 loads a folder with model_type=qwen2 as a byte-level Qwen2 tokenizer,
# whatever class was saved, so the vocabulary uses byte-level names; verl wants newline to be one token and
# <|im_end|> to exist (verl/utils/tokenizer/continuous_token.py).
NEWLINE = "\u010a"
CHARACTERS = "0123456789" + OPERATIONS + FILLER + "="
VOCABULARY = [PAD, END, *CHARACTERS, NEWLINE]
PAD_ID, END_ID = 0, 1
# A question is short and of constant length; the prompt is nothing but the question.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

_CHARACTER_IDS = np.zeros(128, dtype=np.int64)
_CHARACTER_IDS[[ord(character) for character in CHARACTERS]] = [VOCABULARY.index(c) for c in CHARACTERS]


def build_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(VOCABULARY)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(size: ModelSize, seed: int) -> Qwen2ForCausalLM:
    """A freshly initialised float32 model. Leaves torch's global generator as it was."""
    config = Qwen2Config(
        vocab_size=len(VOCABULARY),  # verl masks ids beyond the tokenizer's in rollout only, so none may exist
        hidden_size=size.width,
        intermediate_size=3 * size.width,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.heads,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        attn_implementation="sdpa",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def encode(texts: list[str]) -> np.ndarray:
    """Token ids of equally long texts, one token per character. # (N, length) int64"""
    lengths = {len(text) for text in texts}
    assert len(lengths) <= 1, f"texts of several lengths: {sorted(lengths)}"
    return _CHARACTER_IDS[np.frombuffer("".join(texts).encode("ascii"), dtype=np.uint8)].reshape(len(texts), -1)


def encode_questions(questions: list[str]) -> np.ndarray:
    """Prompt ids, what the chat template and the tokenizer give for these questions. # (N, 15) int64"""
    ids = encode(questions)
    assert ids.shape[1] == QUESTION_LENGTH
    return ids
