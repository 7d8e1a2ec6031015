"""The training and validation files, read as verl reads them but before its length filter, which needs the tokenizer."""

from __future__ import annotations

import types
from pathlib import Path

import datasets
from omegaconf import DictConfig, OmegaConf

from verl_dots.diagnosis.finding import Finding, fail, warn
from verl_dots.files import one_line
from verl_dots.integration import doctor_config, rows
from verl_dots.questions import Questions


def read_questions(config: DictConfig) -> tuple[list[Finding], Questions | None]:
    """Identify every training row; None, with the reason, where they cannot be read."""
    if OmegaConf.select(config, "data.custom_cls.path"):
        message = f"data.custom_cls.path={config.data.custom_cls.path}: questions not read, your own class does that"
        return [warn("questions", message)], None
    files = doctor_config.paths(config.data.train_files)
    if not all("://" in path or Path(path).expanduser().exists() for path in files):
        return [], None  # `check_files` has named it
    try:
        frame = _load(files)
        prompt_key = config.data.get("prompt_key", "prompt")
        if prompt_key not in frame.column_names:
            raise ValueError(f"data.train_files have no column {prompt_key!r} (they have {', '.join(frame.column_names)})")
        return [], rows.identify(types.SimpleNamespace(dataframe=frame), prompt_key)
    except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
        return [fail("questions", one_line(error), "build the file with data_prep/build_questions.py")], None


def validation_rows(config: DictConfig) -> int | None:
    """Rollouts of a validation that verl has in its store at once, None where the files cannot be read."""
    if OmegaConf.select(config, "data.custom_cls.path") or int(config.trainer.get("test_freq") or -1) <= 0:
        return None
    try:
        questions = len(_load(doctor_config.paths(config.data.val_files)))
    except (ValueError, OSError, datasets.exceptions.DatasetsError):
        return None  # `check_files` has named a missing file, verl will name a broken one
    most = int(config.data.get("val_max_samples", -1))
    questions = min(questions, most) if most > 0 else questions
    questions = min(questions, config.data.get("val_batch_size") or questions)
    return questions * int(config.actor_rollout_ref.rollout.val_kwargs.n)


def _load(files: list[str]) -> datasets.Dataset:
    """verl/utils/dataset/rl_dataset.py, RLHFDataset._read_files_and_tokenize."""
    if not files:
        raise ValueError("data.train_files names no file")
    kinds = {".parquet": "parquet", ".json": "json", ".jsonl": "json"}
    parts = []
    for path in files:
        kind = next((kind for suffix, kind in kinds.items() if path.endswith(suffix)), None)
        if kind is None:
            raise ValueError(f"{path}: verl reads .parquet, .json and .jsonl")
        parts.append(datasets.load_dataset(kind, data_files=path)["train"])
    return datasets.concatenate_datasets(parts)
