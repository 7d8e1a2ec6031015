"""What a method of the benchmarks is: a `dots` block and the settings of verl that belong to it.

    >>> Method.make("dots_rr", "default", ["replay.fresh_fraction=0.75", "batch=32"]).dots.replay.capacity
    256

`grpo` and `rr` draw uniformly; `dapo` regenerates until a batch of informative groups is full; `thompson` selects by a Beta
posterior of each question's own groups, without a predictor (in the manner of MoPPS, arXiv 2507.04632).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import yaml

from verl_dots.config import DotsConfig

METHODS = ("grpo", "dapo", "dots", "rr", "dots_rr", "thompson")
PRESETS = ("default", "paper", "released")
OWN_KEYS = {
    "batch": int, "steps": int, "rollouts": int, "mini_batches": int, "learning_rate": float,
    "loss": str, "norm_by_std": bool, "mean_of_rows": bool,
}  # fmt: skip
PAPER_BATCH = 512
"""The batch for which the paper's reference set of 256 and buffer of 512 groups were made."""
SMALLEST_REFERENCE = 32
"""Below this many labels a predictor has nothing to learn from."""


@dataclass(frozen=True)
class Method:
    """A named method with everything that decides how it trains.

    Attributes:
        name: one of `METHODS`.
        dots: the resolved `dots` block; its seed is set by the run.
        batch: questions per step. rollouts: per question. steps: of the run. mini_batches: updates per step.
        loss: `decoupled` or `behaviour`.
        norm_by_std: advantages are divided by the group's standard deviation.
        mean_of_rows: `seq-mean-token-mean` instead of `token-mean`.
    """

    name: str
    dots: DotsConfig
    batch: int = 16
    rollouts: int = 8
    steps: int = 80
    mini_batches: int = 2
    learning_rate: float = 3e-4
    loss: str = "decoupled"
    norm_by_std: bool = True
    mean_of_rows: bool = False

    @classmethod
    def make(cls, name: str, preset: str = "default", overrides: Sequence[str] = (), seed: int = 1) -> Method:
        """Read a preset from verl_dots/configs/dots and apply `key=value` overrides, of `dots` keys or of `OWN_KEYS`.

        The presets `paper` and `released` have sizes made for batches of 512: reference set (at least 32) and capacity
        are scaled to `batch` unless an override sets them.

        Raises:
            ValueError: an unknown method, preset or key, or a value out of range.
        """
        if name not in METHODS:
            raise ValueError(f"method {name!r} is unknown: use one of {', '.join(METHODS)}")
        own, block = {}, {}
        for override in overrides:
            key, separator, text = override.partition("=")
            if not separator:
                raise ValueError(f"override {override!r} is not key=value")
            value = parse_value(text)
            if key in OWN_KEYS:
                own[key] = OWN_KEYS[key](value)
            else:
                _set(block, key.removeprefix("dots."), value)
        settings = preset_settings(preset)
        batch = own.get("batch", cls.batch)
        if preset != "default":
            settings["dots"] = merge(settings["dots"], scaled_sizes(settings["dots"], batch))
        dots = merge(settings["dots"], block)
        dots = merge(dots, {"seed": seed, "selection": {"enable": name in ("dots", "dots_rr")}})
        dots = merge(dots, {"replay": {"enable": name in ("rr", "dots_rr")}})
        resolved = DotsConfig.from_mapping(dots).resolve(batch)
        return replace(cls(name, resolved, **settings["own"]), **own)


def scaled_sizes(dots: Mapping[str, Any], batch: int) -> dict[str, Any]:
    """Reference set and capacity of a preset made for batches of 512, for `batch`."""
    size = max(SMALLEST_REFERENCE, dots["reference"]["size"] * batch // PAPER_BATCH)
    return {"reference": {"size": size}, "replay": {"capacity": dots["replay"]["capacity"] * batch // PAPER_BATCH}}


def preset_settings(preset: str) -> dict[str, Any]:
    """`dots` block and own settings of a preset file, on top of the default.

    Raises:
        ValueError: an unknown preset.
    """
    if preset not in PRESETS:
        raise ValueError(f"preset {preset!r} is unknown: use one of {', '.join(PRESETS)}")
    folder = resources.files("verl_dots") / "configs" / "dots"
    tree = yaml.safe_load((folder / "default.yaml").read_text(encoding="utf-8"))
    if preset != "default":
        tree = merge(tree, yaml.safe_load((folder / f"{preset}.yaml").read_text(encoding="utf-8")))
    actor, algorithm = tree["actor_rollout_ref"]["actor"], tree.get("algorithm", {})
    own = {
        "loss": actor["policy_loss"]["loss_mode"].removeprefix("dots_"),
        "norm_by_std": algorithm.get("norm_adv_by_std_in_grpo", True),
        "mean_of_rows": actor.get("loss_agg_mode", "token-mean") == "seq-mean-token-mean",
    }
    return {"dots": tree["dots"], "own": own}


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the leaves of `changes`; neither is altered."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def parse_value(text: str) -> Any:
    """A YAML scalar; `1e-3` is a number too, which YAML 1.1 takes for text."""
    value = yaml.safe_load(text)
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _set(block: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        block = block.setdefault(parent, {})
    block[last] = value
