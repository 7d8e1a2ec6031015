"""What verl sees of the rollout server: the replica (trainer side) and the adapter (inside the FSDP worker)."""

import os
from collections.abc import Iterator

import ray
import torch
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica

from verl_dots.cpu.server import RolloutServer


def _server_name(replica_rank: int, suffix: str = "") -> str:
    return f"dots_cpu_server_{replica_rank}{suffix}"


class CPUReplica(RolloutReplica):
    """One server per FSDP rank."""

    async def launch_servers(self) -> None:
        if self.world_size != 1:
            raise ValueError(
                f"a replica of {self.world_size} ranks is not supported on a CPU: "
                "set actor_rollout_ref.rollout.tensor_model_parallel_size=1"
            )
        server = (
            ray.remote(RolloutServer)
            .options(
                name=_server_name(self.replica_rank, self.name_suffix),
                num_cpus=0,
                max_concurrency=self.max_concurrency,
            )
            .remote(self.config, self.model_config, self.replica_rank)
        )
        await server.ready.remote()
        self.servers = [server]
        self._server_handle = server
        self._server_address = _server_name(self.replica_rank)

    async def sleep(self) -> None:
        await self.servers[0].wait_for_requests_to_drain.remote()
        await super().sleep()


class ServerAdapter(BaseRollout):
    """Lives in the FSDP worker and pushes its weights to the server with the same number."""

    def __init__(self, config, model_config, device_mesh, replica_rank: int = -1):
        super().__init__(config, model_config, device_mesh)
        self.replica_rank = int(os.environ["RANK"]) if replica_rank == -1 else replica_rank
        self._server = None

    @property
    def server(self):
        if self._server is None:  # servers are launched after the engine
            self._server = ray.get_actor(_server_name(self.replica_rank))
        return self._server

    async def resume(self, tags: list[str]) -> None:
        await self.server.wake_up.remote(tags=tags)

    async def release(self) -> None:
        await self.server.sleep.remote()

    @torch.no_grad()
    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **kwargs,
    ) -> None:
        assert wire_format == "named_tensors", wire_format
        state = {name: tensor.detach().float().cpu().clone() for name, tensor in weights}
        await self.server.update_weights.remote(state, global_steps=global_steps)
