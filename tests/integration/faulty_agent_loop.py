"""Named in an agent-loop file by test_faults.py: our agent loop, with rollouts that come back empty."""

from verl.workers.rollout.replica import TokenOutput

from verl_dots.cpu.agent_loop import SeededAgentLoop


class _Silent:
    """A rollout engine that answers every request with no token."""

    async def generate(self, **request) -> TokenOutput:
        return TokenOutput(token_ids=[], log_probs=[], stop_reason="completed", extra_fields={"global_steps": None})


class EmptyAnswers(SeededAgentLoop):
    """The first rollout of a question that begins with 7 has no token; that of one that begins with 3 has no output."""

    async def run(self, sampling_params, priority=0, **kwargs):
        digit = kwargs["raw_prompt"][0]["content"][0]
        if int(kwargs["session_id"]) == 0 and digit == "7":
            self.server_manager = _Silent()
        if int(kwargs["session_id"]) == 0 and digit == "3":
            return []
        return await super().run(sampling_params, priority=priority, **kwargs)
