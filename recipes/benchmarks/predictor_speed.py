#!/usr/bin/env python
"""How long the trained predictor takes to predict a whole pool, beside the matrix product it cannot do without.

    python recipes/benchmarks/predictor_speed.py                # 10,000 and 1,000,000 questions, about a minute on 2 cores
    python recipes/benchmarks/predictor_speed.py --json --large 200000

Three things side by side in one run, with the paper's sizes (width 896, 256 reference questions):

* ours: query projections computed once and kept as float16 (memory-mapped); a refresh projects the reference set and attends
  in chunks, one matrix product per chunk;
* the bare float32 product of the same sizes, on buffers that stay in the cache: what the machine can do. It is timed in
  slices, alternating with ours, so that both see the same machine;
* the way of the released code: every refresh projects all questions again, in batches of 32.

--json prints seconds_10k, seconds_1m, ratio_to_product_1m, peak_gib_1m (own memory, without the mapped pages),
ratio_to_released, and the achieved GFLOP/s of ours and of the bare product. With --large other than 1,000,000 the seconds of
the large pool are scaled to it.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from verl_dots.difficulty.attention import AttentionModel, AttentionSettings
from verl_dots.difficulty.trained import REFRESH_CHUNK, TrainedPredictor, attended_logits
from verl_dots.files import Parser, run_cli

DIM, WIDTH, REFERENCE, SMALL = 1536, 896, 256, 10_000
"""Embedding dimensions (those of Qwen2.5-Math-1.5B), width, reference questions, questions of the small pool."""
RELEASED_BATCH = 32
SLICES = 10


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    args = parser().parse_args(argv)
    if args.large < SLICES:
        raise ValueError(f"--large {args.large}: must be at least {SLICES}")
    if args.threads:
        torch.set_num_threads(args.threads)
    generator = torch.Generator().manual_seed(1)
    model = AttentionModel(AttentionSettings(dim=DIM, width=WIDTH)).eval()
    difficulty = torch.rand(REFERENCE, generator=generator)
    small = small_pool(model, args.repeats)
    large = large_pool(model, args.large, difficulty, generator, args.directory)
    result = {**small, **large, "threads": torch.get_num_threads(), "questions": args.large}
    show(args, {name: round(value, 4) for name, value in result.items()})


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--large", type=int, default=1_000_000, help="questions of the large pool (default: %(default)s)")
    result.add_argument("--repeats", type=int, default=5, help="refreshes of the small pool (default: %(default)s)")
    result.add_argument("--threads", type=int, help="CPU threads (default: torch's choice)")
    result.add_argument("--directory", type=Path, help="where the large pool's file goes (default: the system's)")
    result.add_argument("--json", action="store_true", help="print one JSON object")
    return result


@torch.inference_mode()
def small_pool(model: AttentionModel, repeats: int) -> dict[str, float]:
    """A whole refresh of 10,000 questions, and the released code's way; medians of alternating runs."""
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(SMALL, DIM)).astype(np.float32)
    predictor = TrainedPredictor([model], vectors, device="cpu")
    reference = np.arange(REFERENCE)
    trials = np.full(REFERENCE, 8.0)
    successes = rng.binomial(8, 0.5, REFERENCE).astype(float)
    ours, released = [], []
    for _ in range(repeats):
        start = time.perf_counter()
        predictor.predict(reference, successes, trials, np.zeros(REFERENCE))
        ours.append(time.perf_counter() - start)
        start = time.perf_counter()
        released_refresh(model, torch.from_numpy(vectors), torch.from_numpy(1 - successes / trials).float())
        released.append(time.perf_counter() - start)
    seconds, theirs = float(np.median(ours)), float(np.median(released))
    return {"seconds_10k": seconds, "released_seconds_10k": theirs, "ratio_to_released": theirs / seconds}


def released_refresh(model: AttentionModel, vectors: torch.Tensor, difficulty: torch.Tensor) -> torch.Tensor:
    """Project all questions anew, in batches of 32 (the reference set once), and attend."""
    reference = model.project_reference(vectors[:REFERENCE], torch.zeros(REFERENCE, 0))
    answers = []
    for batch in vectors.split(RELEASED_BATCH):
        query = model.project_query(batch, torch.zeros(len(batch), 0))
        answers.append(torch.sigmoid(model(query, reference, difficulty)))
    return torch.cat(answers)


@torch.inference_mode()
def large_pool(
    model: AttentionModel, count: int, difficulty: torch.Tensor, generator: torch.Generator, directory: Path | None
) -> dict[str, float]:
    """Ours and the bare product on a memory-mapped pool, in alternating slices."""
    reference = normal(REFERENCE, generator)
    with tempfile.NamedTemporaryFile(prefix="dots-speed-", dir=directory) as stream:
        query = write_pool(stream.name, count, generator)
        left, right = normal(REFRESH_CHUNK, generator), reference.T.contiguous()
        out = torch.empty(REFRESH_CHUNK, REFERENCE)
        bounds = np.linspace(0, count, SLICES + 1).astype(int)
        attended_logits(model, query[:REFRESH_CHUNK], reference, difficulty)  # starts the threads
        ours = product = 0.0
        with OwnMemory() as memory:
            for first, last in zip(bounds[:-1], bounds[1:], strict=True):
                start = time.perf_counter()
                attended_logits(model, query[first:last], reference, difficulty)
                ours += time.perf_counter() - start
                start = time.perf_counter()
                for row in range(first, last, REFRESH_CHUNK):
                    size = min(REFRESH_CHUNK, last - row)
                    torch.mm(left[:size], right, out=out[:size])
                product += time.perf_counter() - start
    work = 2e-9 * count * WIDTH * REFERENCE  # GFLOP
    scale = 1_000_000 / count
    return {
        "seconds_1m": ours * scale,
        "product_seconds_1m": product * scale,
        "ratio_to_product_1m": ours / product,
        "peak_gib_1m": memory.peak / 2**30,
        "gflops": work / ours,
        "product_gflops": work / product,
    }


def normal(rows: int, generator: torch.Generator) -> torch.Tensor:
    """Rows like those that leave a LayerNorm, float32 (rows, WIDTH)."""
    return torch.nn.functional.layer_norm(torch.randn(rows, WIDTH, generator=generator), (WIDTH,))


def write_pool(name: str, count: int, generator: torch.Generator) -> np.ndarray:
    """A file of `count` projections, float16, and mapped. Distinct blocks, repeated: only their size matters."""
    block = normal(16_384, generator).half().numpy()
    writable = np.memmap(name, dtype=np.float16, mode="w+", shape=(count, WIDTH))
    for start in range(0, count, len(block)):
        rows = writable[start : start + len(block)]
        rows[:] = block[: len(rows)]
    writable.flush()
    return np.memmap(name, dtype=np.float16, mode="r+", shape=(count, WIDTH))  # torch warns of read-only arrays


class OwnMemory:
    """Largest growth of the process's anonymous memory (without mapped files) inside the block, in bytes."""

    def __enter__(self) -> OwnMemory:
        self.peak = 0
        self._base = anonymous_bytes()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.02):
            self.peak = max(self.peak, anonymous_bytes() - self._base)


def anonymous_bytes() -> int:
    """RssAnon of this process (Linux)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no RssAnon in /proc/self/status: own memory can be measured on Linux only")


def show(args: argparse.Namespace, result: dict[str, float]) -> None:
    """One JSON object, or a table."""
    if args.json:
        print(json.dumps(result))
        return
    from rich.console import Console
    from rich.table import Table

    title = f"{result['threads']} threads, width {WIDTH}, K {REFERENCE}"
    table = Table("", "ours", "bare product", "released way", title=title)
    table.add_row("10,000 questions", f"{result['seconds_10k']:.3f} s", "", f"{result['released_seconds_10k']:.2f} s")
    table.add_row("1,000,000", f"{result['seconds_1m']:.2f} s", f"{result['product_seconds_1m']:.2f} s", "")
    table.add_row("GFLOP/s", f"{result['gflops']:.0f}", f"{result['product_gflops']:.0f}", "")
    table.add_row("own memory", f"{result['peak_gib_1m']:.2f} GiB", "", "")
    Console().print(table)


if __name__ == "__main__":
    run_cli(main)
