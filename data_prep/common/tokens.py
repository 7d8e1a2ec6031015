"""Prompts as verl's RLHFDataset makes token ids of them (verl/utils/dataset/rl_dataset.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.quiet import quieten
from verl_dots.files import one_line


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a model, from a folder or the hub.

    Raises:
        ValueError: it cannot be loaded or has no chat template.
    """
    from transformers import AutoTokenizer

    quieten()
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"the tokenizer of {name!r} cannot be loaded ({one_line(error)[:300]})") from error
    if not tokenizer.chat_template:
        raise ValueError(f"the tokenizer of {name!r} has no chat template: choose an instruction-tuned model")
    return tokenizer


def prompt_ids(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a prompt, up to where the response begins."""
    return tokenizer.apply_chat_template(
        [dict(message) for message in messages], add_generation_prompt=True, tokenize=True, return_dict=False
    )
