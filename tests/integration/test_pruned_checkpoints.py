"""Our part of a checkpoint lives as long as verl's: no longer, which fills disks, and no shorter, which loses the replay."""

import types

import pytest
from omegaconf import OmegaConf

pytestmark = pytest.mark.verl


def left_after(tmp_path, step, *, actors, ours, **trainer):
    """Steps whose `dots` folder is left when a run has saved `step`."""
    from verl_dots.integration.checkpoint import _prune

    for name, steps in (("actor", actors), ("dots", ours)):
        for saved in steps:
            (tmp_path / f"global_step_{saved}" / name).mkdir(parents=True)
    config = OmegaConf.create({"trainer": {"default_local_dir": str(tmp_path), **trainer}})
    _prune(types.SimpleNamespace(config=config, global_steps=step))
    return sorted(int(path.parent.name.rpartition("_")[2]) for path in tmp_path.glob("global_step_*/dots"))


def test_what_verl_has_pruned_goes_but_for_the_one_that_verl_is_about_to_replace(tmp_path):
    saved = {"actors": [30, 40], "ours": [10, 20, 30, 40, 50]}
    assert left_after(tmp_path, 50, max_actor_ckpt_to_keep=2, **saved) == [30, 40, 50]


def test_checkpoints_of_before_a_resume_stay_whole_as_verl_leaves_them(tmp_path):
    saved = {"actors": [10, 20, 30, 40], "ours": [10, 20, 30, 40, 50]}
    assert left_after(tmp_path, 50, max_actor_ckpt_to_keep=2, **saved) == [10, 20, 30, 40, 50]


def test_verls_older_key_counts_too(tmp_path):
    saved = {"actors": [20], "ours": [10, 20, 30]}
    assert left_after(tmp_path, 30, remove_previous_ckpt_in_save=True, **saved) == [20, 30]


def test_without_a_limit_everything_stays(tmp_path):
    assert left_after(tmp_path, 30, actors=[20], ours=[10, 20, 30], max_actor_ckpt_to_keep=None) == [10, 20, 30]
