"""Rollout seeds: repeatable, and different whenever the rollout is another one."""

import itertools

from verl_dots.cpu.seeding import rollout_seed


def test_every_part_of_the_identity_matters():
    parts = [("q1", "q2"), (0, 1), (0, 1), ("train", "val"), (0, 1), (1, 2)]
    seeds = [rollout_seed(*identity) for identity in itertools.product(*parts)]
    assert len(set(seeds)) == len(seeds) == 64
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_seed_is_the_same_in_every_process_and_version():
    assert rollout_seed("0" * 32, 3, 17, "train", 0, 1) == 453174179486819393
