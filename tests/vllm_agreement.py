"""Last part of tests/vllm_cpu.sh: do vLLM and the trainer give the same log-probs after each weight sync?

    python -m tests.vllm_agreement RUN STEPS TOLERANCE

Rows generated in the step itself only: a replayed row's rollout log-probs are those of an older policy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.integration.runs import Run
from verl_dots.files import run_cli


def differences(record: dict) -> np.ndarray:
    """|log-prob of vLLM - log-prob of the trainer| of every response token of the step's fresh rows."""
    replayed, rows = set(record["replayed"]), record["rows"]
    found = []
    for row, key in enumerate(record["keys"]):
        if key not in replayed:
            written = np.array(rows["response_mask"][row], bool)
            ours, theirs = (np.array(rows[name][row])[written] for name in ("old_log_probs", "rollout_log_probs"))
            found.append(np.abs(ours - theirs))
    return np.concatenate(found)


def main(argv=None) -> int:
    out, steps, tolerance = argv or sys.argv[1:]
    run = Run(Path(out), 0, "")
    lines = run.steps()
    worst = 0.0
    for line in lines:
        found = differences(run.probe(line["step"]))
        worst = max(worst, float(found.max()))
        print(
            f"step {line['step']}: {len(found)} fresh tokens, log-probs differ by {found.mean():.1e} on average, at most "
            f"{found.max():.1e}; {line['replay/drawn']:.0f} groups replayed, reward {line['critic/score/mean']:.3f}"
        )
    if len(lines) != int(steps) or not worst < float(tolerance) or not lines[-1]["replay/drawn"]:
        print(f"FAILED: {len(lines)} of {steps} steps, largest difference {worst:.1e} (allowed {tolerance})")
        return 1
    return 0


if __name__ == "__main__":
    run_cli(main)
