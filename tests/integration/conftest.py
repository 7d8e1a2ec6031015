"""The verl runs that the integration tests share: each starts once, the first time a test asks for it."""

import shutil

import pytest

from tests.integration.runs import ended_well, quickstart, start, stop, wait_for


@pytest.fixture(scope="session")
def main_run(tmp_path_factory):
    """DOTS and RR at their defaults, 8 steps, checkpoints after 4 and 8."""
    return ended_well(quickstart(tmp_path_factory.mktemp("main"), steps=8, SAVE_FREQ="4"))


@pytest.fixture(scope="session")
def resumed_run(tmp_path_factory):
    """The same run, killed in its fifth or sixth step and started again."""
    out = tmp_path_factory.mktemp("killed")
    process = start(out, steps=8, SAVE_FREQ="4")
    wait_for(out / "probe" / "store-0005.json", process)
    stop(process)
    assert (out / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "4"
    shutil.rmtree(out / "probe")
    return ended_well(quickstart(out, steps=8, SAVE_FREQ="4", RESUME="auto"))


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory):
    """verl's own synchronous GRPO, one mini-batch a step."""
    return ended_well(quickstart(tmp_path_factory.mktemp("plain"), method="grpo", steps=3, MINI_BATCH="16"))


@pytest.fixture(scope="session")
def switched_off_run(tmp_path_factory):
    """Our trainer with selection and replay off, otherwise the same."""
    off = ["dots.selection.enable=False", "dots.replay.enable=False"]
    return ended_well(quickstart(tmp_path_factory.mktemp("off"), *off, steps=3, MINI_BATCH="16"))


@pytest.fixture(scope="session")
def paper_run(tmp_path_factory):
    """The paper's preset on two ranks with a KL loss: fresh reference set, behaviour form, log-probs of fresh rows only."""
    return ended_well(
        quickstart(
            tmp_path_factory.mktemp("paper"),
            "dots.reference.size=16",
            "dots.reference.min_size=8",
            "trainer.n_gpus_per_node=2",
            "ray_kwargs.ray_init.num_cpus=12",
            "ray_kwargs.ray_init.resources.NPU=2",
            "actor_rollout_ref.actor.use_kl_loss=True",
            # the reference model's log-probs share a column with the actor's, which are float32
            "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype=fp32",
            "+actor_rollout_ref.ref.fsdp_config.mixed_precision.reduce_dtype=fp32",
            # divides few ranks' shares: most of these passes are padded
            "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=7",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",
            steps=4,
            PRESET="paper",
        )
    )


@pytest.fixture(scope="session")
def overlap_run(tmp_path_factory):
    """Reference rollouts together with the step's own; more of these than the batch has places; a small replay."""
    return ended_well(
        quickstart(
            tmp_path_factory.mktemp("overlap"),
            "dots.reference.mode=overlap",
            "dots.reference.size=8",
            "dots.reference.min_size=8",
            "dots.replay.fresh_fraction=1.75",
            "dots.replay.capacity=20",
            "dots.replay.max_age=2",
            steps=5,
            SAVE_FREQ="5",
        )
    )


@pytest.fixture(scope="session")
def replay_only_run(tmp_path_factory):
    """Replay without selection, corrected for the rollout engine through verl's own rollout correction."""
    return ended_well(
        quickstart(
            tmp_path_factory.mktemp("replay"),
            "dots.replay.behaviour=rollout",
            "algorithm.rollout_correction.rollout_is=token",
            "algorithm.rollout_correction.rollout_is_threshold=2.0",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            method="rr",
            steps=4,
        )
    )
