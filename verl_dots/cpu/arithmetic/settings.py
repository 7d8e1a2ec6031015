"""What the warm-started model depends on. Light: no torch."""

import hashlib
import json
from dataclasses import asdict, dataclass, replace

from verl_dots.cpu.arithmetic.task import CARRY_SLIPS, TENS_SLIPS, Mix, Slips

RECIPE = 2  # raise it when a change of the code changes the model that the same settings give
LENGTH_WEIGHTS = (3, 3, 2, 1, 1, 1)


@dataclass(frozen=True)
class Stage:
    """`decay` is the learning rate at the end of the stage as a fraction of that at its start."""

    steps: int
    mix: Mix
    slips: Slips
    decay: float = 1.0


_FIRST = Stage(900, Mix(LENGTH_WEIGHTS, ((3, 3, 3),)), CARRY_SLIPS)
_SECOND = Stage(300, Mix(LENGTH_WEIGHTS, ((2, 3, 4),)), TENS_SLIPS, decay=0.1)
STAGES = {
    # Errors follow the operation and its operand, so the difficulty can be read off the question.
    "tens_slip": (_FIRST, _SECOND),
    # Errors need a carry, so the difficulty hangs on the digits of the running values: hard to read off.
    "carry_slip": (_FIRST, replace(_SECOND, slips=CARRY_SLIPS)),
}


@dataclass(frozen=True)
class ModelSize:
    """width 64, 2 layers, 4 heads: about 110,000 parameters."""

    width: int = 64
    layers: int = 2
    heads: int = 4

    def __post_init__(self):
        if min(self.width, self.layers, self.heads) < 1 or self.width % (2 * self.heads):
            raise ValueError(f"width {self.width} must be a multiple of twice the heads ({self.heads}): change one")


@dataclass(frozen=True)
class WarmStart:
    """Everything the warm-started model depends on."""

    task: str = "tens_slip"
    size: ModelSize = ModelSize()
    seed: int = 0
    learning_rate: float = 3e-3
    batch_size: int = 128

    def __post_init__(self):
        if self.task not in STAGES:
            raise ValueError(f"task {self.task!r} is unknown: use one of {', '.join(STAGES)}")

    @property
    def stages(self) -> tuple[Stage, ...]:
        return STAGES[self.task]

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)

    def settings(self) -> dict:
        return {**asdict(self), "stages": [asdict(stage) for stage in self.stages]}

    def key(self) -> str:
        """Names a cached model: a hash of everything above."""
        return hashlib.sha256(json.dumps([RECIPE, self.settings()]).encode()).hexdigest()[:16]
