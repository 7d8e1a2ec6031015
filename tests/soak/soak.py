"""A long run on the smallest task: memory of every process, size of every file, and step time must stay flat.

    python -m tests.soak.soak --steps 1000 --out outputs/soak

Writes OUT/samples.csv (one line every few seconds) and OUT/soak.json (the verdict); code 1 when something grew.
About an hour on two free cores. Not in CI.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.integration.processes import descendants, end
from tests.integration.runs import Run, start
from verl_dots.files import Parser, run_cli

EVERY_S = 5.0
WATCHED = {  # what we call it: part of the process's name
    "driver": "ray::TaskRunner",
    "worker": "ray::WorkerDict",
    "store": "ray::SimpleStorageUnit",
    "store_controller": "ray::TransferQueueController",
    "agent_loop": "ray::AgentLoopWorker",
    "rollout_server": "ray::RolloutServer",
    "reward": "ray::RewardLoopWorker",
    "ray_head": "gcs_server",
    "raylet": "raylet/raylet",
}
ALLOWED_GROWTH = 1.10
"""Last fifth of the run over the third. Before that is warm-up: Ray's head keeps up to 100,000 task events (its
`RAY_task_events_max_num_task_in_gcs`), which takes about 400 steps of this task to reach."""
ALLOWED_MB = 16.0
"""Growth that is never called a leak: shared pages count to one process or another, +-11 MB in a raylet of 20 MB."""
QUIET = 10
"""Percentile of the step times that is compared: the fastest tenth is hardly touched by what else the machine does."""


def parser() -> argparse.ArgumentParser:
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--steps", type=int, default=1000, help="training steps (default: %(default)s)")
    result.add_argument("--out", type=Path, default=Path("outputs/soak"), help="default: %(default)s")
    result.add_argument("--method", default="dots_rr", help="default: %(default)s")
    return result


def resident_mb(pid: int) -> float:
    """Resident memory without pages shared with others (PSS), in MB; 0 for a process that has ended."""
    try:
        for line in (Path("/proc") / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except (OSError, ValueError):
        return 0.0
    return 0.0


def sample(root: int, out: Path) -> dict[str, float]:
    """Memory by kind of process, and bytes of our logs and of everything the run wrote."""
    memory = dict.fromkeys(WATCHED, 0.0)
    for pid, name in descendants(root).items():
        kind = next((kind for kind, part in WATCHED.items() if part in name), None)
        if kind is not None:
            memory[kind] += resident_mb(pid)
    ours = out / "checkpoints" / "dots"
    logs = sum(path.stat().st_size for path in ours.rglob("*") if path.is_file()) if ours.exists() else 0
    steps = len(list((out / "probe").glob("store-*.json"))) if (out / "probe").exists() else 0
    return {"seconds": time.time(), "step": steps, **memory, "log_bytes": float(logs)}


def levels(values: np.ndarray, level: Callable[[np.ndarray], float] = np.mean) -> tuple[float, float]:
    """`level` of the third fifth and of the last."""
    fifth = max(1, len(values) // 5)
    return float(level(values[2 * fifth : 3 * fifth])), float(level(values[-fifth:]))


def growth(before: float, after: float) -> float:
    return after / before if before > 0 else 1.0


def leaks(before: float, after: float) -> bool:
    return growth(before, after) > ALLOWED_GROWTH and after - before > ALLOWED_MB


def fastest(seconds: np.ndarray) -> float:
    return float(np.percentile(seconds, QUIET))


def verdict(samples: list[dict[str, float]], run: Run) -> dict:
    """How much each kind of process and the step time grew; log bytes per step."""
    trained = [line for line in samples if line["step"] > 0 and line["driver"] > 0]  # not while it starts or ends
    memory = {kind: levels(np.array([line[kind] for line in trained])) for kind in WATCHED} if trained else {}
    seconds = np.array([line["timing_s/step"] for line in run.steps()])
    log_bytes = trained[-1]["log_bytes"] if trained else 0.0
    return {
        "returncode": run.returncode,
        "steps": len(seconds),
        "memory_growth": {kind: growth(*pair) for kind, pair in memory.items()},
        "memory_mb": {kind: {"third fifth": before, "last fifth": after} for kind, (before, after) in memory.items()},
        "step_seconds_growth": growth(*levels(seconds, fastest)) if len(seconds) >= 5 else None,
        "log_bytes_per_step": log_bytes / max(1, len(seconds)),
        "grew": sorted(kind for kind, pair in memory.items() if leaks(*pair)),
    }


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    if args.steps < 10:
        raise ValueError(f"--steps {args.steps}: use at least 10, the first two fifths are warm-up")
    args.out.mkdir(parents=True, exist_ok=True)
    process = start(args.out.resolve(), method=args.method, steps=args.steps, SAVE_FREQ="100", TEST_FREQ="-1")
    samples: list[dict[str, float]] = []
    try:
        while process.poll() is None:
            samples.append(sample(process.pid, args.out))
            time.sleep(EVERY_S)
    finally:
        end(process)
    with (args.out / "samples.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, fieldnames=list(samples[0]))
        writer.writeheader()
        writer.writerows(samples)
    found = verdict(samples, Run(args.out.resolve(), process.returncode, ""))
    (args.out / "soak.json").write_text(json.dumps(found, indent=2))
    print(json.dumps(found, indent=2))
    slower = (found["step_seconds_growth"] or 1.0) > ALLOWED_GROWTH
    return int(found["returncode"] != 0 or bool(found["grew"]) or slower)


if __name__ == "__main__":
    run_cli(main)
