"""SIGKILL of the whole run at random moments, a resume after each, and the end must equal a run without kills.

    python -m tests.soak.kills --kills 10 --steps 24 --out outputs/kills

Each start saves after every step. One step later it is killed, at a random moment of the next step and a half; the result
says which of the kills fell in a save. About a minute and a half a kill.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from tests.integration.processes import end
from tests.integration.runs import Run, quickstart, start
from verl_dots.files import Parser, run_cli

WITHIN_STEPS = 1.5
"""Of the length of the step before: the moments reach past the next step and its save."""


def parser() -> argparse.ArgumentParser:
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--kills", type=int, default=10, help="default: %(default)s")
    result.add_argument("--steps", type=int, default=24, help="training steps (default: %(default)s)")
    result.add_argument("--out", type=Path, default=Path("outputs/kills"), help="default: %(default)s")
    result.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    return result


def identity(run: Run, step: int) -> tuple:
    """What must be equal in a step: questions and loss, which rewards and tokens make."""
    record = run.probe(step)
    return list(record["questions"].values()), record["pg_loss"]


def unfinished(out: Path) -> dict[str, int]:
    """Save that was not completed -> when it was last touched (ns): a folder of ours under its temporary name, or one that
    verl has not marked as the newest checkpoint yet."""
    latest = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    done = int(latest.read_text()) if latest.exists() else 0
    folders = [path for path in out.glob("checkpoints/global_step_*") if int(path.name.rsplit("_", 1)[1]) > done]
    folders += out.glob("checkpoints/global_step_*/.dots-*")
    names = {str(path.relative_to(out / "checkpoints")): path for path in folders}
    return {name: max(inner.stat().st_mtime_ns for inner in [path, *path.rglob("*")]) for name, path in names.items()}


def killed(out: Path, steps: int, moment: float) -> dict:
    """Start or resume, let one more step pass, and kill at `moment`, in [0, 1) of the time that follows.

    Returns:
        The newest checkpoint then, and the saves that this kill cut short.
    """
    for path in (out / "probe").glob("store-*.json"):
        path.unlink()
    before = unfinished(out)
    process = start(out, steps=steps, SAVE_FREQ="1", RESUME="auto")
    try:
        while process.poll() is None and not list((out / "probe").glob("store-*.json")):
            time.sleep(0.02)
        time.sleep(moment * WITHIN_STEPS * Run(out, 0, "").steps()[-1]["timing_s/step"])
    finally:
        alive = process.poll() is None
        end(process)
    latest = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    cut = sorted(name for name, touched in unfinished(out).items() if before.get(name) != touched)
    found = {"checkpoint": latest.read_text() if latest.exists() else "none", "was_running": alive, "cut_saves": cut}
    print(json.dumps(found), flush=True)
    return found


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    rng = np.random.default_rng(args.seed)
    out = args.out.resolve()
    for name in ("whole", "killed"):
        (out / name).mkdir(parents=True, exist_ok=True)
    whole = quickstart(out / "whole", steps=args.steps)
    kills = [killed(out / "killed", args.steps, moment) for moment in rng.uniform(size=args.kills)]
    last = quickstart(out / "killed", steps=args.steps, SAVE_FREQ="1", RESUME="auto")
    differing = [step for step in range(1, args.steps + 1) if identity(whole, step) != identity(last, step)]
    logged = [line["step"] for line in last.steps()] == list(range(1, args.steps + 1))
    found = {"kills": kills, "differing_steps": differing, "every_step_logged_once": logged}
    found["in_a_save"] = sum(bool(kill["cut_saves"]) for kill in kills)
    (out / "kills.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
    survived = [kill for kill in kills if not kill["was_running"]]
    return int(bool(survived or differing) or not logged or last.returncode != 0)


if __name__ == "__main__":
    run_cli(main)
