"""The order of a step, over a simulated policy: what is generated, trained on, kept and forgotten."""

import numpy as np
import pytest
from methods import Method
from simulated_world import SimulatedWorld, WorldSettings
from step_loop import StepLoop

from verl_dots.difficulty.kernel import KernelPredictor

SETTINGS = WorldSettings(questions=400)


def run(name, *overrides, preset="default", steps=10, probe=()):
    method = Method.make(name, preset, ["batch=16", *overrides])
    world = SimulatedWorld(SETTINGS, seed=1, batch=16)
    loop = StepLoop(world, method, KernelPredictor(world.vectors) if method.dots.selection.enable else None, probe)
    for step in range(1, steps + 1):
        loop.step(step)
    return loop


def test_grpo_generates_what_it_trains_on_and_goes_through_the_pool_once_an_epoch():
    method = Method.make("grpo", overrides=["batch=16"])
    world = SimulatedWorld(SETTINGS, seed=1, batch=16)
    seen = []
    original = world.roll_out
    world.roll_out = lambda uids, questions: seen.extend(questions) or original(uids, questions)
    loop = StepLoop(world, method, None)
    for step in range(1, 26):
        loop.step(step)
    assert sorted(seen) == list(range(400))
    assert loop.totals.groups == loop.totals.trained_groups == 400
    assert not world._place  # nothing is remembered of groups that are done with


def test_replay_generates_half_and_fills_with_informative_groups():
    half = "replay.fresh_fraction=0.5"
    filled, plain = run("rr", half, steps=20), run("rr", half, "replay.fill=none", steps=20)
    for loop in (filled, plain):
        assert loop.totals.trained_groups == 20 * 16
        assert loop.totals.groups < 20 * 16 * 0.62  # full only while the replay is empty
        assert set(loop.world._place) == {group.uid for group in loop.replay}
    share = [loop.totals.trained_informative / loop.totals.trained_groups for loop in (filled, plain)]
    assert share[0] > 0.95 and share[1] < share[0] - 0.1 and filled.totals.filled > 0 == plain.totals.filled


def test_filter_trains_on_informative_groups_only():
    totals = run("dapo").totals
    assert totals.trained_informative == totals.trained_groups == 160
    assert totals.groups > totals.fresh_informative >= 160


def test_more_is_generated_than_the_batch_holds_and_the_rest_waits_in_the_replay():
    loop = run("dots_rr", "replay.fresh_fraction=2", steps=20)
    assert loop.totals.groups == 20 * 32 and loop.totals.trained_groups == 20 * 16
    assert loop.totals.trained_informative == 20 * 16 < loop.totals.fresh_informative
    assert set(loop.world._place) == {group.uid for group in loop.replay}


@pytest.mark.parametrize(("mode", "first_labels"), [("fresh", 1), ("overlap", 3)])
def test_reference_groups_are_generated_beside_the_batch_and_reused(mode, first_labels):
    loop = run("dots_rr", f"reference.mode={mode}", "reference.size=32", "replay.fresh_fraction=1.0", steps=4, probe=(1, 3))
    assert loop.totals.reference_groups == 2 * 32
    assert loop.totals.groups == 4 * 16 + 64
    assert loop.refreshes[0][0] == first_labels  # overlap: labels serve the next refresh
    assert any(group.source == "reference" for group in loop.replay)


def test_selection_raises_the_informative_share_and_knows_the_difficulties():
    uniform, selected = run("grpo", steps=30), run("dots", steps=30, probe=(29,))
    share = [loop.totals.fresh_informative / loop.totals.fresh_groups for loop in (uniform, selected)]
    assert share[1] > share[0] + 0.1
    (_, estimate, prior, near), = selected.refreshes
    assert estimate > 0.6 and prior > 0.5 and 0 < near < 1


def test_thompson_sampling_learns_from_the_questions_own_groups():
    loop = run("thompson", steps=60)
    failures, successes = loop._beta
    assert loop.totals.groups == 60 * 16 and (failures + successes).max() > 4
    mean = failures / (failures + successes)
    asked = failures + successes > 4
    assert np.corrcoef(mean[asked], loop.world.true_difficulty(np.flatnonzero(asked)))[0, 1] > 0.6
