"""What rollout replay costs per step at scale: rows that stay where they are, against rows that move through the driver.

    python recipes/benchmarks/replay_overhead.py [--groups 512] [--tokens 4096] [--steps 5] [--json]

Fills a real TransferQueue (verl's row store, on a local Ray) with `--groups` groups of 8 rollouts and up to `--tokens`
response tokens, then does, `--steps` times each and in turn:

  stay   what verl-dots does between two steps: draw half as many groups, look up their tags, read the rewards and the
         weight sums of as many rows, admit, evict, and clear the rows of evicted groups
  move   the same replay with its rows held by the driver: fetch the drawn rows' token columns, put them back under
         this step's keys for the workers, and remove them afterwards

About 2 GiB of memory and two minutes at the defaults; no GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time

os.environ.setdefault("TQ_NUM_THREADS", "2")

import ray
import torch
import transfer_queue as tq
from omegaconf import OmegaConf
from tqdm import trange

from verl_dots.files import run_cli
from verl_dots.integration import rows, store
from verl_dots.loss import WEIGHT_SUMS
from verl_dots.replay import RolloutReplay
from verl_dots.types import Group

ROLLOUTS = 8
PROMPT_TOKENS = 200
STEP_SECONDS = 60.0  # a typical step on 8 GPUs, for scale
LONG = ("prompts", "responses", "input_ids", "position_ids", rows.RESPONSE_MASK, "loss_mask", rows.REWARD)
LONG += (rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS, rows.ROLLOUT_LOG_PROBS)


def make_group(number: int, tokens: int, generator: torch.Generator) -> Group:
    """Write one group of mixed reward into the store, with the columns a verl step leaves behind."""
    lengths = torch.randint(tokens // 2, tokens + 1, (ROLLOUTS,), generator=generator).tolist()
    keys = tuple(f"group{number}_{session}_0" for session in range(ROLLOUTS))

    def column(extra: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.nested.as_nested_tensor(
            [torch.ones(length + extra, dtype=dtype) for length in lengths], layout=torch.jagged
        )

    fields = {name: column(0, torch.float32 if "log" in name or name == rows.REWARD else torch.int64) for name in LONG}
    fields |= {name: column(PROMPT_TOKENS, torch.int64) for name in ("input_ids", "position_ids")}
    fields[rows.WEIGHT_SUMS] = torch.ones(ROLLOUTS, len(WEIGHT_SUMS), dtype=torch.float64)
    tags = [{"status": "success", "response_len": n, "seq_len": n + PROMPT_TOKENS} for n in lengths]
    store.write(keys, fields, tags)
    return Group(f"group{number}", f"question{number}", 0, "selected", keys, (0.0,) + (1.0,) * (ROLLOUTS - 1), True)


def stay(replay: RolloutReplay, fresh: list[Group], drawn_groups: int, version: int) -> None:
    """One step of verl-dots' own work in the driver."""
    drawn = replay.draw(drawn_groups, version)
    keys = [key for group in drawn for key in group.keys]
    store.lookup(keys)
    store.rewards(keys)  # stands for the fresh groups, which are as many
    store.row_sums(keys, rows.WEIGHT_SUMS)
    evicted = replay.admit(fresh) + replay.expire(version)
    store.clear(key for group in evicted for key in group.keys)


def move(replay: RolloutReplay, drawn_groups: int, version: int) -> None:
    """The drawn rows pass through the driver."""
    keys = [key for group in replay.draw(drawn_groups, version) for key in group.keys]
    columns = store.read(keys, LONG)
    copies = [f"copy-{key}" for key in keys]
    store.write(copies, {name: columns[name] for name in columns.keys()}, [{"status": "success"}] * len(copies))
    store.clear(copies)


def measure(groups: int, tokens: int, steps: int) -> dict[str, float]:
    """Seconds per step (medians) of both ways, measured in turn."""
    generator = torch.Generator().manual_seed(1)
    replay = RolloutReplay(capacity=groups, seed=1)
    for number in trange(groups, desc="filling the store", unit="group"):
        replay.admit([make_group(number, tokens, generator)])
    drawn, seconds = groups // 2, {"stay": [], "move": []}
    for step in trange(1, steps + 1, desc="measuring", unit="step"):
        fresh = [make_group(groups * (step + 1) + i, tokens, generator) for i in range(max(1, drawn // 16))]
        for name, work in (
            ("stay", lambda: stay(replay, fresh, drawn, step)),  # noqa: B023  called at once
            ("move", lambda: move(replay, drawn, step)),  # noqa: B023
        ):
            start = time.perf_counter()
            work()
            seconds[name].append(time.perf_counter() - start)
    result = {f"{name}_seconds": statistics.median(values) for name, values in seconds.items()}
    result["times_cheaper"] = result["move_seconds"] / result["stay_seconds"]
    result["percent_of_a_60_s_step"] = 100 * result["stay_seconds"] / STEP_SECONDS
    return result


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    ray.init(address="local", num_cpus=4, include_dashboard=False, object_store_memory=500_000_000, log_to_driver=False)
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    try:
        result = measure(options.groups, options.tokens, options.steps)
    finally:
        tq.close()
        ray.shutdown()
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:24s} {value:10.3f}")
    return 0


if __name__ == "__main__":
    run_cli(main)
