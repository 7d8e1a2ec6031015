"""The trained predictor's network: two projections, attention over the reference set, a calibration head.

    z_q = f_query(x_q)                z_i = f_ref(x_i)                    MLPs, not shared
    d0  = sum_i softmax_i(z_q . z_i / sqrt(h)) d_i                        attention over the reference labels
    w, b = head([mean(d_ref), std(d_ref)])                                w by softplus, b by tanh
    d   = sigmoid(w logit(clip(d0)) + b)                                  arXiv 2506.05316, section 3.1

`x` is a question's embedding, with optional side features beside it (ours).

Shapes: B queries, K reference questions, D embedding dimensions, S side features, h projection width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CLIP = 1e-4
"""d0 is kept this far from 0 and 1 before its logit is taken."""


@dataclass(frozen=True)
class AttentionSettings:
    """What determines the shapes of the network; stored in the checkpoint."""

    dim: int
    side: tuple[str, ...] = ()
    width: int = 896
    layers: int = 3
    dropout: float = 0.1


class Projection(nn.Module):
    """LayerNorm, `layers` linear maps of width h with GELU and dropout between them, LayerNorm."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(settings.dim)
        sizes = [settings.dim + 2 * len(settings.side)] + [settings.width] * settings.layers
        self.linear = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:], strict=True))
        self.dropout = nn.Dropout(settings.dropout)
        self.output_norm = nn.LayerNorm(settings.width)

    def forward(self, embedding: Tensor, side: Tensor) -> Tensor:
        """Embeddings (B, D) and prepared side features (B, 2 S) -> (B, h)."""
        hidden = torch.cat([self.norm(embedding), side], dim=1)
        for number, linear in enumerate(self.linear):
            hidden = linear(hidden if number == 0 else self.dropout(F.gelu(hidden)))
        return self.output_norm(hidden)


class AttentionModel(nn.Module):
    """The network. Embeddings are centred, side features standardised and completed, by what training saw."""

    def __init__(self, settings: AttentionSettings) -> None:
        super().__init__()
        self.settings = settings
        self.query = Projection(settings)
        self.reference = Projection(settings)
        self.head = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 2))
        with torch.no_grad():
            self.head[2].weight.mul_(0.1)
            self.head[2].bias.copy_(torch.tensor([math.log(math.e - 1), 0.0]))  # starts near w = 1, b = 0
        sides = len(settings.side)
        for name, size, value in (
            ("embedding_mean", settings.dim, 0.0),
            ("side_mean", sides, 0.0),
            ("side_scale", sides, 1.0),
        ):
            self.register_buffer(name, torch.full((size,), value))

    def fit_inputs(self, embedding: Tensor, side: Tensor) -> None:
        """Set means and scales from training questions, (n, D) and (n, S) with NaN where a value is missing."""
        self.embedding_mean.copy_(embedding.mean(dim=0))
        known = ~side.isnan()
        count = known.sum(dim=0).clamp_min(1)
        mean = side.nan_to_num(0).sum(dim=0) / count
        variance = torch.where(known, side - mean, 0).square().sum(dim=0) / count
        self.side_mean.copy_(mean)
        self.side_scale.copy_(1 / variance.sqrt().clamp_min(1e-6))

    def inputs(self, embedding: Tensor, side: Tensor) -> tuple[Tensor, Tensor]:
        """Centred embeddings (B, D), and side features (B, 2 S): the values, 0 where missing, and a flag for that."""
        known = ~side.isnan()
        values = torch.where(known, (side - self.side_mean) * self.side_scale, 0.0)
        return embedding - self.embedding_mean, torch.cat([values, (~known).float()], dim=1)

    def project_query(self, embedding: Tensor, side: Tensor) -> Tensor:
        """z_q (B, h), of raw embeddings (B, D) and raw side features (B, S)."""
        return self.query(*self.inputs(embedding, side))

    def project_reference(self, embedding: Tensor, side: Tensor) -> Tensor:
        """z_i (K, h), likewise."""
        return self.reference(*self.inputs(embedding, side))

    def attend(self, query: Tensor, reference: Tensor, difficulty: Tensor, mask: Tensor | None = None) -> Tensor:
        """d0 (B,): attention of projected queries (B, h) over projected references (K, h) with labels (K,).

        `mask` (B, K), True where a query may not see a reference (its own label).
        """
        scores = query @ reference.T / math.sqrt(self.settings.width)  # (B, K)
        if mask is not None:
            scores = scores.masked_fill(mask, -torch.inf)
        return torch.softmax(scores, dim=1) @ difficulty

    def calibrate(self, attended: Tensor, difficulty: Tensor) -> Tensor:
        """Logit of the predicted difficulty (B,), from d0 (B,) and the reference labels (K,)."""
        summary = torch.stack([difficulty.mean(), difficulty.std(correction=0)])
        slope, offset = self.head(summary)
        return F.softplus(slope) * torch.logit(attended.clamp(CLIP, 1 - CLIP)) + torch.tanh(offset)

    def forward(self, query: Tensor, reference: Tensor, difficulty: Tensor, mask: Tensor | None = None) -> Tensor:
        """Logit of the predicted difficulty (B,), from projections (B, h) and (K, h) and labels (K,)."""
        return self.calibrate(self.attend(query, reference, difficulty, mask), difficulty)
