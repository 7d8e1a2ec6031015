"""The CPU rollout server, driven as verl drives it, without Ray: a plain object in an event loop."""

import asyncio
import os
import time

import pytest
import torch

os.environ.setdefault("VERL_PLATFORM", "cpu")
pytestmark = pytest.mark.verl
pytest.importorskip("verl")

from omegaconf import OmegaConf  # noqa: E402
from verl.workers.config import RolloutConfig  # noqa: E402

from verl_dots.cpu.arithmetic.model import build_model, build_tokenizer  # noqa: E402
from verl_dots.cpu.arithmetic.settings import ModelSize  # noqa: E402
from verl_dots.cpu.server import RolloutServer  # noqa: E402

SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_model(ModelSize(32, 1, 2), seed=0).save_pretrained(folder)
    build_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def server(model_folder) -> RolloutServer:
    config = RolloutConfig(name="dots_cpu", dtype="float64", prompt_length=16, response_length=40, ignore_eos=True)
    return RolloutServer(config, OmegaConf.create({"path": str(model_folder)}), replica_rank=0)


def ask(server: RolloutServer, seed: int, **params):
    return server.generate([3, 4, 5], {**SAMPLING, "seed": seed, **params}, request_id=f"r{seed}")


def test_requests_give_the_same_in_any_order_and_share_a_batch(server):
    sizes = []
    decode = server.decoder.decode
    server.decoder.decode = lambda requests, aborted: sizes.append(len(requests)) or decode(requests, aborted)

    async def drive():
        await server.wake_up()
        first = await asyncio.gather(*(ask(server, seed) for seed in range(6)))
        second = await asyncio.gather(*(ask(server, seed) for seed in reversed(range(6))))
        return first, second[::-1]

    first, second = asyncio.run(drive())
    assert [o.token_ids for o in first] == [o.token_ids for o in second]
    assert len({tuple(o.token_ids) for o in first}) == 6
    assert sizes == [6, 6]
    assert all(o.stop_reason == "completed" and len(o.log_probs) == len(o.token_ids) == 40 for o in first)


def test_requests_wait_until_the_cache_is_awake(server):
    async def drive():
        waiting = asyncio.create_task(ask(server, 1))
        await asyncio.sleep(0.1)
        before = waiting.done()
        await server.wake_up(tags=["weights"])
        await asyncio.sleep(0.1)
        after_weights = waiting.done()
        await server.wake_up(tags=["kv_cache"])
        output = await asyncio.wait_for(waiting, 10)
        await server.sleep()
        asleep = asyncio.create_task(ask(server, 2))
        await asyncio.sleep(0.1)
        held = not asleep.done()
        asleep.cancel()
        return before, after_weights, output, held

    before, after_weights, output, held = asyncio.run(drive())
    assert not before and not after_weights and held
    assert output.stop_reason == "completed"


def test_a_request_that_gave_up_and_a_nap_while_gathering_do_no_harm(server):
    async def drive():
        await server.wake_up()
        gone, kept = asyncio.create_task(ask(server, 1)), asyncio.create_task(ask(server, 2))
        await asyncio.sleep(0.01)  # both are being gathered
        await server.sleep()
        gone.cancel()
        await asyncio.sleep(0.2)
        held = not kept.done()
        await server.wake_up()
        return held, await asyncio.wait_for(kept, 10)

    held, output = asyncio.run(drive())
    assert held and output.stop_reason == "completed"


def test_new_weights_and_policy_version(server, model_folder):
    async def drive():
        await server.wake_up()
        old = await ask(server, 1)
        state = {name: tensor.float() * 3 for name, tensor in server.model.state_dict().items()}
        await server.update_weights(state, global_steps=7)
        return old, await ask(server, 1), state

    old, new, state = asyncio.run(drive())
    assert old.token_ids != new.token_ids
    assert (old.extra_fields["global_steps"], new.extra_fields["global_steps"]) == (None, 7)
    for name, tensor in server.model.state_dict().items():
        assert torch.equal(tensor, state[name].double()), name


def test_weights_of_another_model_are_refused(server):
    with pytest.raises(AssertionError, match="weights differ"):
        asyncio.run(server.update_weights({"other.weight": torch.zeros(1)}))


def test_abort_ends_what_runs_and_what_waits(server):
    server.config.max_num_seqs = 1  # the second request waits for the first
    forward, steps = server.model.forward, []

    def slow(*args, **kwargs):
        steps.append(None)
        time.sleep(0.02)
        return forward(*args, **kwargs)

    server.model.forward = slow

    async def drive():
        await server.wake_up()
        running, waiting = asyncio.create_task(ask(server, 1)), asyncio.create_task(ask(server, 2))
        while len(steps) < 3:
            await asyncio.sleep(0.01)
        result = await server.abort_all_requests(reject_request=True)
        rejected = await ask(server, 3)
        outputs = await asyncio.gather(running, waiting)
        await server.resume_generation()
        return result, rejected, outputs, await ask(server, 1)

    result, rejected, (running, waiting), again = asyncio.run(drive())
    assert result["aborted_count"] == 1
    assert [o.stop_reason for o in (running, waiting, rejected)] == ["aborted"] * 3
    assert 3 <= len(running.token_ids) < 40 and waiting.token_ids == rejected.token_ids == []
    assert again.stop_reason == "completed" and again.token_ids[: len(running.token_ids)] == running.token_ids


def test_an_error_reaches_the_request_and_the_server_goes_on(server):
    async def drive():
        await server.wake_up()
        with pytest.raises(ValueError, match="text only"):
            await server.generate([3], dict(SAMPLING), "r", image_data=["x"])
        with pytest.raises(ValueError, match="not supported"):
            await ask(server, 1, min_p=0.2)
        with pytest.raises(IndexError):
            await server.generate([3, 400], {**SAMPLING, "seed": 1}, "r")  # no such token
        return await ask(server, 1)

    assert asyncio.run(drive()).stop_reason == "completed"


def test_requests_without_a_seed_get_different_ones(server):
    async def drive():
        await server.wake_up()
        return await asyncio.gather(*(server.generate([3, 4, 5], dict(SAMPLING), f"r{i}") for i in range(4)))

    assert len({tuple(o.token_ids) for o in asyncio.run(drive())}) == 4


def test_stop_strings_use_the_models_tokenizer(server):
    async def drive():
        await server.wake_up()
        free = await ask(server, 1)
        text = server.decoder.detokenize(free.token_ids)
        stop = text[5:7]
        return free.token_ids, stop, (await ask(server, 1, stop=[stop])).token_ids

    free, stop, stopped = asyncio.run(drive())
    assert stopped == free[: len(stopped)]
    assert stop in server.decoder.detokenize(stopped)
    assert stop not in server.decoder.detokenize(stopped[:-1])
