import numpy as np
import pytest
from methods import Method
from simulate import simulate
from simulated_world import SimulatedWorld, WorldSettings

from verl_dots.types import Group


def group(world, uid, question, rewards, version=0):
    world._place[uid] = question
    return Group(uid, world.question_ids[question], version, "selected", (uid,), rewards, True)


def test_only_mixed_groups_teach_and_the_middle_teaches_most():
    gains = []
    for right in (0, 2, 4, 8):
        world = SimulatedWorld(WorldSettings(questions=100), seed=1, batch=1)
        world.train([group(world, "u", 3, (1.0,) * right + (0.0,) * (8 - right))], [])
        gains.append(world.ability.mean() - world.settings.start)
    assert gains[0] == gains[3] == 0
    assert gains[2] == pytest.approx(world.settings.rate) and gains[1] == pytest.approx(gains[2] * np.sqrt(0.75))


def test_what_is_trained_learns_most_and_the_rest_by_transfer():
    world = SimulatedWorld(WorldSettings(questions=100, domains=2, clusters=3), seed=1, batch=1)
    question = int(np.flatnonzero(world.cluster == 0)[0])
    world.train([group(world, "u", question, (1.0, 0.0) * 4)], [])
    gain = world.ability - world.settings.start
    assert gain[0] > gain[1] == pytest.approx(gain[2]) and gain[1] > gain[3] == pytest.approx(gain[5]) and gain[3] > 0


def test_replayed_groups_teach_less_with_age_and_use():
    gains = []
    for uses, version in ((0, 0), (0, 30), (1, 0)):
        world = SimulatedWorld(WorldSettings(questions=100), seed=1, batch=1)
        old = group(world, "u", 3, (1.0, 0.0) * 4)
        world._uses["u"], world._version = uses, version
        world.train([], [old])
        gains.append(world.ability.mean() - world.settings.start)
    fresh = world.settings.rate
    assert fresh > gains[0] > gains[1] and gains[0] > gains[2] > 0


@pytest.mark.parametrize("quality", [0.0, 0.5, 1.0])
def test_quality_is_the_correlation_of_the_embeddings_with_difficulty(quality):
    world = SimulatedWorld(WorldSettings(questions=4000, quality=quality, cluster_share=0.0), seed=1)
    inputs = np.column_stack([world.vectors.astype(float), np.ones(4000)])
    fitted = inputs @ np.linalg.lstsq(inputs, world.difficulty, rcond=None)[0]
    assert np.corrcoef(fitted, world.difficulty)[0, 1] == pytest.approx(quality, abs=0.1)


def test_a_run_has_the_form_of_the_fast_loops():
    method = Method.make("dots_rr", overrides=["batch=8", "steps=12", "replay.fresh_fraction=0.5"])
    result = simulate(method, SimulatedWorld(WorldSettings(questions=300), 1, batch=8))
    assert result["curve"]["step"][-1] == 12 and len(set(map(len, result["curve"].values()))) == 1
    assert result["final_accuracy"] > result["curve"]["accuracy"][0] and result["groups"] < 12 * 8
