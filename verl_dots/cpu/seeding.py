"""The seed of a rollout. Needs neither verl nor Ray."""

import hashlib
import json


def rollout_seed(question_id: str, rollout: int, policy_version: int, partition: str, occurrence: int, run_seed: int) -> int:
    """A seed in [0, 2**63) that depends on what the rollout is, and on nothing else.

    Args:
        question_id: identity of the question (`verl_dots.types.question_id`).
        rollout: number of the rollout in its group, from 0.
        policy_version: verl's global step when the prompt was submitted.
        partition: `train` or `val`.
        occurrence: how often the question was submitted before; without it, overlapping or refilled prompts of one step
            would be copies of each other.
        run_seed: `actor_rollout_ref.rollout.seed`.
    """
    identity = json.dumps([question_id, rollout, policy_version, partition, occurrence, run_seed])
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:8], "big") >> 1
