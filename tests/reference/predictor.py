"""The trained predictor's formulas written out slowly in numpy, from arXiv 2506.05316 section 3.1 and the standard
definitions of LayerNorm, GELU and softmax; one question and one number at a time, float64."""

from __future__ import annotations

import math

import numpy as np


def layer_norm(x, weight, bias):
    mean = sum(x) / len(x)
    variance = sum((value - mean) ** 2 for value in x) / len(x)
    standard = [(value - mean) / math.sqrt(variance + 1e-5) for value in x]
    return np.array([value * w + b for value, w, b in zip(standard, weight, bias, strict=True)])


def gelu(x):
    return np.array([value * 0.5 * (1 + math.erf(value / math.sqrt(2))) for value in x])


def linear(x, weight, bias):
    return np.array([math.fsum(np.multiply(row, x)) + b for row, b in zip(weight, bias, strict=True)])


def project(parameters: dict, name: str, embedding, side, layers: int):
    """z of one question: `embedding` centred (D,), `side` values and flags (2 S,)."""
    hidden = np.concatenate(
        [layer_norm(embedding, parameters[f"{name}.norm.weight"], parameters[f"{name}.norm.bias"]), side]
    )
    for layer in range(layers):
        if layer:
            hidden = gelu(hidden)
        hidden = linear(hidden, parameters[f"{name}.linear.{layer}.weight"], parameters[f"{name}.linear.{layer}.bias"])
    return layer_norm(hidden, parameters[f"{name}.output_norm.weight"], parameters[f"{name}.output_norm.bias"])


def side_values(parameters: dict, side):
    """Standardised values with 0 for missing ones, then a flag 1 for each missing one."""
    values, flags = [], []
    for value, mean, scale in zip(side, parameters["side_mean"], parameters["side_scale"], strict=True):
        missing = math.isnan(value)
        values.append(0.0 if missing else (value - mean) * scale)
        flags.append(1.0 if missing else 0.0)
    return np.array(values + flags)


def predict(parameters: dict, embeddings, sides, reference_embeddings, reference_sides, difficulty, layers: int):
    """Predicted difficulty of every query, a list of floats."""

    def projected(name, embedding, side):
        centred = embedding - parameters["embedding_mean"]
        return project(parameters, name, centred, side_values(parameters, side), layers)

    keys = [projected("reference", e, s) for e, s in zip(reference_embeddings, reference_sides, strict=True)]
    mean = sum(difficulty) / len(difficulty)
    deviation = math.sqrt(sum((d - mean) ** 2 for d in difficulty) / len(difficulty))
    hidden = gelu(linear([mean, deviation], parameters["head.0.weight"], parameters["head.0.bias"]))
    raw_slope, raw_offset = linear(hidden, parameters["head.2.weight"], parameters["head.2.bias"])
    slope, offset = math.log1p(math.exp(raw_slope)), math.tanh(raw_offset)
    answers = []
    for embedding, side in zip(embeddings, sides, strict=True):
        query = projected("query", embedding, side)
        scores = [sum(q * k for q, k in zip(query, key, strict=True)) / math.sqrt(len(query)) for key in keys]
        weights = [math.exp(score - max(scores)) for score in scores]
        attended = sum(w * d for w, d in zip(weights, difficulty, strict=True)) / sum(weights)
        clipped = min(max(attended, 1e-4), 1 - 1e-4)
        answers.append(1 / (1 + math.exp(-(slope * math.log(clipped / (1 - clipped)) + offset))))
    return answers


def cross_entropy(predicted, target) -> float:
    """Mean binary cross-entropy with soft labels."""
    losses = [-(t * math.log(p) + (1 - t) * math.log(1 - p)) for p, t in zip(predicted, target, strict=True)]
    return sum(losses) / len(losses)
