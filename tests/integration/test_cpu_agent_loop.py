"""The seed that the CPU path's agent loop puts into a request, with verl's own agent loop around it."""

import asyncio
import os

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
pytestmark = pytest.mark.verl
pytest.importorskip("verl")

from omegaconf import OmegaConf  # noqa: E402
from verl.experimental.agent_loop.agent_loop import DictConfigWrap  # noqa: E402
from verl.utils.dataset.rl_dataset import RLHFDataset  # noqa: E402
from verl.workers.rollout.replica import TokenOutput  # noqa: E402

from verl_dots.cpu.agent_loop import OCCURRENCE_FIELD, PARTITION_FIELD, SeededAgentLoop  # noqa: E402
from verl_dots.cpu.arithmetic.model import build_tokenizer, encode_questions  # noqa: E402
from verl_dots.cpu.seeding import rollout_seed  # noqa: E402
from verl_dots.types import question_id, question_id_of_row  # noqa: E402

QUESTION = "73+8*4________="
PROMPT = {
    "raw_prompt": [{"role": "user", "content": QUESTION}],
    "extra_info": {"question": QUESTION, "question_id": question_id(QUESTION)},
    "session_id": 2,
    "global_steps": 5,
}


class Recorder:
    """Stands where verl's client of the rollout server is; remembers the request."""

    async def generate(self, request_id, *, prompt_ids, sampling_params, **kwargs):
        self.prompt_ids, self.sampling_params = prompt_ids, sampling_params
        return TokenOutput(token_ids=[7, 1], log_probs=[-0.5, -0.1], extra_fields={"global_steps": 5})


def request(**changes) -> Recorder:
    async def drive() -> Recorder:
        recorder = Recorder()
        config = OmegaConf.create(
            {"actor_rollout_ref": {"rollout": {"prompt_length": 16, "response_length": 14, "seed": 9}}, "data": {}}
        )
        loop = SeededAgentLoop(
            trainer_config=DictConfigWrap(config),
            server_manager=recorder,
            tokenizer=build_tokenizer(),
            processor=None,
            dataset_cls=RLHFDataset,
            data_config=DictConfigWrap(config.data),
            hf_model_type="qwen2",
        )
        output = await loop.run({"temperature": 0.7}, **{**PROMPT, **changes})
        assert output.response_ids == [7, 1] and output.response_logprobs == [-0.5, -0.1]
        return recorder

    return asyncio.run(drive())


def test_seed_comes_from_what_the_rollout_is():
    asked = request()
    assert asked.sampling_params == {
        "temperature": 0.7,
        "seed": rollout_seed(question_id(QUESTION), 2, 5, "train", 0, 9),
    }
    assert asked.prompt_ids == encode_questions([QUESTION])[0].tolist()


@pytest.mark.parametrize(
    "changes",
    [
        {"session_id": 3},
        {"global_steps": 6},
        {PARTITION_FIELD: "val"},
        {OCCURRENCE_FIELD: 1},
        {"extra_info": {"question": "another"}},
        {"extra_info": {}},
    ],
)
def test_another_rollout_has_another_seed(changes):
    assert request(**changes).sampling_params["seed"] != request().sampling_params["seed"]


def test_without_ids_the_messages_identify_the_question():
    expected = rollout_seed(question_id_of_row(None, PROMPT["raw_prompt"]), 2, 5, "train", 0, 9)
    assert request(extra_info=None).sampling_params["seed"] == expected
