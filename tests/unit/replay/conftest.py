"""Groups and a replay with defaults."""

from verl_dots.replay import RolloutReplay
from verl_dots.types import Group


def group(uid, *, question="q", version=0, rewards=(0.0, 1.0), complete=True):
    keys = tuple(f"{uid}_{session}_0" for session in range(len(rewards)))
    return Group(uid, question, version, "selected", keys, tuple(rewards), complete)


def make(capacity=4, **options):
    return RolloutReplay(capacity=capacity, **{"seed": 1, **options})


def uids(groups):
    return [g.uid for g in groups]
