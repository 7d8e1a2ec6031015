"""SIGKILL of the whole run at random moments, a resume after each, and the end must equal a run without kills.

    python -m tests.soak.kills --kills 10 --steps 24 --out outputs/kills

The random moments fall anywhere between start-up and the last step, checkpoints included. About a minute and a half a kill.
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


def parser() -> argparse.ArgumentParser:
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--kills", type=int, default=10, help="default: %(default)s")
    result.add_argument("--steps", type=int, default=24, help="training steps (default: %(default)s)")
    result.add_argument("--out", type=Path, default=Path("outputs/kills"), help="default: %(default)s")
    result.add_argument("--seed", type=int, default=0, help="of the moments (default: %(default)s)")
    return result


def identity(run: Run, step: int) -> tuple:
    """What must be equal in a step: questions, rewards, loss."""
    record = run.probe(step)
    return list(record["questions"].values()), record["pg_loss"]


def killed(out: Path, steps: int, rng: np.random.Generator) -> str:
    """Start or resume, let one more step pass, and kill up to three seconds later; says where the checkpoint stands."""
    for path in (out / "probe").glob("store-*.json"):
        path.unlink()
    process = start(out, steps=steps, SAVE_FREQ="1", RESUME="auto")
    try:
        while process.poll() is None and not list((out / "probe").glob("store-*.json")):
            time.sleep(0.02)
        time.sleep(float(rng.uniform(0, 3)))
    finally:
        end(process)
    latest = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    return latest.read_text() if latest.exists() else "none"


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    rng = np.random.default_rng(args.seed)
    out = args.out.resolve()
    for name in ("whole", "killed"):
        (out / name).mkdir(parents=True, exist_ok=True)
    whole = quickstart(out / "whole", steps=args.steps)
    checkpoints = [killed(out / "killed", args.steps, rng) for _ in range(args.kills)]
    last = quickstart(out / "killed", steps=args.steps, SAVE_FREQ="1", RESUME="auto")
    differing = [step for step in range(1, args.steps + 1) if identity(whole, step) != identity(last, step)]
    logged = [line["step"] for line in last.steps()] == list(range(1, args.steps + 1))
    found = {"checkpoints_at_kills": checkpoints, "differing_steps": differing, "every_step_logged_once": logged}
    (out / "kills.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
    return int(bool(differing) or not logged or last.returncode != 0)


if __name__ == "__main__":
    run_cli(main)
