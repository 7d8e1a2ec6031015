"""DifficultySampler: which questions come next, and the batch sampler through which verl's dataloader fetches them.

The trainer decides (`refresh`, `request`), the dataloader only fetches: every request becomes one batch of `batches`, the
object to hand to the loader. Give the loader `sampler.batches`, never the sampler itself: torchdata's StatefulDataLoader
saves and restores any sampler that can be saved, and does so lazily at the first `iter()`, which would wipe what was
requested before. The sampler's own state travels in the `dots` part of the checkpoint.

    >>> sampler = DifficultySampler(["a", "b", "c", "d"], target=0.5, temperature=0.1, refresh_every=2,
    ...                             explore_fraction=0.0, seed=1)
    >>> sampler.refresh(np.array([0.0, 1.0, 0.5, 1.0]), size=4)
    >>> [draw.question_id for draw in sampler.request(1)], next(sampler.batches)
    (['c'], [2])
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from torch.utils.data import Sampler

from verl_dots.selection import selection_order
from verl_dots.types import Draw, Source

_STREAM = 1
"""Second word of the seed: sampler and replay share `dots.seed` and must not share their random numbers."""


class RequestedBatches(Sampler[list[int]]):
    """The batch sampler the dataloader sees: one list of row numbers per request, first in first out, without end.

    Its state is empty on purpose. Without these two methods a StatefulDataLoader would restore it by skipping as many
    batches as were fetched before; with a real state it would overwrite what was requested since.
    """

    def __init__(self, pool_size: int) -> None:
        self._pool_size = pool_size
        self._queue: deque[list[int]] = deque()

    def put(self, rows: list[int]) -> None:
        self._queue.append(rows)

    @property
    def pending(self) -> int:
        """Batches requested and not yet fetched."""
        return len(self._queue)

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        if not self._queue:
            raise RuntimeError(
                "the dataloader drew a batch that nobody requested: a prefetching dataloader would make selections stale, "
                "set data.dataloader_num_workers=0"
            )
        return self._queue.popleft()

    def __len__(self) -> int:
        return self._pool_size

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to restore: see the class docstring."""


class DifficultySampler(Sampler[list[int]]):
    """Orders the pool by how close each question's difficulty is to a target, with a uniformly explored share.

    The pool is the set of questions: rows with the same question id are one question, fetched by its first row. A refresh
    makes an order of the pool; requests take questions from its front. A question never comes twice until the whole pool
    is used up; then the pool is ordered anew from the same difficulties, and what the running request already holds goes
    to the back, so a request no larger than the pool has no question twice.

    Sources of the draws: `explored` ones are a uniform sample of the pool. Without difficulties the whole order is
    uniform, so all its draws are `explored`. `selected` ones are drawn by difficulty from what exploration left.

    Random draws are made over the questions in sorted order of their ids, so they do not depend on the order of the file.
    A question new to the file joins at the next refresh, since until then nothing was predicted for it.

    Attributes:
        pool: question ids in order of first appearance; `refresh` takes difficulties in this order.
        batches: the batch sampler for the dataloader.
        dropped: ids that the last `load_state_dict` had to drop because they are not in the pool.
    """

    def __init__(
        self,
        question_ids: Sequence[str],
        *,
        target: float,
        temperature: float,
        refresh_every: int,
        explore_fraction: float,
        seed: int,
    ) -> None:
        """Args are those of `SelectionConfig`; `question_ids` has one id per row of the loaded data set.

        Raises:
            ValueError: the data set is empty.
        """
        self._row: dict[str, int] = {}
        for row, question in enumerate(question_ids):
            self._row.setdefault(question, row)
        if not self._row:
            raise ValueError("the training data set has no questions: nothing can be selected")
        self.pool = list(self._row)
        self.batches = RequestedBatches(len(self.pool))
        self.dropped: list[str] = []
        self._target, self._temperature = target, temperature
        self._refresh_every, self._explore_fraction = refresh_every, explore_fraction
        self._generator = np.random.default_rng([seed, _STREAM])
        self._sorted = sorted(self.pool)
        position = {question: i for i, question in enumerate(self.pool)}
        self._sorted_to_pool = np.array([position[question] for question in self._sorted])  # (N,)
        self._occurrences: Counter[str] = Counter()
        # The current order, over the M questions that were in the pool when it was made.
        self._members: list[str] = []  # sorted
        self._difficulty: np.ndarray | None = None  # (M,)
        self._size = 0
        self._order: deque[tuple[int, bool]] = deque()  # (index into members, explored), the next one in front

    # ------------------------------------------------------------------------------------------------ decisions

    def needs_refresh(self, step: int) -> bool:
        """A new order is due before `step` (from 1) draws: every `refresh_every` steps, and when nothing is left."""
        return (step - 1) % self._refresh_every == 0 or not self._order

    def refresh(self, difficulty: np.ndarray | None, size: int) -> None:
        """Start a new order, which replaces what is left of the old one.

        `floor(explore_fraction * size + .5)` questions are drawn uniformly first, then the others by difficulty; the
        explored ones are spread evenly over the first `size`, so that every step gets its share. What follows after
        `size` are selected ones. Where the pool is smaller than `size`, it stands in for `size`, lap by lap.

        Args:
            difficulty: failure rates in [0, 1] in the order of `pool`, shape (N,); None: uniform order, all explored.
            size: questions expected until the next refresh, >= 1: `refresh_every` times the fresh groups of a step.

        Raises:
            ValueError: a difficulty that is NaN or outside [0, 1].
        """
        assert size >= 1, size
        if difficulty is not None:
            difficulty = np.asarray(difficulty, dtype=np.float64)
            assert difficulty.shape == (len(self.pool),), (difficulty.shape, len(self.pool))
            difficulty = difficulty[self._sorted_to_pool]
        self._members, self._difficulty, self._size = list(self._sorted), difficulty, size
        self._start_lap(())

    def request(self, size: int) -> list[Draw]:
        """Take the next `size` >= 1 questions and queue them as the next batch of the dataloader."""
        assert size >= 1, size
        assert self._members, "request before the first refresh"
        draws: list[Draw] = []
        for _ in range(size):
            if not self._order:
                self._start_lap({draw.question_id for draw in draws})
            index, explored = self._order.popleft()
            draws.append(self._take(self._members[index], "explored" if explored else "selected"))
        self.batches.put([draw.row for draw in draws])
        return draws

    def draw_reference(self, size: int) -> list[Draw]:
        """Draw `min(size, N)` different questions uniformly, `size` >= 1, and queue them as the next batch.

        The order of `request` neither notices nor changes.
        """
        assert size >= 1, size
        indices = self._generator.permutation(len(self._sorted))[:size]
        draws = [self._take(self._sorted[index], "reference") for index in indices]
        self.batches.put([draw.row for draw in draws])
        return draws

    def occurrence(self, question_id: str) -> int:
        """How many times this question was taken so far; `Draw.occurrence` has the number before that draw."""
        return self._occurrences[question_id]

    def _take(self, question: str, source: Source) -> Draw:
        draw = Draw(self._row[question], question, source, self._occurrences[question])
        self._occurrences[question] += 1
        return draw

    def _start_lap(self, defer: Iterable[str]) -> None:
        """Order all members anew; those in `defer` go to the back."""
        count = len(self._members)
        size = min(self._size, count)
        shuffled = self._generator.permutation(count)
        if self._difficulty is None:
            lap = [(int(index), True) for index in shuffled]
        else:
            explored = shuffled[: int(self._explore_fraction * size + 0.5)]
            rest = np.setdiff1d(np.arange(count), explored)
            if len(rest):
                ranks = selection_order(self._difficulty[rest], self._target, self._temperature, self._generator)
                rest = rest[ranks]
            lap = _spread(explored.tolist(), rest.tolist(), size)
        defer = set(defer)
        self._order = deque(sorted(lap, key=lambda entry: self._members[entry[0]] in defer) if defer else lap)  # stable

    # ------------------------------------------------------------------------------------------------ torch and checkpoint

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.pool)

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact continuation needs, as plain JSON values; questions are named by id.

        Take it when every requested batch was fetched: a queued one belongs to a trainer step, which is not saved.
        """
        assert not self.batches.pending, f"{self.batches.pending} requested batches were not fetched"
        return {
            "generator": self._generator.bit_generator.state,
            "members": list(self._members),
            "difficulty": None if self._difficulty is None else self._difficulty.tolist(),
            "size": self._size,
            "order": [index for index, _ in self._order],
            "explored": [int(explored) for _, explored in self._order],
            "occurrences": dict(self._occurrences),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken; `dropped` then names the ids that the pool no longer has."""
        assert not self.batches.pending, "load the sampler's state before anything is requested"
        self._generator.bit_generator.state = state["generator"]
        members = state["members"]
        kept = [i for i, question in enumerate(members) if question in self._row]
        new_index = {old: new for new, old in enumerate(kept)}
        self._members = [members[i] for i in kept]
        self._difficulty = None if state["difficulty"] is None else np.array(state["difficulty"], dtype=np.float64)[kept]
        self._size = state["size"]
        entries = zip(state["order"], state["explored"], strict=True)
        self._order = deque((new_index[i], bool(explored)) for i, explored in entries if i in new_index)
        occurrences = state["occurrences"]
        self._occurrences = Counter({q: count for q, count in occurrences.items() if q in self._row})
        self.dropped = sorted(question for question in {*members, *occurrences} if question not in self._row)


def _spread(explored: list[int], selected: list[int], size: int) -> list[tuple[int, bool]]:
    """Explored ones evenly over the first `size` places, selected ones in order on all others."""
    places = {(2 * j + 1) * size // (2 * len(explored)): index for j, index in enumerate(explored)}
    following = iter(selected)
    count = len(explored) + len(selected)
    return [(places[i], True) if i in places else (next(following), False) for i in range(count)]
