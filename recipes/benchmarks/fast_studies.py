"""Which runs a study of the fast loop consists of. Runs of one seed come together, so that a killed study is still fair."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Run:
    """One run; `label` names the row of a table, `task` the folder outputs/arithmetic_<task>."""

    task: str
    label: str
    method: str
    seed: int
    preset: str = "default"
    overrides: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Identity: two runs of one name are the same run."""
        return " ".join([self.task, self.method, self.preset, *sorted(self.overrides), f"seed={self.seed}"])


Variant = tuple[str, str, str, tuple[str, ...]]  # label, method, preset, overrides

# The default of `fresh_fraction` is 1 at batches up to 32 and .5 from 64 on; here the share is in the name.
HEADLINE: tuple[Variant, ...] = (
    ("grpo", "grpo", "default", ()),
    ("dots", "dots", "default", ()),
    ("dots_rr fresh .5", "dots_rr", "default", ("replay.fresh_fraction=0.5",)),
    ("dots_rr fresh .75", "dots_rr", "default", ("replay.fresh_fraction=0.75",)),
    ("dots_rr fresh 1", "dots_rr", "default", ("replay.fresh_fraction=1.0",)),
    ("dots_rr fresh 1.5", "dots_rr", "default", ("replay.fresh_fraction=1.5",)),
    ("dapo", "dapo", "default", ()),
    ("rr fresh .5", "rr", "default", ("replay.fresh_fraction=0.5",)),
    ("rr fresh 1", "rr", "default", ("replay.fresh_fraction=1.0",)),
    ("dots_rr paper", "dots_rr", "paper", ()),
    ("dots_rr released", "dots_rr", "released", ()),
    ("thompson", "thompson", "default", ()),
)
CORE = HEADLINE[:7]

TARGETS: tuple[Variant, ...] = (
    ("grpo", "grpo", "default", ()),
    *((f"target {target}", "dots_rr", "default", (f"selection.target={target}",)) for target in (0.5, 0.6, 0.7)),
)
"""The default at other targets."""

ABLATIONS: dict[str, tuple[object, ...]] = {
    "replay.fill": ("none",),
    "replay.fresh_fraction": (0.25, 0.5, 0.75, 1.5),
    "replay.capacity": ("2B", "4B", "16B", "32B"),
    "selection.temperature": (1e-3, 1e-2, 0.3),
    "selection.refresh_every": (1, 4),
    "selection.explore_fraction": (0.0, 0.25, 0.5),
    "reference.window": ("explored",),
    "predictor.posterior": ("false",),
    "loss": ("behaviour",),
    "reference.size": (32, 64, 128, 256),
    "selection.target": (0.3, 0.5, 0.7),
    "replay.max_age": (5, 10, 20),
    "replay.draw": ("informative",),
    "replay.newest_per_question": ("true",),
    "replay.max_weight": ("1.0", "null"),
    "reference.mode": ("overlap", "fresh"),
    "learning_rate": (1.5e-4, 6e-4),
}
"""Changes of one key of dots_rr default, the most important first; `2B` means twice the batch."""


ACCURACY: dict[str, tuple[object, ...]] = {
    "replay.capacity": ("32B",),
    "selection.explore_fraction": (0.5,),
    "selection.temperature": (0.3,),
    "selection.target": (0.5, 0.7),
    "predictor.posterior": ("false",),
    "replay.newest_per_question": ("true",),
}
"""Changes of one key of the accuracy setting, `fresh_fraction` 1 and filled, which is to come near DAPO's filter."""


def headline(
    seeds: Sequence[int],
    batch: int = 32,
    tasks: Sequence[str] = ("x", "y", "x_carry"),
    parts: Sequence[Sequence[Variant]] = (CORE, HEADLINE[len(CORE) :]),
) -> list[Run]:
    """All methods on all tasks, seed by seed: the core first, so that a study that is cut off says something."""
    own = (f"batch={batch}",)
    return [
        Run(task, label, method, seed, preset, over + own)
        for variants in parts
        for seed in seeds
        for task in tasks
        for label, method, preset, over in variants
    ]


def warm_starts(seeds: Sequence[int], variants: Sequence[Variant] = CORE, repeats: int = 2) -> list[Run]:
    """The core where every seed has questions and a warm-started model of its own, outputs/arithmetic_x_<seed> and y_<seed>.

    Trained more than once each: against a single run of GRPO a ratio says more about that run than about ours.
    """
    return [
        run
        for repeat in range(1, repeats + 1)
        for seed in seeds
        for run in headline([100 * repeat + seed], 32, (f"x_{seed}", f"y_{seed}"), (variants,))
    ]


def targets(seeds: Sequence[int]) -> list[Run]:
    """Which failure rate to aim at, at two sizes of the batch."""
    return [
        run
        for seed in seeds
        for run in (*headline([seed], 32, parts=(TARGETS,)), *headline([seed], 64, ("x", "y"), (TARGETS,)))
    ]


def targets_where(override: str, seeds: Sequence[int]) -> list[Run]:
    """The same in another surrounding, GRPO too: one of `methods.OWN_KEYS`."""
    variants = [(*variant[:3], (*variant[3], override)) for variant in TARGETS]
    return headline(seeds, 32, ("x", "y"), (variants,))


def ablations(seeds: Sequence[int], batch: int = 32, tasks: Sequence[str] = ("x", "y")) -> list[Run]:
    """One key at a time around dots_rr default, key by key."""
    own = (f"batch={batch}",)
    runs = [
        Run(task, label, method, seed, "default", own)
        for seed in seeds
        for task in tasks
        for label, method in (("grpo", "grpo"), ("dots_rr default", "dots_rr"))
    ]
    for key, values in ABLATIONS.items():
        for seed in seeds:
            for task in tasks:
                for value in values:
                    text = _value(value, batch)
                    change = f"{key}={text}"
                    runs.append(Run(task, change, "dots_rr", seed, "default", (*own, *_with_minimum(key, text), change)))
    return runs


def accuracy(seeds: Sequence[int], batch: int = 32, tasks: Sequence[str] = ("x", "y")) -> list[Run]:
    """What brings `fresh_fraction` 1 nearer to DAPO's filter; `no selection` is the filled replay alone."""
    full = (f"batch={batch}", "replay.fresh_fraction=1.0")
    changes = [f"{key}={_value(value, batch)}" for key, values in ACCURACY.items() for value in values]
    runs = []
    for seed in seeds:
        for task in tasks:
            runs.append(Run(task, "fresh 1, no selection", "rr", seed, "default", full))
            runs += [Run(task, f"fresh 1, {change}", "dots_rr", seed, "default", (*full, change)) for change in changes]
    return runs


def _value(value: object, batch: int) -> str:
    """`2B` is twice the batch."""
    return str(int(value[:-1]) * batch) if isinstance(value, str) and value.endswith("B") else str(value)


def _with_minimum(key: str, text: str) -> tuple[str, ...]:
    """A reference set below `reference.min_size` needs that lowered."""
    return ("reference.min_size=16",) if key == "reference.size" and int(text) < 64 else ()


STUDIES: dict[str, Callable[[Sequence[int]], list[Run]]] = {
    "headline": headline,
    "batch16": lambda seeds: headline(seeds, 16),
    "batch64": lambda seeds: headline(seeds, 64, ("x", "y"), (CORE,)),  # a run takes a minute
    "again": lambda seeds: headline(seeds, 32, ("y",), (CORE,)),  # one pool on other seeds: does it repeat?
    "warm_starts": warm_starts,
    "targets": targets,
    "targets_warm_starts": lambda seeds: warm_starts(seeds, TARGETS, repeats=3),
    "targets_no_std": lambda seeds: targets_where("norm_by_std=false", seeds),
    "targets_fast": lambda seeds: targets_where("learning_rate=6e-4", seeds),
    "ablations": ablations,
    "accuracy": accuracy,
}
