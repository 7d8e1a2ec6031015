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


def quickstart_overrides(folder: Path, **variables: str) -> list[str]:
    """verl's command line of the quickstart, with a virtual environment in `folder` whose Python notes its arguments."""
    requirements = b"".join((ROOT / name).read_bytes() for name in ("setup.py", "constraints-cpu.txt"))
    checksum = subprocess.run(["cksum"], input=requirements, capture_output=True, check=True).stdout.split()[0].decode()
    (folder / "bin").mkdir()
    (folder / f".verl-dots-{checksum}").touch()
    (folder / "bin" / "activate").write_text(f'PATH="{folder}/bin:$PATH"\n')
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {folder}/words\n")
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    environment = {"PATH": os.environ["PATH"], "HOME": HOME, "VENV": str(folder), "OUT": str(folder / "out"), **variables}
    environment.setdefault("TASK_DIR", str(folder / "task"))
    subprocess.run(["bash", str(ROOT / "recipes/quickstart_cpu.sh")], env=environment, check=True, timeout=60)
    words = (folder / "words").read_text().splitlines()
    start = words.index("verl.trainer.main_ppo") + 1
    return words[start : words.index("-m", start)]
