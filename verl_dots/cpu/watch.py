"""Run a training command quietly: its log goes to a file, a progress bar and the key numbers to the terminal.

    python -m verl_dots.cpu.watch --out outputs/run --steps 80 -- python -m verl.trainer.main_ppo ...

Reads what verl's file logger writes (`VERL_FILE_LOGGER_PATH`, nested, by default OUT/verl_metrics.jsonl) and keeps
OUT/metrics.jsonl, one flat object per step. The command's exit code is passed on; when it is not 0, the errors of its
log are shown.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from verl_dots.files import Parser, run_cli
from verl_dots.runlog import MetricsLog

POLL_SECONDS = 0.2
LINE_EVERY = 10  # steps between two lines where there is no terminal for a progress bar
NUMBERS = (  # label, metric, format
    ("reward", "critic/score/mean", ".3f"),
    ("informative", "dots/informative_share", ".2f"),
    ("replay", "replay/size", ".0f"),
    ("s/step", "timing_s/step", ".1f"),
)
NOISE = "No module named 'acl'"  # Ray looks for an Ascend driver because an NPU is declared
ERROR = re.compile(r"^(\w+\.)*\w*(Error|Exception)\b.*|^verl-dots: (?!warning).*|.*verl-dots: error.*")


class MetricsFollower:
    """Hands out verl's metrics as they are written, flat, and appends them to `metrics.jsonl`.

    verl starts its file anew when a run is resumed. Ours keeps the steps before the first one that is written now.
    """

    def __init__(self, source: Path, target: Path):
        self.source = source
        self.log = MetricsLog(target)
        self.read = 0  # bytes of the source that were handed out
        self.started = False

    def new_steps(self) -> Iterator[dict]:
        if not self.source.exists():
            return
        with self.source.open("rb") as stream:
            stream.seek(self.read)
            data = stream.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.read += len(whole)
        for line in whole.splitlines():
            record = json.loads(line)
            if not self.started:
                # A resumed run begins by validating the step it was restored to, which has a line already: it joins that.
                validates_restored = record["step"] > 0 and "training/global_step" not in record["data"]
                self.log.cut(record["step"] - (0 if validates_restored else 1))
                self.started = True
            self.log.append(record["step"], record["data"])
            yield {"step": record["step"], **record["data"]}


def validation_accuracy(metrics: dict) -> float | None:
    """verl's main validation metric of a step, the mean over data sources, None where none was measured."""
    values = [v for name, v in metrics.items() if name.startswith("val-core/") and re.search(r"/mean@\d+$", name)]
    return sum(values) / len(values) if values else None


def key_numbers(metrics: dict) -> str:
    return "  ".join(f"{label} {metrics[name]:{form}}" for label, name, form in NUMBERS if metrics.get(name) is not None)


def errors(log: Path, most: int = 8) -> list[str]:
    """The last distinct error lines of a log."""
    found: dict[str, None] = {}
    for line in log.read_text(errors="replace").splitlines():
        line = re.sub(r"\x1b\[[0-9;]*m|^\([^)]*pid=\d+[^)]*\)\s*", "", line)  # colours, and Ray's prefix
        if ERROR.match(line) and NOISE not in line:
            found.pop(line, None)
            found[line] = None
    return list(found)[-most:]


def parse(argv) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="for train.log and metrics.jsonl")
    parser.add_argument("--steps", type=int, required=True, help="training steps of the command")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- and the command")
    args = parser.parse_args(argv)
    args.command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not args.command:
        raise ValueError("no command given: put it after --")
    return args


def main(argv=None) -> int:
    args = parse(argv)
    console = Console()
    args.out.mkdir(parents=True, exist_ok=True)
    source = Path(os.environ.get("VERL_FILE_LOGGER_PATH") or args.out / "verl_metrics.jsonl")
    os.environ["VERL_FILE_LOGGER_PATH"] = str(source)
    source.unlink(missing_ok=True)  # verl starts it anew in any case, but not before the first step
    follower = MetricsFollower(source, args.out / "metrics.jsonl")
    log = args.out / "train.log"
    with log.open("wb") as stream:
        process = subprocess.Popen(args.command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            follow(process, follower, args.steps, console)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    if process.returncode:
        print(f"{args.command[0]} ended with code {process.returncode}; its log is {log}", file=sys.stderr)
        for line in errors(log):
            print(f"  {line}", file=sys.stderr)
    return process.returncode


def follow(process: subprocess.Popen, follower: MetricsFollower, steps: int, console: Console) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TextColumn("{task.fields[numbers]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("starting", total=steps, numbers="")
        running = True
        while running:
            running = process.poll() is None  # asked first, so that the last lines are read after the end
            for metrics in follower.new_steps():
                step, accuracy = metrics["step"], validation_accuracy(metrics)
                bar.update(task, description="training", completed=step, numbers=key_numbers(metrics))
                if accuracy is not None:
                    console.print(f"step {step:>4}  validation accuracy {accuracy:.3f}")
                if not console.is_terminal and step and step % LINE_EVERY == 0:
                    console.print(f"step {step:>4}  {key_numbers(metrics)}")
            time.sleep(POLL_SECONDS if running else 0)


if __name__ == "__main__":
    run_cli(main)
