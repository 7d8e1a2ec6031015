"""A run on two Ray nodes, one of which is lost in the middle of a step and comes back. Measured: tests/README.md.

Two nodes and a head that holds nothing; the lost one is that without the trainer, whose death the driver notices at once.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time

import pytest

from tests.integration.nodes import JOIN, TOKEN, actors, free_port, start_node
from tests.integration.processes import end, ended, wait_until
from tests.integration.runs import Run, ended_well, quickstart, start
from tests.integration.test_faults import BOUND_S, checkpointed, errors, last_step

pytestmark = [pytest.mark.verl, pytest.mark.long]

STEPS = 4
TWO_NODES = ["trainer.nnodes=2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32"]
TWO_NODES += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64"]
STORE = "transfer_queue.backend.SimpleStorage"
TWO_NODES += [f"{STORE}.num_data_storage_units=2", f"++{STORE}.required_node_resource=NPU"]  # one on each


@pytest.fixture
def short_folder():
    """For Ray's sockets, whose paths may have 107 characters."""
    folder = tempfile.mkdtemp(prefix="vd.", dir="/tmp")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_lost_node_ends_the_run_and_once_it_is_back_the_run_goes_on(short_folder, tmp_path):
    port = free_port()
    overrides = [*JOIN, *TWO_NODES, f"ray_kwargs.ray_init.address=127.0.0.1:{port}"]
    with contextlib.ExitStack() as stack:

        def node(*options: str, cpus: int = 9, npus: int = 1):
            process = start_node(tmp_path, port, *options, cpus=cpus, npus=npus)
            stack.callback(end, process)
            return process

        node("--head", "--include-dashboard=false", f"--temp-dir={short_folder}", cpus=0, npus=0)
        nodes = [node(), node()]
        process = start(tmp_path, *overrides, steps=STEPS, SAVE_FREQ="1", **TOKEN)
        stack.callback(end, process)
        wait_until(lambda: last_step(tmp_path) >= 1, process)
        time.sleep(1.0)  # into the next step
        lost = next(node for node in nodes if not any("TaskRunner" in name for name in actors(node)))
        held, whole = actors(lost), last_step(tmp_path)
        end(lost)
        code, seconds = ended(process, BOUND_S)
        run = Run(tmp_path, code, "")
        print(f"lost after step {whole} with {held}: code {code} after {seconds:.0f} s; {errors(run.log)}")
        assert code not in (0, None)
        assert any("WorkerDict" in name or "RolloutReplayWorker" in name for name in held)
        assert "died" in run.log
        assert checkpointed(tmp_path) >= whole

        node()
        resumed = quickstart(tmp_path, *overrides, steps=STEPS, SAVE_FREQ="1", RESUME="auto", **TOKEN)
        ended_well(resumed)
    assert [line["step"] for line in resumed.steps()] == list(range(1, STEPS + 1))
    seen = [(observation.step, observation.question_id) for observation in resumed.observations()]
    assert len(set(seen)) == len(seen) and {step for step, _ in seen} == set(range(1, STEPS + 1))
