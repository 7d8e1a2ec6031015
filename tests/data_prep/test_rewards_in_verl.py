"""verl_dots.rewards as verl loads and calls it: through its reward manager, and inside a Ray actor."""

import asyncio

import pytest

pytestmark = pytest.mark.verl

PATH = "pkg://verl_dots.rewards"
SLOW = "\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k^k}}"


def reward_config(**kwargs):
    from omegaconf import OmegaConf

    function = {"path": PATH, "name": "compute_score", "reward_kwargs": kwargs}
    return OmegaConf.create({"reward": {"custom_reward_function": function}})


def test_through_verls_reward_manager(tokenizer_path):
    """The keys of the result arrive as reward_extra_info, and the recipe's reward_kwargs reach the function."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.naive import NaiveRewardManager
    from verl.trainer.ppo.reward import get_custom_reward_fn

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
    tokenizer.add_tokens(["\\boxed{2/4}", "\\boxed{3}", SLOW])

    async def score(text):
        config = reward_config(time_limit=0.5)
        manager = NaiveRewardManager(config, tokenizer, get_custom_reward_fn(config))
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        tensors = {"responses": ids, "attention_mask": torch.ones_like(ids)}
        fields = {
            "data_source": np.array(["math"], dtype=object),
            "reward_model": np.array([{"style": "rule", "ground_truth": "1/2"}], dtype=object),
            "extra_info": np.array([{"answer_kind": "math"}], dtype=object),
        }
        return await manager.run_single(DataProto.from_dict(tensors=tensors, non_tensors=fields))

    right, wrong, slow = (asyncio.run(score(text)) for text in ("\\boxed{2/4}", "\\boxed{3}", SLOW))
    assert [result["reward_score"] for result in (right, wrong, slow)] == [1.0, 0.0, 0.0]
    assert [result["reward_extra_info"]["timed_out"] for result in (right, wrong, slow)] == [0.0, 0.0, 1.0]
    assert right["reward_extra_info"].keys() == wrong["reward_extra_info"].keys() == slow["reward_extra_info"].keys()


def test_in_a_ray_actor():
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote(max_concurrency=4)
        class Scorer:
            def score(self, text):
                from verl_dots.rewards import compute_score

                return compute_score("math", text, "1/2", time_limit=0.5)

        scorer = Scorer.remote()
        results = ray.get([scorer.score.remote(text) for text in ("\\boxed{0.5}", SLOW, "\\boxed{3/6}", "\\boxed{5}")])
        assert [result["score"] for result in results] == [1.0, 0.0, 1.0, 0.0]
        assert [result["timed_out"] for result in results] == [0.0, 1.0, 0.0, 0.0]
    finally:
        ray.shutdown()
