"""The doctor's arithmetic: what divides, what fits, what would wait for ever."""

import dataclasses
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from verl_dots.config import DotsConfig
from verl_dots.diagnosis.batch import BatchShape, check_batch, check_epochs, check_pool, check_shares
from verl_dots.diagnosis.finding import Finding, fail, failed, ok, show, warn
from verl_dots.diagnosis.resources import (
    Needs,
    Node,
    Pool,
    Stored,
    check_accelerators,
    check_cpus,
    check_memory,
    check_storage,
)

PAPER = BatchShape(512, rollouts=8, mini_batch=64, ranks=8, data_parallel=8, micro_batch=8, log_prob_micro_batch=16)
"""The paper's batch on 8 accelerators."""


def dots(**blocks):
    return DotsConfig.from_mapping(blocks).resolve(PAPER.questions)


def levels(findings):
    return [finding.level for finding in findings]


def only_failure(findings):
    (found,) = [finding for finding in findings if finding.level == "fail"]
    assert "\n" not in found.message and found.remedy
    return found


# ------------------------------------------------------------------------------------------------- batch


def test_the_papers_batch_divides():
    (line,) = check_batch(PAPER)
    assert line == ok("batch", "512 questions x 8 rollouts = 4096 rows, 8 update(s) of 512 on 8 data-parallel rank(s)")


@pytest.mark.parametrize(
    ("change", "message", "remedy"),
    [
        ({"mini_batch": 65, "rollouts": 7}, "= 455 rows does not divide by 8 data-parallel ranks", "a multiple of 8"),
        ({"micro_batch": 5}, "64 rows of a mini-batch per rank do not divide by", "set it to 1,"),
        ({"micro_batch": 48}, "do not divide by", "set it to 16,"),
        ({"log_prob_micro_batch": 48}, "512 rows per rank do not divide by", "set it to 16,"),
        ({"engine_ranks": 3}, "8 ranks do not divide into rollout engines of 3", "a divisor of 8"),
    ],
)
def test_what_verl_would_only_notice_in_the_first_step(change, message, remedy):
    found = only_failure(check_batch(dataclasses.replace(PAPER, **change)))
    assert message in found.message and remedy in found.remedy


@given(
    questions=st.integers(1, 64), rollouts=st.integers(1, 16), mini=st.integers(1, 64), ranks=st.integers(1, 16),
    micro=st.integers(1, 32),
)  # fmt: skip
def test_a_batch_passes_exactly_when_verls_assertions_hold(questions, rollouts, mini, ranks, micro):
    """engine_workers.py: mini-batch % ranks; engine/utils.py: rows per rank % micro-batch; padding makes the rest divide."""
    shape = BatchShape(questions, rollouts, mini, ranks, ranks, micro_batch=micro)
    rows = mini * rollouts
    assert failed(check_batch(shape)) == (rows % ranks != 0 or (rows // ranks) % micro != 0)


def test_the_remedy_for_a_mini_batch_is_one():
    shape = dataclasses.replace(PAPER, rollouts=6, mini_batch=10, micro_batch=None)
    assert "a multiple of 4" in only_failure(check_batch(shape)).remedy
    assert not failed(check_batch(dataclasses.replace(shape, mini_batch=12, log_prob_micro_batch=None)))


def test_dynamic_batches_divide_always():
    assert not failed(check_batch(dataclasses.replace(PAPER, micro_batch=None, log_prob_micro_batch=None)))


def test_a_batch_that_verl_would_fill_with_padding_is_doubtful():
    findings = check_batch(dataclasses.replace(PAPER, questions=500, log_prob_micro_batch=None))
    assert levels(findings) == ["ok", "warn"]
    assert "verl fills each batch with 96 empty rows" in findings[1].message


# ------------------------------------------------------------------------------------------------- shares and pool


def test_fresh_and_replayed_groups():
    assert "256 groups generated and 256 replayed per step" in check_shares(PAPER, dots())[0].message
    small = dataclasses.replace(PAPER, questions=32)
    assert "all 32 groups generated; replayed" in check_shares(small, dots(replay={"fresh_fraction": 1.0}))[0].message
    (line,) = check_shares(PAPER, dots(replay={"enable": False}))
    assert line.message == "off: all 512 groups of a step are generated"


@pytest.mark.parametrize(
    ("replay", "message"),
    [
        ({"fresh_fraction": 1.0, "fill": "none"}, "512 groups generated for 512 places and dots.replay.fill=none"),
        ({"fresh_fraction": 2.0, "fill": "none"}, "1024 groups generated for 512 places and dots.replay.fill=none"),
        ({"capacity": 100}, "capacity=100 is below the 256 groups a step replays"),
        ({"fresh_fraction": 0.1, "max_age": 4}, "max_age=4 x 51 fresh groups cannot fill 461 replayed places"),
    ],
)
def test_a_replay_that_cannot_give_its_share(replay, message):
    findings = check_shares(PAPER, dots(replay=replay))
    assert levels(findings) == ["ok", "warn"] and message in findings[1].message


@pytest.mark.parametrize("steps", [None, 60])  # verl divides by the steps of an epoch in either case
def test_fewer_rows_than_a_batch_have_no_epoch(steps):
    shape = dataclasses.replace(PAPER, steps=steps)
    assert "511 rows are fewer than data.train_batch_size=512" in only_failure(check_epochs(shape, 511)).message
    assert check_epochs(dataclasses.replace(PAPER, steps=1), 512) == []


def test_epochs_that_end_a_run_before_its_steps():
    shape = dataclasses.replace(PAPER, steps=60, epochs=15)
    assert check_epochs(shape, 4 * 512) == []
    (found,) = check_epochs(shape, 4 * 512 - 1)
    assert found.level == "warn" and "total_epochs=15 ends the run after 45 steps" in found.message
    assert "trainer.total_epochs=20" in found.remedy


@pytest.mark.parametrize(
    ("blocks", "pool", "message"),
    [
        ({}, 1000, "512 questions per prediction (2 steps x 256) are more than half of the 1000"),
        ({"replay": {"fresh_fraction": 2.0}}, 700, "a step draws 1024 questions from 700: 324 are drawn again"),
        ({"selection": {"explore_fraction": 0.0005}}, 40_000, "of 512 questions rounds to none"),
        ({"selection": {"explore_fraction": 0.0}, "reference": {"window": "explored"}}, 40_000, "never renewed"),
        ({"reference": {"mode": "fresh", "size": 2_000}}, 1_500, "size=2000 exceeds the 1500 questions"),
    ],
)
def test_what_selection_needs_from_the_pool(blocks, pool, message):
    (found,) = check_pool(PAPER, dots(**blocks), pool)
    assert found.level == "warn" and message in found.message


def test_a_large_pool_is_fine():
    assert check_pool(PAPER, dots(), 40_000) == []
    assert check_pool(PAPER, dots(selection={"enable": False}), 600) == []


# ------------------------------------------------------------------------------------------------- resources

CPU_QUICKSTART = Needs((Pool("trainer", 1, 1),), storage_units=1, accelerator="NPU")
NODE_OF_8 = Needs((Pool("trainer", 1, 8),), storage_units=8)


def test_cpus_of_the_quickstart_and_of_a_node_of_eight():
    assert CPU_QUICKSTART.cpus == 1 + 1 + 3
    assert NODE_OF_8.cpus == 1 + 8 + 24


def test_one_cpu_too_few_waits_for_ever():
    assert not failed(check_cpus(NODE_OF_8, [Node("a", 33, 8)]))
    found = only_failure(check_cpus(NODE_OF_8, [Node("a", 32, 8)]))
    assert "Ray has 32 logical CPUs free, the run needs 33" in found.message and "wait for ever" in found.message
    assert "ray_kwargs.ray_init.num_cpus=33" in found.remedy


def test_ranks_of_a_node_need_their_cpus_on_one_node():
    two = Needs((Pool("trainer", 2, 8),), storage_units=8)
    even, uneven = [Node("a", 40, 8), Node("b", 40, 8)], [Node("a", 70, 8), Node("b", 20, 8)]
    assert not failed(check_cpus(two, even))
    found = only_failure(check_cpus(two, uneven))
    assert "1 of 2 nodes have 24 logical CPUs beside 4 storage units" in found.message


def test_accelerators_missing_altogether_or_on_one_node():
    found = only_failure(check_accelerators(CPU_QUICKSTART, [Node("a", 8, 0)]))
    assert "Ray has 0 NPU free, the run needs 1" in found.message
    assert "+ray_kwargs.ray_init.resources.NPU=1" in found.remedy
    found = only_failure(check_accelerators(NODE_OF_8, [Node("a", 64, 4), Node("b", 64, 4)]))
    assert "0 of 2 nodes have the 8 GPU" in found.message
    assert "NPU" not in found.remedy
    assert not failed(check_accelerators(NODE_OF_8, [Node("a", 64, 8)]))


def test_pools_of_a_reward_model_count():
    needs = Needs((Pool("trainer", 1, 8), Pool("reward model", 1, 2)), storage_units=2)
    assert (needs.ranks, needs.cpus) == (10, 1 + 2 + 30)
    assert failed(check_accelerators(needs, [Node("a", 64, 8)]))


def test_rows_of_a_run():
    stored = Stored.of(PAPER, dots(replay={"capacity": 512}), tokens_per_row=4096, validation=None)
    assert (stored.replay, stored.step) == (512 * 8, 512 * 8 + 512)
    assert stored.peak == 4096 + 4608
    fresh = Stored.of(PAPER, dots(reference={"mode": "fresh", "size": 256}), 4096, None)
    assert fresh.step == stored.step + 256 * 8
    assert Stored.of(PAPER, dots(replay={"fresh_fraction": 1.5}), 4096, None).step == 768 * 8 + 768
    validated = dataclasses.replace(stored, validation=16_000)
    assert validated.peak == 4096 + 4608 + 16_000  # replay and step stay while verl validates
    assert Stored.of(PAPER, None, 4096, None).replay == 0


def test_storage_too_small_names_a_size_that_fits():
    stored = Stored.of(PAPER, dots(), 4096, None)
    found = only_failure(check_storage(stored, 10_000))
    assert "do not fit transfer_queue.backend.SimpleStorage.total_storage_size=10,000" in found.message
    size = int(found.remedy.split("total_storage_size=")[1].split(",")[0])
    assert levels(check_storage(stored, size)) == ["ok"]
    assert levels(check_storage(stored, int(1.1 * stored.peak))) == ["warn"]
    assert levels(check_storage(stored, None)) == ["ok"]


def test_memory_of_the_smallest_node_counts():
    stored = Stored(replay=4096 * 8, step=4608, validation=None, tokens_per_row=4096)  # 9.8 GB
    assert levels(check_memory(stored, [Node("a", 8, 8, 500e9)])) == ["ok"]
    assert levels(check_memory(stored, [Node("a", 8, 8, 12e9)])) == ["warn"]
    found = only_failure(check_memory(stored, [Node("a", 8, 8, 100e9), Node("b", 8, 8, 5e9)]))
    assert "4.9 GB of host memory per node" in found.message and "b has 5.0 GB free" in found.message
    assert levels(check_memory(stored, [])) == ["ok"]


# ------------------------------------------------------------------------------------------------- findings


def test_findings_are_lines_without_colour_where_there_is_no_terminal():
    stream = io.StringIO()
    findings = [ok("batch", "fine"), warn("replay", "odd"), fail("CPUs", "[too] few", "set ray_init.num_cpus=34")]
    show(findings, Console(file=stream, width=40))
    assert stream.getvalue().splitlines() == [
        "ok      batch          fine",
        "warning replay         odd",
        "FAIL    CPUs           [too] few",
        "                       -> set ray_init.num_cpus=34",
    ]


def test_a_failure_says_what_to_do():
    with pytest.raises(AssertionError):
        Finding("fail", "CPUs", "too few")
    assert failed([ok("a", "b"), fail("c", "d", "e")]) and not failed([warn("a", "b")])
