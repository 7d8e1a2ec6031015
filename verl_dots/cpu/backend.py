"""Registers engine, rollout and agent loop of the CPU path with verl: `model.external_lib=verl_dots.cpu.backend`."""

from verl.workers.rollout.base import _ROLLOUT_REGISTRY
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from verl_dots.cpu import agent_loop, engine  # noqa: F401  both register on import

ROLLOUT_NAME = "dots_cpu"


def _load_replica() -> type[RolloutReplica]:
    from verl_dots.cpu.replica import CPUReplica

    return CPUReplica


RolloutReplicaRegistry.register(ROLLOUT_NAME, _load_replica)
# verl 0.9.1 has no function to add an adapter; the table itself is the only way in.
_ROLLOUT_REGISTRY[(ROLLOUT_NAME, "async")] = "verl_dots.cpu.replica.ServerAdapter"
