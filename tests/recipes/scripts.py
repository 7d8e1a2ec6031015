"""The recipes as a user starts them, with a stand-in for Python that prints its arguments instead of training."""

from __future__ import annotations

import functools
import os
import stat
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("run_*_fsdp.sh"))
METHODS = ("grpo", "dots", "rr", "dots_rr", "dapo")
PRESETS = ("default", "paper", "released")
HOME = tempfile.gettempdir()
OUT = os.path.join(HOME, "out_of_the_recipe")
"""Where a recipe would write that must not; no test makes it."""


def start(recipe: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
    """Run a recipe to its end; `PYTHON` is replaced unless given."""
    environment = {"PATH": os.environ["PATH"], "HOME": HOME, "OUT": OUT, "PYTHON": str(_printer()), **variables}
    return subprocess.run(
        ["bash", str(ROOT / "recipes" / recipe), *arguments], env=environment, capture_output=True, text=True, timeout=60
    )


@functools.cache
def _printer() -> Path:
    path = Path(tempfile.mkdtemp()) / "python"
    path.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@functools.cache
def overrides(recipe: str, method: str, preset: str, *arguments: str) -> tuple[str, ...]:
    """verl's command line, as the recipe would hand it to verl."""
    done = start(recipe, *arguments, DRY_RUN="1", METHOD=method, PRESET=preset)
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[:2] == ["-m", "recipes.common.dry_run"], words[:3]
    return tuple(words[2:])
