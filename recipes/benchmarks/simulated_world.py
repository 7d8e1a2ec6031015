"""A policy in training as item-response arithmetic: a `step_loop.World` for pools of any size.

Question q belongs to a cluster c of a domain. Its success rate is `sigmoid(ability_c - b_q)`. A step trains on groups; a
group teaches in proportion to `4 p (1 - p)` of its observed success rate p, so an all-equal group teaches nothing. With
`n = sum of what the groups teach / B`, a step moves ability by `rate * sqrt(n)`: an optimiser with a normalised step
follows a gradient estimate whose signal to noise ratio grows with the square root of the informative groups. A share
`transfer` of the movement goes to all clusters, a share `domain_transfer` to those of the same domain, and the rest to the
clusters that were trained, in proportion. A replayed group teaches less: by `replay_worth`, by its age, and each time it
is used again.

Embeddings hold what the cluster and the difficulty say, drowned in noise: `quality` is the correlation of their difficulty
direction with the true difficulty within the pool.

Shapes: N questions, C clusters, D dimensions.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from verl_dots.types import Group

DIMENSIONS = 32
VALIDATION = 4096


@dataclass(frozen=True)
class WorldSettings:
    """What is simulated. Defaults are set so that the methods order as in the fast loop on pool x (see results).

    Attributes:
        questions: size of the pool.
        domains: of questions; each has `clusters` clusters and, beside them, its own mean difficulty.
        clusters: per domain.
        spread: standard deviation of difficulties in logits, clusters and questions together.
        domain_spread: of the domains' means.
        cluster_share: part of the variance of difficulty that lies between clusters.
        start: mean ability at the beginning, logits.
        rate: ability gained by a step whose groups all have p = .5, logits.
        transfer: share of a step's gain that reaches all clusters; `domain_transfer`: all of the domain.
        quality: of the embeddings, in [0, 1].
        drift: standard deviation of a random walk of every cluster's ability, logits per step.
        replay_worth: what a replayed group teaches against a fresh one.
        age_scale: policy versions in which that falls e-fold.
        reuse_worth: factor for each earlier use of the same group.
        tokens: per response.
    """

    questions: int = 10_000
    domains: int = 1
    clusters: int = 24
    spread: float = 3.5
    domain_spread: float = 0.0
    cluster_share: float = 0.5
    start: float = -0.3
    rate: float = 0.045
    transfer: float = 0.5
    domain_transfer: float = 0.3
    quality: float = 0.8
    drift: float = 0.0
    replay_worth: float = 0.8
    age_scale: float = 60.0
    reuse_worth: float = 0.8
    tokens: int = 1


class SimulatedWorld:
    """A pool and a policy. Same seed, same pool and the same starting ability."""

    def __init__(self, settings: WorldSettings, seed: int, rollouts: int = 8, batch: int = 16) -> None:
        self.settings, self._rollouts, self._batch = settings, rollouts, batch
        pool = np.random.default_rng(7)  # the pool is the task: the same for every seed
        count, clusters = settings.questions, settings.domains * settings.clusters
        self.cluster = pool.integers(clusters, size=count)  # (N,)
        self._domain = np.arange(clusters) // settings.clusters  # (C,)
        between, within = np.sqrt(settings.cluster_share), np.sqrt(1 - settings.cluster_share)
        centres = pool.normal(scale=settings.spread * between, size=clusters)
        centres += pool.normal(scale=settings.domain_spread, size=settings.domains)[self._domain]
        self.difficulty = centres[self.cluster] + pool.normal(scale=settings.spread * within, size=count)  # (N,)
        self.difficulty -= self.difficulty.mean()
        self.vectors = self._embed(pool, clusters)  # (N, D) float16
        self.question_ids = [f"{number:032x}" for number in range(count)]
        self._validation = pool.permutation(count)[:VALIDATION]
        self.ability = np.full(clusters, settings.start)
        self._generator = np.random.default_rng([seed, 5])
        self._uses: Counter[str] = Counter()
        self._place: dict[str, int] = {}
        self._version = 0

    def _embed(self, pool: np.random.Generator, clusters: int) -> np.ndarray:
        """Cluster directions and one direction of difficulty, mixed by a random rotation, and noise for what they lack."""
        quality = self.settings.quality
        scaled = (self.difficulty - self.difficulty.mean()) / self.difficulty.std()
        noisy = quality * scaled + np.sqrt(1 - quality**2) * pool.normal(size=len(scaled))
        directions = pool.normal(size=(clusters, DIMENSIONS - 1)) / np.sqrt(DIMENSIONS - 1)
        own = pool.normal(size=(len(scaled), DIMENSIONS - 1)) / np.sqrt(DIMENSIONS - 1)
        rest = quality * directions[self.cluster] + np.sqrt(1 - quality**2) * own
        rotation, _ = np.linalg.qr(pool.normal(size=(DIMENSIONS, DIMENSIONS)))
        return (np.column_stack([noisy, rest]) @ rotation).astype(np.float16)

    def success(self, questions: np.ndarray) -> np.ndarray:
        """Success rates of these questions under the policy of now."""
        return 1 / (1 + np.exp(self.difficulty[questions] - self.ability[self.cluster[questions]]))

    def accuracy(self) -> float:
        """Mean success rate over a fixed sample of the pool."""
        return float(self.success(self._validation).mean())

    def true_difficulty(self, questions: np.ndarray) -> np.ndarray:
        """Failure rate of these questions under the policy of now."""
        return 1 - self.success(questions)

    def roll_out(self, uids: Sequence[str], questions: Sequence[int]) -> tuple[list[tuple[float, ...]], int]:
        """Binomial rewards; see `step_loop.World`."""
        right = self._generator.random((len(uids), self._rollouts)) < self.success(np.array(questions))[:, None]
        self._place.update(zip(uids, questions, strict=True))
        return [tuple(row) for row in right.astype(float).tolist()], right.size * self.settings.tokens

    def train(self, fresh: Sequence[Group], replayed: Sequence[Group]) -> int:
        """Move the abilities; see the module's docstring."""
        settings = self.settings
        taught: dict[int, float] = defaultdict(float)
        old = {group.uid for group in replayed}
        for group in (*fresh, *replayed):
            rate = sum(group.rewards) / len(group.rewards)
            worth = 4 * rate * (1 - rate)
            if group.uid in old:
                age = self._version - group.policy_version
                worth *= settings.replay_worth * np.exp(-age / settings.age_scale)
            worth *= settings.reuse_worth ** self._uses[group.uid]
            self._uses[group.uid] += 1
            taught[int(self.cluster[self._place[group.uid]])] += worth
        self._version += 1
        total = sum(taught.values())
        if total > 0:
            share = np.zeros(len(self.ability))
            share[list(taught)] = np.array(list(taught.values())) / total
            by_domain = np.bincount(self._domain, weights=share)[self._domain] / settings.clusters
            clusters = len(self.ability)
            specific = 1 - settings.transfer - settings.domain_transfer
            spreading = settings.transfer / clusters + settings.domain_transfer * by_domain + specific * share
            self.ability += settings.rate * np.sqrt(total / self._batch) * clusters * spreading
        if settings.drift:
            self.ability += self._generator.normal(scale=settings.drift, size=len(self.ability))
        return (len(fresh) + len(replayed)) * self._rollouts * settings.tokens

    def forget(self, uids: Iterable[str]) -> None:
        """Drop what is known of groups that nobody will ask for again."""
        for uid in uids:
            self._place.pop(uid, None)
            self._uses.pop(uid, None)
