"""Rollouts that never finish and rewards that are none, on verl's real ReplayBuffer and TransferQueue; no training."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.verl

CAPACITY = 64


@pytest.fixture(scope="module")
def queue(tmp_path_factory):
    """Ray and TransferQueue with room for 64 rows."""
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    folder = tmp_path_factory.mktemp("r")
    ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=str(folder), object_store_memory=200_000_000)
    storage = {"total_storage_size": CAPACITY, "num_data_storage_units": 1}
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
    yield tq
    tq.close()
    ray.shutdown()


@pytest.fixture
def replay_buffer(queue):
    """verl's buffer as its synchronous trainer makes it, over an empty store."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    buffer = ReplayBuffer("sync", OmegaConf.create({}), 1, "drop", None, poll_interval=0.05)
    yield buffer
    for partition, items in (queue.kv_list() or {}).items():
        if items:
            queue.kv_clear(keys=list(items), partition_id=partition)


def put_prompt(queue, uid: str, status: str) -> None:
    queue.kv_put(key=uid, partition_id="train", tag={"is_prompt": True, "status": status, "global_steps": 1})


def put_rows(keys: list[str], rewards: list[float | None]) -> None:
    from verl_dots.integration import store

    for key, reward in zip(keys, rewards, strict=True):
        row = torch.zeros(1, 3)
        fields = {"responses": row}
        if reward is not None:
            fields["rm_scores"] = torch.tensor([[0.0, 0.0, reward]])
        store.write([key], fields, [{"status": "success", "global_steps": 1, "response_len": 3}])


def bounded(buffer, limit_s, workers=list):
    from verl_dots.integration import waiting

    waiting.bound(buffer, limit_s, workers, lambda uid: f"question of {uid}")


def test_rollouts_that_never_finish_end_in_an_error_that_names_them(queue, replay_buffer):
    for number in range(5):
        put_prompt(queue, f"u{number}", "finished" if number == 0 else "running")
    bounded(replay_buffer, 1.0)
    start = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        replay_buffer.sample(global_steps=1, partition_id="train", batch_size=5)
    assert time.monotonic() - start < 30
    line = str(caught.value)
    assert "dots.stall_timeout_s=1" in line and "4 prompts still run, first question of u1, question of u2" in line
    assert "\n" not in line


def test_slow_rollouts_are_no_stall(queue, replay_buffer):
    uids = [f"s{number}" for number in range(4)]
    for uid in uids:
        put_prompt(queue, uid, "running")
    bounded(replay_buffer, 3.0)

    def finish() -> None:
        for uid in uids:
            time.sleep(1.5)  # 6 s in all: twice the limit, and never the limit at once
            put_rows([f"{uid}_0_0"], [1.0])
            put_prompt(queue, uid, "finished")

    thread = threading.Thread(target=finish)
    thread.start()
    batch, _ = replay_buffer.sample(global_steps=1, partition_id="train", batch_size=4)
    thread.join()
    assert sorted(batch.keys) == [f"{uid}_0_0" for uid in uids]
    queue.kv_clear(keys=list(batch.keys), partition_id="train")


def test_groups_that_verls_filter_throws_away_are_counted_with_their_tokens(queue):
    """DAPO's filter evicts two groups of equal rewards and asks for others, of which some may be surplus."""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

    from verl_dots.integration import filtered

    def roll_out(names: list[str], rewards: list[float]) -> int:
        for name in names:
            put_rows([f"{name}_{session}_0" for session in range(2)], rewards)
            put_prompt(queue, name, "finished")
        return len(names)

    fresh = iter("cdef")

    def refill(size: int) -> int:
        return roll_out([next(fresh) for _ in range(size)], [0.0, 1.0])

    kinds = {"filter_groups_metric": "reward", "train_batch_size": 1, "gen_batch_size": 1}
    buffer = ReplayBuffer("sync", OmegaConf.create({}), 1, "drop", None, 0.05, refill, **kinds)
    seen = []
    filtered.count(buffer, lambda *counts: seen.append(counts))
    roll_out(["a", "b"], [1.0, 1.0])
    batch, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    queue.kv_clear(keys=list(batch.keys), partition_id="train")
    assert len(batch.keys) == 4
    discarded = metrics.get("training/filter_groups/discarded_surplus_samples", 0)
    assert metrics["training/filter_groups/evicted_samples"] == 2
    assert sum(groups for groups, _ in seen) == 2 + discarded
    assert all(tokens == groups * 2 * 3 for groups, tokens in seen)


def test_without_a_limit_a_dead_worker_is_still_noticed(queue, replay_buffer, monkeypatch):
    import ray

    from verl_dots.integration import waiting

    monkeypatch.setattr(waiting, "PING_EVERY_S", 0.2)

    @ray.remote(num_cpus=0)
    class Worker:
        async def work(self) -> None:
            time.sleep(1)

    workers = [Worker.remote() for _ in range(2)]
    ray.get([worker.__ray_ready__.remote() for worker in workers])
    put_prompt(queue, "d0", "running")
    bounded(replay_buffer, None, lambda: workers)
    threading.Timer(2.0, lambda: ray.kill(workers[1])).start()
    with pytest.raises(RuntimeError, match="an agent-loop worker has died .*: resume from the last checkpoint"):
        replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)


def test_a_broken_connection_alone_ends_nothing(queue, replay_buffer, monkeypatch):
    import ray
    from ray.exceptions import ActorUnavailableError

    from verl_dots.integration import waiting

    looks: list[ray.ObjectRef] = []

    @ray.remote(num_cpus=0)
    def unavailable() -> None:
        raise ActorUnavailableError("the connection broke", None)

    def look() -> ray.ObjectRef:
        looks.append(unavailable.remote())
        return looks[-1]

    actor = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=look))
    monkeypatch.setattr(waiting, "PING_EVERY_S", 0.1)
    ends: list[int] = []
    monkeypatch.setattr(waiting.os, "_exit", ends.append)
    put_prompt(queue, "b0", "running")
    bounded(replay_buffer, 6.0, lambda: [actor])
    with waiting.needing({"it": actor}), pytest.raises(RuntimeError, match="no rollout has finished for"):
        replay_buffer.sample(global_steps=1, partition_id="train", batch_size=1)
    assert len(looks) > 3 and not ends
    with pytest.raises(ActorUnavailableError):
        ray.get(looks[0])


WAITS = """
import os, sys, threading, ray, transfer_queue as tq
from omegaconf import OmegaConf
from verl_dots.integration import store, waiting
waiting.PING_EVERY_S = 0.2
ray.init(address="local", num_cpus=4, include_dashboard=False, _temp_dir=sys.argv[1], object_store_memory=200_000_000)
storage = {"total_storage_size": 64, "num_data_storage_units": 1}
tq.init(OmegaConf.create({"backend": {"SimpleStorage": storage}}))
with waiting.needing(store.processes()):
    tq.kv_put(key="u", partition_id="train", tag={"status": "running"})
    print("held", list(store.row_tags()), flush=True)
    if sys.argv[2] != "none":
        ray.kill(store.processes()[sys.argv[2]])
        store.row_tags()
        threading.Event().wait()
tq.close()
ray.shutdown()
"""


@pytest.mark.parametrize("victim", ["TransferQueueController", "TransferQueueStorageUnit#0", "none"])
def test_a_store_that_dies_ends_the_process_that_waits_for_it(victim, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("s"))
    done = subprocess.run([sys.executable, "-c", WAITS, folder, victim], capture_output=True, text=True, timeout=240)
    assert "held ['u']" in done.stdout, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if "verl-dots: error" in line]
    if victim == "none":
        assert (done.returncode, lines) == (0, [])
    else:
        assert done.returncode == 1 and len(lines) == 1
        assert lines[0].startswith(f"verl-dots: error: {victim} has died (")
        assert lines[0].endswith("): resume from the last checkpoint")


def test_a_reward_that_is_none_or_no_number_is_named(queue, replay_buffer):
    from verl_dots.integration import store

    put_rows(["r_0_0", "r_1_0"], [1.0, 0.0])
    assert store.rewards(["r_0_0", "r_1_0"]) == [1.0, 0.0]
    put_rows(["r_2_0"], [float("nan")])
    with pytest.raises(ValueError, match="a rollout has the reward nan: the reward function must return a finite number"):
        store.rewards(["r_0_0", "r_2_0"])
    put_rows(["r_3_0"], [None])
    with pytest.raises(ValueError, match="a rollout has no reward: .* not None"):
        store.rewards(["r_0_0", "r_3_0"])


def test_a_full_store_is_an_error_and_no_wait(queue, replay_buffer):
    put_rows([f"f_{number}_0" for number in range(8)], [1.0] * 8)
    start = time.monotonic()
    with pytest.raises(Exception, match="(?i)capacity|full|exceed|storage"):
        for first in range(0, 2 * CAPACITY, 16):
            put_rows([f"g_{first + number}_0" for number in range(16)], [1.0] * 16)
    assert time.monotonic() - start < 120
