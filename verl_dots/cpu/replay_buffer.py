"""verl's store of current trajectories, polled fast and read in submission order.

For runs with verl's own trainer: `trainer.v1.sampler.custom_sampler.{path=pkg://verl_dots.cpu.replay_buffer,
name=FastReplayBuffer}`. (verl calls it a replay buffer; it is not rollout replay.)
"""

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_dots.integration.store import Rows

POLL_SECONDS = 0.05  # verl's 2 s would be most of a step of a small model


class FastReplayBuffer(ReplayBuffer):
    """`ReplayBuffer` with a short poll interval and an order that does not depend on which rollout ended first.

    verl gives a custom sampler none of its filter and refill settings; `trainer.v1.sampler.sampler_kwargs` can pass them
    (`filter_groups_metric`, `train_batch_size`, `gen_batch_size`, `max_inflight_gen_batches`).
    """

    def __init__(self, *args, sampler_kwargs=None, **kwargs):
        options = {"poll_interval": POLL_SECONDS, **(sampler_kwargs or {})}
        super().__init__(*args, sampler_kwargs=sampler_kwargs, **{**kwargs, **options})

    def _materialize_batch(
        self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: dict[str, dict]
    ) -> Rows:
        submitted = {uid: i for i, uid in enumerate(self.prompt_global_steps[partition_id])}

        def position(key: str) -> tuple[int, int, int]:
            uid, session, output = key.rsplit("_", 2)
            return submitted.get(uid, len(submitted)), int(session), int(output)

        ordered = {key: partition_snapshot[key] for key in sorted(partition_snapshot, key=position)}
        return super()._materialize_batch(partition_id, selected_prompt_uids, ordered)
