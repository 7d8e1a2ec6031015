"""verl's single-turn agent loop, with a seed for every rollout. Importing this module registers `dots_cpu_agent`.

verl sends the rollout server prompt ids and a random request id. A run repeats only if the randomness of a rollout
depends on what the rollout is (`verl_dots.cpu.seeding`).
"""

from typing import Any

from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, register
from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils as tu

from verl_dots.cpu.seeding import rollout_seed
from verl_dots.types import question_id_of_row

PARTITION_FIELD = "__partition__"
OCCURRENCE_FIELD = "__occurrence__"


@register("dots_cpu_agent")
class SeededAgentLoop(SingleTurnAgentLoop):
    async def run(self, sampling_params: dict[str, Any], priority: int = 0, **kwargs) -> AgentLoopOutput:
        seed = rollout_seed(
            question_id_of_row(kwargs.get("extra_info"), list(kwargs["raw_prompt"])),
            rollout=int(kwargs["session_id"]),
            policy_version=int(kwargs["global_steps"]),
            partition=str(kwargs.get(PARTITION_FIELD, "train")),
            occurrence=int(kwargs.get(OCCURRENCE_FIELD, 0)),
            run_seed=int(self.rollout_config.seed),
        )
        return await super().run({**sampling_params, "seed": seed}, priority=priority, **kwargs)


class PartitionedAgentLoopManager(AgentLoopManagerTQ):
    """Marks prompts with their partition, which verl does not hand to the agent loop.

    Set `actor_rollout_ref.rollout.agent.agent_loop_manager_class=verl_dots.cpu.agent_loop.PartitionedAgentLoopManager`.
    """

    def generate_sequences(self, prompts: TensorDict) -> None:
        validate = "validate" in prompts and bool(prompts["validate"])
        tu.assign_non_tensor_data(prompts, PARTITION_FIELD, "val" if validate else "train")
        super().generate_sequences(prompts)
