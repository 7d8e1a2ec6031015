"""Sizes and numbers of the log-prob passes and of the step, in this process: no Ray, no model."""

import doctest

import pytest
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.integration.compose import OVERLAY, composed

pytestmark = pytest.mark.verl


def test_the_example_holds():
    from verl_dots.integration import logprobs

    assert doctest.testmod(logprobs) == (0, 2)


@given(size=st.integers(1, 3000), ranks=st.integers(1, 64), limit=st.integers(1, 200))
def test_few_passes_that_divide_and_hardly_any_padding(size, ranks, limit):
    from verl_dots.integration.logprobs import padded_size

    padded, micro_batch = padded_size(size, ranks, limit)
    share = padded // ranks
    assert padded % ranks == 0 and share % micro_batch == 0  # verl/workers/engine/utils.py, prepare_micro_batches
    assert 1 <= micro_batch <= limit
    needed = -(-size // ranks)
    passes = share // micro_batch
    assert passes == -(-needed // limit)
    assert 0 <= share - needed < passes
    assert padded_size(size, ranks, None) == (needed * ranks, None)


@given(passes=st.integers(1, 40), ranks=st.integers(1, 16), limit=st.integers(1, 200))
def test_rows_that_divide_are_left_as_verl_has_them(passes, ranks, limit):
    from verl_dots.integration.logprobs import padded_size

    assert padded_size(passes * limit * ranks, ranks, limit) == (passes * limit * ranks, limit)


def test_actor_and_reference_model_have_settings_of_their_own():
    from verl_dots.integration.logprobs import micro_batch_size

    config = composed(
        *OVERLAY,
        "actor_rollout_ref.actor.use_dynamic_bsz=True",
        "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=False",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=12",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=48",
    ).actor_rollout_ref
    assert micro_batch_size(config.rollout) is None  # follows the actor
    assert micro_batch_size(config.ref) == 12
    config.rollout.log_prob_use_dynamic_bsz = False
    assert micro_batch_size(config.rollout) == 48
    assert micro_batch_size(OmegaConf.create({"log_prob_micro_batch_size_per_gpu": 4})) == 4


def group(uid, rollouts, outputs):
    from verl_dots.types import Group

    keys = tuple(f"{uid}_{session}_{output}" for session in range(rollouts) for output in range(outputs))
    return Group(uid, "q", 0, "selected", keys, tuple(float(session % 2) for session in range(rollouts)), True)


def test_rows_of_a_rollout_count_every_output_and_not_the_failed_sessions():
    from verl_dots.integration.stepstate import StepState

    assert StepState().rows_per_rollout == 1.0
    assert StepState(fresh=[group("a", 8, 1), group("b", 5, 1)]).rows_per_rollout == 1.0
    assert StepState(fresh=[group("a", 8, 3)], reference=[group("b", 8, 1)]).rows_per_rollout == 2.0


def test_generation_time_is_divided_by_the_tokens_generated():
    from verl_dots.integration.stepstate import StepState, generation_timing

    now = StepState(generated_tokens=2000)
    verl = {"timing_s/gen": 3.0, "timing_per_token_ms/gen": 0.5}  # 6,000 tokens trained on
    assert generation_timing(now, verl) == {"timing_per_token_ms/gen": 1.5}
    assert generation_timing(now, {**verl, "dots/reference_seconds": 1.0}) == {"timing_per_token_ms/gen": 2.0}
    assert generation_timing(StepState(), verl) == {}
    assert generation_timing(now, {}) == {}


def test_what_verls_filter_throws_away_was_generated_and_did_not_fail():
    from verl_dots.batch import Batch
    from verl_dots.integration.rows import Submission
    from verl_dots.integration.stepstate import StepState, batch_metrics

    fresh = [group("a", 8, 1), group("b", 8, 1)]
    now = StepState(fresh=fresh, batch=Batch(fresh, []), generated_tokens=100)
    now.submissions = {uid: Submission("q", "explored", place) for place, uid in enumerate("abcde")}
    now.discarded(2, 60)  # c and d; e failed
    metrics = batch_metrics(now, 0)
    assert (metrics["dots/generated_groups"], metrics["dots/failed_groups"]) == (5, 1)
    assert metrics["dots/generated_tokens"] == 160


def test_room_beside_the_replay_is_that_of_the_check():
    from verl_dots.integration import check

    config = composed(*OVERLAY, "data.train_batch_size=16", "actor_rollout_ref.rollout.n=8")
    dots = check.parse(config)
    assert check.groups_of_a_step(config, dots) == 32
    assert check.storage_limit(config) == 100_000
    config.transfer_queue.backend.storage_backend = "MooncakeStore"
    config.transfer_queue.backend.SimpleStorage.total_storage_size = 1
    assert check.storage_limit(config) is None
