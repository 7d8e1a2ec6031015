"""What a quickstart run achieved: a short table on the terminal and one figure.

    python -m verl_dots.cpu.summary OUT --batch 16

Reads OUT/metrics.jsonl (one flat object per step) and writes OUT/quickstart.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from verl_dots.cpu.watch import validation_accuracy
from verl_dots.files import Parser, atomic_path, run_cli
from verl_dots.runlog import read_metrics


def mean(lines: list[dict], name: str) -> float | None:
    """Mean of a metric over the steps that have it."""
    values = [line[name] for line in lines if line.get(name) is not None]
    return sum(values) / len(values) if values else None


def summarise(lines: list[dict], batch: int) -> list[tuple[str, str]]:
    """Rows of the table: a label and a text each."""
    accuracy = [(line["step"], value) for line in lines if (value := validation_accuracy(line)) is not None]
    steps = [line for line in lines if "training/global_step" in line]
    rows = [("steps", f"{len(steps)}")]
    if accuracy:
        rows.append(("validation accuracy", f"{accuracy[0][1]:.3f} -> {accuracy[-1][1]:.3f}"))
    if (share := mean(steps, "dots/informative_share")) is not None:
        rows.append(("informative share of fresh groups", f"{share:.2f}"))
        rows.append(("informative share of groups trained on", f"{mean(steps, 'dots/trained_informative_share'):.2f}"))
        # A run may have gone on with verl's own trainer, which generates every group and does not say so.
        generated, plain = sum(line.get("dots/generated_groups", batch) for line in steps), batch * len(steps)
        rows.append(("groups generated", f"{generated:,.0f}, plain GRPO {plain:,} ({generated / plain - 1:+.0%})"))
    pearson = [line["dots/pearson"] for line in steps if line.get("dots/pearson") is not None]
    if pearson:
        rows.append(("predicted against observed difficulty", f"Pearson {pearson[-1]:.2f} over the last explored groups"))
    if steps and steps[-1].get("replay/size"):
        size, age = steps[-1]["replay/size"], mean(steps, "replay/age_mean")
        ages = "none drawn yet" if age is None else f"drawn ones {age:.1f} policy versions old on average"
        rows.append(("replay", f"{size:.0f} groups; {ages}"))
    rows.append(("seconds per step", f"{mean(steps, 'timing_s/step') or 0:.1f}"))
    return rows


def draw(lines: list[dict], path: Path) -> None:
    """Validation accuracy, and how much of what is generated and of what is trained on teaches."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    accuracy = [(line["step"], value) for line in lines if (value := validation_accuracy(line)) is not None]
    if accuracy:
        left.plot(*zip(*accuracy, strict=True), marker="o", color="#0072B2")
    left.set(xlabel="step", ylabel="validation accuracy", ylim=(0, 1))
    for name, label, colour in (
        ("dots/trained_informative_share", "of the groups trained on", "#009E73"),
        ("dots/informative_share", "of the fresh groups", "#D55E00"),
    ):
        points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
        if points:
            right.plot(*zip(*points, strict=True), label=label, color=colour)
    right.set(xlabel="step", ylabel="informative share", ylim=(0, 1.05))
    if right.lines:
        right.legend(frameon=False, loc="lower left")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=150)
    plt.close(figure)


def main(argv=None) -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT", help="folder of the run")
    parser.add_argument("--batch", type=int, default=16, help="data.train_batch_size, what plain GRPO generates a step")
    args = parser.parse_args(argv)
    source = args.out / "metrics.jsonl"
    if not source.exists():
        raise ValueError(f"no such file: '{source}': is {args.out} the folder of a quickstart run?")
    lines = read_metrics(source)
    if not lines:
        raise ValueError(f"{source} has no steps: see {args.out / 'train.log'}")
    table = Table(show_header=False)
    for label, text in summarise(lines, args.batch):
        table.add_row(label, text)
    console = Console()
    console.print(table)
    draw(lines, args.out / "quickstart.png")
    console.print(f"figure: {args.out / 'quickstart.png'}   metrics: {source}", soft_wrap=True)


if __name__ == "__main__":
    run_cli(main)
