"""SIGKILL of the whole run at random moments, a resume after each, and the end must equal a run without kills.

    python -m tests.soak.kills --kills 10 --steps 24 --out outputs/kills

Each start saves after every step. Once it has done a step it is killed at a random moment of the next one, every other time
at one of that step's save, which would rarely be hit otherwise; the result says which kills did cut a save short.
About a minute and a half a kill.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from tests.integration.processes import end, wait_until
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


def wait_for_the_moment(out: Path, process, moment: float, *, in_save: bool) -> None:
    """Wait for a step, then for `moment`, in [0, 1), of the next step or of its save, should both take as long as before."""
    folders = lambda: set(out.glob("checkpoints/global_step_*"))  # noqa: E731
    wait_until(lambda: list((out / "probe").glob("store-*.json")), process)
    length = Run(out, 0, "").steps()[-1]
    known = folders()
    if in_save:
        wait_until(lambda: folders() - known, process, every_s=0.0002)
    time.sleep(moment * length["timing_s/save_checkpoint" if in_save else "timing_s/step"])


def killed(out: Path, steps: int, moment: float, *, in_save: bool) -> dict:
    """Start or resume and kill: the newest checkpoint then, and the saves that were cut short."""
    for path in (out / "probe").glob("store-*.json"):
        path.unlink()
    before = unfinished(out)
    process = start(out, steps=steps, SAVE_FREQ="1", RESUME="auto")
    try:
        wait_for_the_moment(out, process, moment, in_save=in_save)
    finally:
        end(process)
    latest = out / "checkpoints" / "latest_checkpointed_iteration.txt"
    cut = sorted(name for name, touched in unfinished(out).items() if before.get(name) != touched)
    found = {"aimed_at_save": in_save, "checkpoint": latest.read_text() if latest.exists() else "none", "cut_saves": cut}
    print(json.dumps(found), flush=True)
    return found


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    rng = np.random.default_rng(args.seed)
    out = args.out.resolve()
    for name in ("whole", "killed"):
        (out / name).mkdir(parents=True, exist_ok=True)
    whole = quickstart(out / "whole", steps=args.steps)
    moments = enumerate(rng.uniform(size=args.kills))
    kills = [killed(out / "killed", args.steps, moment, in_save=number % 2 == 1) for number, moment in moments]
    last = quickstart(out / "killed", steps=args.steps, SAVE_FREQ="1", RESUME="auto")
    differing = [step for step in range(1, args.steps + 1) if identity(whole, step) != identity(last, step)]
    logged = [line["step"] for line in last.steps()] == list(range(1, args.steps + 1))
    found = {"kills": kills, "differing_steps": differing, "every_step_logged_once": logged}
    found["in_a_save"] = sum(bool(kill["cut_saves"]) for kill in kills)
    (out / "kills.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
    return int(bool(differing) or not logged or last.returncode != 0)


if __name__ == "__main__":
    run_cli(main)
