"""The trained predictor at run time: query projections computed once, one matrix product per refresh.

Projections of the pool are kept as float16, in memory or, when they are large, in a temporary memory-mapped file. A refresh
projects the reference set, attends in chunks, and lets :mod:`verl_dots.difficulty.stacking` correct the result by the
labels of the moment. Where there are side features, the network predicts with them and blind to them, and the labels decide
which to believe: another model's pass rates may say much about this policy, or nothing.

Shapes: N questions, D embedding dimensions, S side features, K labelled groups of Q distinct questions, h width.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from verl_dots.difficulty.attention import AttentionModel
from verl_dots.difficulty.labels import RECENT, expected_pearson, label_weights, merge_labels
from verl_dots.difficulty.predictor import Prediction
from verl_dots.difficulty.stacking import fit_stack, side_columns

PROJECT_CHUNK = 4_096
REFRESH_CHUNK = 4_096
"""Questions at a time: small enough for scores (chunk, K) and projections (chunk, h) to stay near the processor."""
MEMORY_LIMIT = 1 << 30
"""Bytes of projections above which they go to a file."""


class TrainedPredictor:
    """Fitted networks bound to a pool; a `verl_dots.difficulty.predictor.Predictor`."""

    def __init__(
        self,
        members: Sequence[AttentionModel],
        vectors: np.ndarray,
        side: np.ndarray | None = None,
        device: str | None = None,
    ) -> None:
        """Project the pool.

        Args:
            members: from :func:`verl_dots.difficulty.checkpoint.load_checkpoint`; their logits are averaged.
            vectors: (N, D) float16 or float32, memory-mapped or not.
            side: (N, S) side features, NaN where unknown.
            device: where to compute; a GPU when there is one, by default.
        """
        settings = members[0].settings
        side = np.zeros((len(vectors), 0), np.float32) if side is None else side
        assert vectors.shape[1] == settings.dim and side.shape[1] == len(settings.side)
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._members = [member.to(self._device).eval() for member in members]
        self._vectors, self._side = vectors, side
        self._columns = side_columns(side)  # (N, C)
        views = (False, True) if settings.side else (False,)  # with side features, and blind to them
        self._query = {blind: [self._project(member, blind) for member in self._members] for blind in views}  # (N, h) each

    @torch.inference_mode()
    def predict(
        self, reference_index: np.ndarray, successes: np.ndarray, trials: np.ndarray, age: np.ndarray
    ) -> Prediction:
        """See :class:`verl_dots.difficulty.predictor.Predictor`."""
        labels = merge_labels(reference_index, successes, trials, age)
        seen = torch.from_numpy(labels.difficulty).float().to(self._device)  # (Q,)
        held_out, logits = [], []
        for blind, queries in self._query.items():
            inputs = self._inputs(labels.index, blind)
            answers = [
                self._attend(member, query, member.project_reference(*inputs), labels.index, seen)
                for member, query in zip(self._members, queries, strict=True)
            ]
            logits.append(np.mean([everywhere for everywhere, _ in answers], axis=0))  # (N,)
            held_out.append(np.mean([left_out for _, left_out in answers], axis=0))  # (Q,)
        stack = fit_stack(
            np.stack(held_out, axis=1),
            labels.difficulty,
            label_weights(labels, RECENT),
            side=self._columns[labels.index],
        )
        difficulty = stack.difficulty(np.stack(logits, axis=1), self._columns).astype(np.float32)
        report = {f"slope_{number}": float(weight) for number, weight in enumerate(stack.base_weights)}
        report |= {"offset": stack.offset} | {f"side_{number}": float(w) for number, w in enumerate(stack.side_weights)}
        expected = expected_pearson(stack.held_out, labels.difficulty)
        if expected is not None:
            report["expected_pearson"] = expected
        return Prediction(difficulty, stack.held_out[labels.inverse], report)

    def _attend(
        self, member: AttentionModel, query: np.ndarray, reference: Tensor, index: np.ndarray, seen: Tensor
    ) -> tuple[np.ndarray, np.ndarray]:
        """One member's logits for the pool (N,), and for the labelled questions without their own label (Q,)."""
        known = torch.from_numpy(query[index]).float().to(self._device)  # (Q, h)
        own = torch.eye(len(seen), dtype=torch.bool, device=self._device)
        # A single label has no other to attend to.
        left_out = member(known, reference, seen, own) if len(seen) > 1 else torch.zeros_like(seen)
        return attended_logits(member, query, reference, seen), left_out.cpu().numpy()

    def _inputs(self, rows: np.ndarray | slice, blind: bool) -> tuple[Tensor, Tensor]:
        """Embeddings and side features of some rows; `blind` hides the side features."""
        vectors = torch.from_numpy(np.asarray(self._vectors[rows], dtype=np.float32))
        side = torch.from_numpy(np.asarray(self._side[rows], dtype=np.float32))
        return vectors.to(self._device), (torch.full_like(side, torch.nan) if blind else side).to(self._device)

    @torch.inference_mode()
    def _project(self, member: AttentionModel, blind: bool) -> np.ndarray:
        """z_q of the whole pool, float16 (N, h)."""
        count, width = len(self._vectors), member.settings.width
        query = empty_array((count, width), np.float16)
        for start in range(0, count, PROJECT_CHUNK):
            rows = slice(start, min(start + PROJECT_CHUNK, count))
            query[rows] = member.project_query(*self._inputs(rows, blind)).half().cpu().numpy()
        return query


def empty_array(shape: tuple[int, ...], dtype: type, limit: int = MEMORY_LIMIT) -> np.ndarray:
    """An uninitialised array; above `limit` bytes in a temporary file that vanishes with it."""
    if math.prod(shape) * np.dtype(dtype).itemsize <= limit:
        return np.empty(shape, dtype)
    with tempfile.NamedTemporaryFile(prefix="dots-projections-") as stream:
        return np.memmap(stream.name, dtype=dtype, mode="w+", shape=shape)


@torch.inference_mode()
def attended_logits(
    model: AttentionModel, query: np.ndarray, reference: Tensor, difficulty: Tensor, chunk: int = REFRESH_CHUNK
) -> np.ndarray:
    """The network's logits float32 (N,) for projections (N, h) float16, one matrix product in chunks.

    Buffers are reused from chunk to chunk; own memory is a few MB whatever N is.
    """
    count, width = query.shape
    device = reference.device
    keys = (reference / math.sqrt(width)).T.contiguous()  # (h, K)
    chunk = min(chunk, count)
    rows_buffer = torch.empty(chunk, width, device=device)
    scores_buffer = torch.empty(chunk, keys.shape[1], device=device)
    logits = np.empty(count, dtype=np.float32)
    for start in range(0, count, chunk):
        stop = min(start + chunk, count)
        rows, scores = rows_buffer[: stop - start], scores_buffer[: stop - start]
        rows.copy_(torch.from_numpy(query[start:stop]))
        torch.mm(rows, keys, out=scores)
        attended = torch.softmax(scores, dim=1) @ difficulty
        logits[start:stop] = model.calibrate(attended, difficulty).cpu().numpy()
    return logits
