"""A finished run, or several -> figures and a page: `python -m verl_dots.report RUN [RUN ...]`.

    python -m verl_dots.report outputs/grpo outputs/dots_rr --output outputs/report
    python -m verl_dots.report base=runs/17 ours=runs/18 --baseline base --questions train.parquet

RUN is a folder of ours (OUT of a recipe, or verl's `trainer.default_local_dir`), a JSONL file of verl's file logger, a
TensorBoard folder, or a wandb export (CSV or JSONL). `NAME=RUN` names it. Written are `report.html`, which needs no other
file, and one PNG per figure. The reductions against the baseline are printed as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from verl_dots.files import Parser, atomic_path, run_cli
from verl_dots.reporting import belief, costs, curves, text
from verl_dots.reporting.compare import Comparison, compare
from verl_dots.reporting.page import render
from verl_dots.reporting.quantities import benchmarks
from verl_dots.reporting.questions import favourites, question_texts
from verl_dots.reporting.runs import Run, read_runs
from verl_dots.reporting.style import Picture, drawing, looks

PNG_DPI = 160


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m verl_dots.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder or file, or NAME=folder or file")
    parser.add_argument("--output", type=Path, default=Path("report"), metavar="DIR", help="default: report")
    parser.add_argument("--baseline", metavar="RUN", help="name or path; default: the only run without verl-dots")
    parser.add_argument("--benchmark", action="append", metavar="NAME", help="data sources to average; default: all")
    parser.add_argument("--questions", type=Path, metavar="FILE", help="question file (parquet): show texts, not ids")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    runs = read_runs(args.runs)
    baseline = _baseline(args.baseline, runs)
    if args.baseline is not None and baseline is None:
        runs += read_runs([args.baseline])
        baseline = runs[-1]
    _check_benchmarks(args.benchmark, runs)
    comparison = compare(runs, baseline, args.benchmark)
    texts = _texts(args.questions, runs)
    with drawing():
        pictures = draw(comparison)
        page = render(comparison, pictures, texts)
        written = _write(args.output, page, pictures)
    _print(comparison, written)
    return 0


def draw(comparison: Comparison) -> list[Picture]:
    """All figures of a report, in the order of the page; call it inside `style.drawing()`."""
    runs = [item.run for item in comparison.runs]
    styles = looks(runs, comparison.baseline.run if comparison.baseline else None)
    pictures = [
        curves.accuracy_picture(comparison, styles),
        curves.benchmarks_picture(comparison, styles),
        curves.informative_picture(comparison, styles),
        belief.prediction_picture(runs, styles),
        belief.difficulty_picture(runs, styles),
        belief.questions_picture(runs, styles),
        costs.replay_picture(runs, styles),
        costs.seconds_picture(comparison, styles),
    ]
    return [picture for picture in pictures if picture is not None]


def _baseline(wanted: str | None, runs: Sequence[Run]) -> Run | None:
    """The run of that name or path; None when it was not asked for, or is not among them."""
    if wanted is None:
        return None
    by_name = [run for run in runs if run.name == wanted]
    path = Path(wanted.rpartition("=")[2]).resolve()
    by_path = [run for run in runs if path == run.source.resolve() or path in run.source.resolve().parents]
    found = by_name or by_path
    if len(found) > 1:
        raise ValueError(f"--baseline {wanted} fits {', '.join(run.name for run in found)}: give one of these names")
    return found[0] if found else None


def _check_benchmarks(wanted: Sequence[str] | None, runs: Sequence[Run]) -> None:
    for name in wanted or ():
        for run in runs:
            known = benchmarks(run)
            if known and name not in known:
                raise ValueError(f"--benchmark {name}: {run.name} was not validated on it, it has {', '.join(known)}")


def _texts(path: Path | None, runs: Sequence[Run]) -> dict[str, str]:
    if path is None:
        return {}
    tables = [run.questions for run in runs if run.questions is not None]
    return question_texts(path, {found.question_id for table in tables for found in favourites(table)})


def _write(folder: Path, page: str, pictures: Sequence[Picture]) -> list[Path]:
    if folder.is_file():
        raise ValueError(f"--output {str(folder)!r} is a file: give a folder")
    written = []
    for picture in pictures:
        if picture.figure is not None:
            path = folder / f"{picture.key}.png"
            with atomic_path(path) as temporary:
                picture.figure.savefig(temporary, dpi=PNG_DPI, metadata={"Software": None})
            written.append(path)
    path = folder / "report.html"
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return [path, *written]


def _print(comparison: Comparison, written: Sequence[Path]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if comparison.end is None:
        console.print(comparison.why_not, markup=False)
    else:
        name, end = comparison.baseline.run.name, comparison.end
        console.print(
            f"Time to the final accuracy of {name} ({comparison.target:.3f} after {end.step} steps, "
            f"{text.duration(end.seconds)}, {text.count(end.tokens)} generated tokens):",
            markup=False,
        )
        console.print(_reductions_table(comparison))
    console.print(f"{written[0]}  ({len(written) - 1} figures beside it)", markup=False)


def _reductions_table(comparison: Comparison) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("run")
    for head in ("at step", "steps", "time per step", "total time", "tokens"):
        table.add_column(head, justify="right")
    for verdict in comparison.verdicts:
        saved = verdict.against_end
        cells = (
            [str(verdict.reached.step), *map(text.change, (saved.steps, saved.per_step, saved.total, saved.tokens))]
            if saved
            else ["never", *[text.NOTHING] * 4]
        )
        table.add_row(verdict.progress.run.name.replace("[", r"\["), *cells)
    return table


if __name__ == "__main__":
    run_cli(main)
