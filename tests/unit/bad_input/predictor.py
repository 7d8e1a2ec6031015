"""Mistakes with the predictor's tools: embed_questions.py, fit_predictor.py and evaluate_predictor.py of data_prep/."""

from __future__ import annotations

import pandas as pd

from tests.unit.bad_input.case import Case, cut, tool


def embed(*arguments: str):
    return tool("embed_questions", "--questions", "questions.parquet", "--output", "vectors.safetensors", *arguments)


def fit(*arguments: str):
    files = ("--labels", "labels.parquet", "--embeddings", "embeddings.safetensors", "--output", "predictor.safetensors")
    return tool("fit_predictor", *files, *arguments)


def evaluate(*arguments: str):
    return tool("evaluate_predictor", "--labels", "labels.parquet", "--embeddings", "embeddings.safetensors", *arguments)


def bad_labels(**column):
    def write() -> None:
        frame = pd.read_parquet("labels.parquet")
        pd.DataFrame({**frame, **column}).to_parquet("labels.parquet")

    return write


def other_questions() -> None:
    frame = pd.read_parquet("labels.parquet")
    frame["question_id"] = [text[::-1] for text in frame["question_id"]]
    frame.to_parquet("labels.parquet")


PREDICTOR = [
    Case("embed nothing", embed(), ("--model", "--features")),
    Case("embed features", embed("--features", "magic"), ("--features", "magic")),
    Case(
        "embed questions missing",
        embed("--features", "lexical", "--questions", "no.parquet"),
        ("no such file", "no.parquet"),
    ),
    Case(
        "embed no questions",
        embed("--features", "lexical", "--questions", "labels.parquet"),
        ("'labels.parquet' has neither a column 'prompt' nor 'question'", "it has"),
    ),
    Case("embed empty", embed("--features", "lexical"), ("'questions.parquet' is empty",), cut("questions.parquet", 0)),
    Case(
        "embed cut off",
        embed("--features", "lexical"),
        ("'questions.parquet'", "make it again"),
        cut("questions.parquet", 99),
    ),
    Case("embed with no model", embed("--model", "taken", "--devices", "cpu"), ("--model 'taken' cannot be loaded",)),
    Case(
        "embed no permission",
        embed("--features", "lexical", "--output", "/sys/v.safetensors"),
        ("no permission: '/sys/v.safetensors'",),
    ),
    Case("embed suffix", embed("--features", "lexical", "--output", "x.npy"), ("'x.npy' must end in .safetensors",)),
    Case("embed side column", embed("--features", "lexical", "--side", "extra_info.rate"), ("extra_info.rate",)),
    Case("fit labels missing", fit("--labels", "no.parquet"), ("no such file", "no.parquet")),
    Case("fit labels cut off", fit(), ("'labels.parquet'", "make it again"), cut("labels.parquet", 500)),
    Case("fit no labels", fit("--labels", "questions.parquet"), ("'questions.parquet' has no column", "it has")),
    Case("fit impossible labels", fit(), ("labels.parquet", "successes"), bad_labels(successes=9.0)),
    Case("fit no trials", fit(), ("labels.parquet", "trials"), bad_labels(trials=0)),
    Case("fit other questions", fit(), ("'embeddings.safetensors' lacks 8 of the 8", "embed_questions.py"), other_questions),
    Case("fit no permission", fit("--output", "/sys/p.safetensors"), ("no permission: '/sys/p.safetensors'",)),
    Case("fit no permission for labels", fit("--holdout-labels", "/sys/l.parquet"), ("no permission: '/sys/l.parquet'",)),
    Case("fit suffix", fit("--output", "p.pt"), ("--output 'p.pt' must end in .safetensors",)),
    Case("fit epochs", fit("--epochs", "0"), ("--epochs 0", "at least 1")),
    Case("fit rate", fit("--learning-rate", "nan"), ("--learning-rate nan", "must not be negative")),
    Case("fit dropout", fit("--dropout", "1"), ("--dropout 1", "below 1")),
    Case("fit holdout", fit("--holdout-questions", "1.5"), ("--holdout-questions 1.5", "between 0 and 1")),
    Case(
        "fit policy unknown", fit("--holdout-policies", "x"), ("--holdout-policies 'x' is not in the labels", "they have m")
    ),
    Case("fit all policies held out", fit("--holdout-policies", "m"), ("names every policy", "leave one")),
    Case("evaluate labels empty", evaluate(), ("'labels.parquet' is empty",), cut("labels.parquet", 0)),
    Case(
        "evaluate checkpoint missing",
        evaluate("--checkpoint", "p.safetensors"),
        ("no predictor checkpoint", "fit_predictor.py"),
    ),
    Case(
        "evaluate embeddings as checkpoint",
        evaluate("--checkpoint", "embeddings.safetensors"),
        ("is not a difficulty predictor",),
    ),
    Case("evaluate too few", evaluate("--reference-size", "8"), ("'labels.parquet' has 8 questions", "--reference-size 8")),
    Case("evaluate policies", evaluate("--reference-size", "4", "--policy", "m", "x"), ("--policy 'x'", "it has m")),
    Case("evaluate policy", evaluate("--reference-size", "4", "--policy", "x"), ("--policy 'x'", "labels.parquet", "m")),
]
