"""Embeddings and predictor files that a run is given and cannot use."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.unit.bad_input.case import EMBEDDINGS, Case, config, cut


def embeddings(name: str, prepare, *says: str) -> Case:
    """An embeddings file that is damaged first."""
    remedy = ("embeddings.safetensors", "run python data_prep/embed_questions.py", *says)
    return Case(f"embeddings {name}", config(f"{EMBEDDINGS}=embeddings.safetensors"), remedy, prepare)


def edit_manifest(**fields):
    def edit() -> None:
        path = Path("embeddings.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return edit


EMBEDDING_FILES = [
    Case(
        "no embeddings",
        config(f"{EMBEDDINGS}=none.safetensors"),
        ("no embeddings file 'none.safetensors'", "embed_questions.py"),
    ),
    Case("embeddings are a folder", config(f"{EMBEDDINGS}=taken"), ("no embeddings file 'taken'", "embed_questions.py")),
    Case(
        "embeddings are parquet",
        config(f"{EMBEDDINGS}=labels.parquet"),
        ("'labels.parquet' is not a whole safetensors", "embed_q"),
    ),
    embeddings("empty", cut("embeddings.safetensors", 0), "not a whole safetensors file"),
    embeddings("cut off", cut("embeddings.safetensors", 200), "not a whole safetensors file"),
    embeddings("without manifest", lambda: os.remove("embeddings.json"), "has no manifest"),
    embeddings("with the manifest of another", edit_manifest(count=9), "9 questions"),
    Case(
        "embeddings with half a manifest",
        config(f"{EMBEDDINGS}=embeddings.safetensors"),
        ("manifest 'embeddings.json' is no JSON", "make embeddings.safetensors again"),
        cut("embeddings.json", 30),
    ),
    Case(
        "no predictor checkpoint",
        config(f"{EMBEDDINGS}=embeddings.safetensors", "dots.predictor.checkpoint=none.safetensors"),
        ("dots.predictor.checkpoint=none.safetensors", "no such file"),
    ),
]
