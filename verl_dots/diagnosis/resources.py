"""Does the run fit the cluster: logical CPUs, accelerators, TransferQueue's capacity, memory.

Ray counts logical resources. An actor that asks for what the cluster does not have waits for ever, without a message; that
is what these checks are for. Requests of verl 0.9.1 and TransferQueue 0.1.11:

* the TransferQueue controller and each storage unit hold one CPU, storage units round-robin over all nodes;
* each rank is a placement bundle of `cpus_per_rank` (3) CPUs and one accelerator, all bundles of a node on one node;
* agent workers, reward workers and rollout servers hold none, and start where none is free.

Measured with the quickstart: it trains on 5 logical CPUs, which is all of that, and waits for ever on 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from verl_dots.batch import nominal_fresh
from verl_dots.config import DotsConfig
from verl_dots.diagnosis.batch import BatchShape
from verl_dots.diagnosis.finding import Finding, fail, ok, warn

BYTES_PER_TOKEN = 64
"""Host memory of one stored token, all of its fields together (measured)."""

_STORAGE = "transfer_queue.backend.SimpleStorage"


@dataclass(frozen=True)
class Node:
    """One node of the Ray cluster: what is free on it. `memory` in bytes, None where Ray does not say."""

    name: str
    cpus: float
    accelerators: float
    memory: float | None = None


@dataclass(frozen=True)
class Pool:
    """A group of ranks: `nodes` times `per_node` accelerators (the trainer's, a reward model's, a teacher's)."""

    name: str
    nodes: int
    per_node: int


@dataclass(frozen=True)
class Needs:
    """What verl asks Ray for.

    Attributes:
        pools: all groups of ranks.
        storage_units: `num_data_storage_units`; 0 with a backend that is not SimpleStorage.
        accelerator: Ray's name of it, `GPU` or `NPU`.
        cpus_per_rank: CPUs in the bundle of a rank.
    """

    pools: Sequence[Pool]
    storage_units: int
    accelerator: str = "GPU"
    cpus_per_rank: int = 3

    @property
    def ranks(self) -> int:
        return sum(pool.nodes * pool.per_node for pool in self.pools)

    @property
    def cpus(self) -> int:
        """Controller, storage units and ranks."""
        return 1 + self.storage_units + self.cpus_per_rank * self.ranks


def check_accelerators(needs: Needs, nodes: Sequence[Node]) -> list[Finding]:
    """Are there as many accelerators as ranks, and on enough nodes."""
    topic, kind = "accelerators", needs.accelerator
    have = sum(node.accelerators for node in nodes)
    asked = ", ".join(f"{pool.name} {pool.nodes} x {pool.per_node}" for pool in needs.pools)
    if have < needs.ranks:
        remedy = "start Ray with the accelerators it lacks, or lower trainer.n_gpus_per_node"
        if kind != "GPU":  # Ray finds GPUs by itself
            remedy += f"; where Ray does not find them, declare them: +ray_kwargs.ray_init.resources.{kind}={needs.ranks}"
        return [fail(topic, f"Ray has {have:g} {kind} free, the run needs {needs.ranks} ({asked})", remedy)]
    largest = max(needs.pools, key=lambda pool: pool.per_node)
    fitting = sum(node.accelerators >= largest.per_node for node in nodes)
    if fitting < largest.nodes:
        return [
            fail(
                topic,
                f"{fitting} of {len(nodes)} nodes have the {largest.per_node} {kind} of a node of the {largest.name}, "
                f"{largest.nodes} are needed: its placement group waits for ever",
                "lower trainer.n_gpus_per_node and raise trainer.nnodes",
            )
        ]
    return [ok(topic, f"{have:g} {kind} on {len(nodes)} node(s) for {needs.ranks} rank(s) ({asked})")]


def check_cpus(needs: Needs, nodes: Sequence[Node]) -> list[Finding]:
    """Are there enough logical CPUs for every actor to start; too few hang the run without a message."""
    topic = "CPUs"
    have = sum(node.cpus for node in nodes)
    sum_of = (
        f"1 TransferQueue controller + {needs.storage_units} storage unit(s) + {needs.cpus_per_rank} x {needs.ranks} rank(s)"
    )
    if have < needs.cpus:
        return [
            fail(
                topic,
                f"Ray has {have:g} logical CPUs free, the run needs {needs.cpus} ({sum_of}): it would wait for ever",
                f"set ray_kwargs.ray_init.num_cpus={needs.cpus} or more (logical: it may exceed the machine's; where Ray "
                "runs already: ray start --num-cpus, under Slurm --cpus-per-task), or lower "
                f"{_STORAGE}.num_data_storage_units",
            )
        ]
    units = math.ceil(needs.storage_units / max(1, len(nodes)))
    for pool in needs.pools:
        bundle = needs.cpus_per_rank * pool.per_node
        fitting = sum(node.cpus - units >= bundle for node in nodes)
        if fitting < pool.nodes:
            return [
                fail(
                    topic,
                    f"{fitting} of {len(nodes)} nodes have {bundle} logical CPUs beside {units} storage units for the "
                    f"{pool.per_node} ranks of the {pool.name}, {pool.nodes} are needed: it would wait for ever",
                    f"start Ray on each node with --num-cpus={bundle + units + 1} or more",
                )
            ]
    return [ok(topic, f"{have:g} logical CPUs, {needs.cpus} needed ({sum_of})")]


@dataclass(frozen=True)
class Stored:
    """Rows that TransferQueue holds at the same time, at most.

    Attributes:
        replay: rows of the full rollout replay.
        step: rows of one step's batch, reference groups and prompts included.
        validation: rows of a validation that are there at once, None where its size is not known.
        tokens_per_row: longest prompt plus longest response.
    """

    replay: int
    step: int
    validation: int | None
    tokens_per_row: int

    @classmethod
    def of(
        cls, shape: BatchShape, dots: DotsConfig | None, tokens_per_row: int, validation: int | None
    ) -> Stored:
        """Sizes of a run; without `dots` the replay is empty."""
        replay = reference = 0
        prompts = shape.questions
        if dots is not None and dots.replay.enable:
            replay = dots.replay.capacity * shape.rollouts
            prompts = max(prompts, nominal_fresh(prompts, dots.replay))
        if dots is not None and dots.selection.enable and dots.reference.mode != "window":
            reference = dots.reference.size * shape.rollouts
        return cls(replay, prompts * shape.rollouts + reference + prompts, validation, tokens_per_row)

    @property
    def peak(self) -> int:
        """The replay stays while a step runs, and both while verl validates: a step's rows are cleared after its metrics."""
        return self.replay + self.step + (self.validation or 0)


def check_storage(stored: Stored, capacity: int | None) -> list[Finding]:
    """Will the rows fit TransferQueue's `total_storage_size`; None is no limit."""
    topic, key = "storage", f"{_STORAGE}.total_storage_size"
    parts = f"replay {stored.replay:,} + step {stored.step:,}"
    if stored.validation:
        parts += f" + validation {stored.validation:,}"
    if capacity is None:
        return [ok(topic, f"up to {stored.peak:,} rows at once ({parts}), no limit set")]
    enough = _round_up(int(1.5 * stored.peak))
    if stored.peak > capacity:
        return [
            fail(
                topic,
                f"up to {stored.peak:,} rows at once ({parts}) do not fit {key}={capacity:,}: TransferQueue refuses them in "
                "the middle of the run",
                f"set {key}={enough}, or a smaller dots.replay.capacity",
            )
        ]
    if stored.peak > 0.8 * capacity:
        return [
            warn(
                topic,
                f"up to {stored.peak:,} rows at once ({parts}) fill more than 80 % of {key}={capacity:,}, which is shared "
                "out over the storage units",
                f"set {key}={enough}",
            )
        ]
    return [ok(topic, f"up to {stored.peak:,} rows at once ({parts}) of {capacity:,}")]


def _round_up(value: int) -> int:
    """To two significant digits."""
    unit = 10 ** max(0, len(str(value)) - 2)
    return math.ceil(value / unit) * unit


def check_memory(stored: Stored, nodes: Sequence[Node]) -> list[Finding]:
    """Will the stored rows fit the nodes' memory, if every response had its full length."""
    topic = "memory"
    need = stored.peak * stored.tokens_per_row * BYTES_PER_TOKEN / max(1, len(nodes))
    line = (
        f"{stored.peak:,} rows x {stored.tokens_per_row:,} tokens x {BYTES_PER_TOKEN} bytes: {_gigabytes(need)} of host "
        "memory per node at the very most"
    )
    known = [node for node in nodes if node.memory is not None]
    if not known:
        return [ok(topic, line)]
    smallest = min(known, key=lambda node: node.memory)
    beside = f"{line}; {smallest.name} has {_gigabytes(smallest.memory)} free"
    if need > 0.9 * smallest.memory:
        return [fail(topic, beside, f"lower dots.replay.capacity (now {stored.replay:,} rows), or give the job more memory")]
    if need > 0.5 * smallest.memory:
        return [warn(topic, beside, "keep an eye on it, or lower dots.replay.capacity")]
    return [ok(topic, beside)]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
