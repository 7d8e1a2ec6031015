"""Everything a report says -> one HTML file that needs no network, no script and no other file.

Whatever comes from the runs (names, paths, questions, configuration) is escaped here, in `_text`, and nowhere else.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

from verl_dots.manifests import tool_version
from verl_dots.reporting import text
from verl_dots.reporting.compare import Comparison, Progress, Verdict
from verl_dots.reporting.questions import favourites
from verl_dots.reporting.runs import Run
from verl_dots.reporting.style import Picture
from verl_dots.types import METRICS

_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 2rem 1.5rem 4rem; background: #fff; color: #1d1d1f;
       font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.2rem; margin: 2.6rem 0 .6rem; padding-top: .8rem; border-top: 1px solid #ddd; }
p { margin: .5rem 0; max-width: 46rem; }
.lead { color: #555; }
.verdict { border-left: 4px solid #0072B2; background: #f3f7fa; padding: .7rem 1rem; margin: .8rem 0; }
.verdict p { margin: .2rem 0; max-width: none; }
.verdict .big { font-size: 1.1rem; }
.none { border-left-color: #999; background: #f5f5f5; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .32rem .6rem; border-bottom: 1px solid #e5e5e5; vertical-align: top; }
th { font-weight: 600; color: #444; border-bottom: 2px solid #bbb; vertical-align: bottom; }
th:first-child, td:first-child, .left { text-align: left; }
td.words { text-align: left; min-width: 6rem; max-width: 28rem; overflow-wrap: anywhere; }
figure { margin: .6rem 0 0; }
figure img { width: 100%; height: auto; display: block; }
figcaption, .note { font-size: .86rem; color: #555; margin-top: .4rem; max-width: 50rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .88em; overflow-wrap: anywhere; }
details summary { cursor: pointer; color: #0062a0; }
footer { margin-top: 3rem; font-size: .82rem; color: #777; }
@media print {
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2, figure, .verdict, tr { break-inside: avoid; }
  h2 { break-after: avoid; }
  .scroll { overflow: visible; }
  details:not([open]) { display: none; }
}
"""

_NAMES_OF_A_RUN = {
    "hydra.run.dir",
    "ray_kwargs.ray_init._temp_dir",
    "trainer.default_local_dir",
    "trainer.experiment_name",
    "trainer.project_name",
}
"""Keys that differ between any two runs and say nothing."""


def render(
    comparison: Comparison, pictures: Sequence[Picture], question_texts: dict[str, str], notes: Sequence[str] = ()
) -> str:
    """The whole page.

    Args:
        comparison: what was measured.
        pictures: figures in the order of the page; those without a figure become one line each at the end.
        question_texts: text by question id, for the table of questions; ids that are missing are shown as ids.
        notes: further sentences about the input.
    """
    runs = [item.run for item in comparison.runs]
    title = " / ".join(run.name for run in runs[:4]) + (" ..." if len(runs) > 4 else "")
    body = [
        f"<h1>{_text(title)}</h1>",
        f'<p class="lead">{len(runs)} training run{"s" if len(runs) > 1 else ""}, read by verl-dots.</p>',
        _verdicts(comparison),
        _runs_table(comparison),
        *_pictures(pictures, _questions_table(runs, question_texts)),
        _differences(runs),
        _absent(pictures, [*_run_notes(comparison), *notes]),
        _glossary(runs),
        f"<footer>verl-dots {_text(tool_version())}. Method: arXiv 2506.05316.</footer>",
    ]
    head = f'<meta charset="utf-8"><title>{_text(title)}</title><style>{_STYLE}</style>'
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}{viewport}</head><body>\n' + "\n".join(body) + "\n</body></html>\n"


def _text(value: object) -> str:
    return escape(str(value), quote=True)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = ()) -> str:
    """`rows` hold escaped cells; the columns `words` are text rather than numbers."""
    cells = "".join(f'<th{" class=left" if i in words else ""}>{_text(name)}</th>' for i, name in enumerate(head))
    lines = (
        "<tr>" + "".join(f"<td{' class=words' if i in words else ''}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{cells}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


# ----------------------------------------------------------------------------------------------- the result


def _verdicts(comparison: Comparison) -> str:
    if comparison.end is None:
        return f'<div class="verdict none"><p>{_text(comparison.why_not)}</p></div>' if len(comparison.runs) > 1 else ""
    boxes = [_verdict_box(verdict, comparison) for verdict in comparison.verdicts]
    end, first = comparison.end, comparison.first
    name, target = comparison.baseline.run.name, text.number(comparison.target)
    note = (
        f"Target: {name} at its last validation, {target} after {end.step} steps, {text.duration(end.seconds)} and "
        f"{text.count(end.tokens)} generated tokens. Validated every {comparison.spacing} steps, which is how finely steps "
        "are resolved."
    )
    rows = [row for verdict in comparison.verdicts if verdict.reached for row in _reduction_rows(verdict, comparison)]
    table = (
        _table(["", "against", "at step", "steps", "time per step", "total time", "generated tokens"], rows, words=(0, 1))
        if rows
        else ""
    )
    early = (
        f" {name} itself first reached its final accuracy at step {first.step}; a first crossing favours whoever is "
        "measured by it, so the second row of each run compares like with like."
        if first.step < end.step and rows
        else ""
    )
    return f'{"".join(boxes)}{table}<p class="note">{_text(note + early)}</p>'


def _verdict_box(verdict: Verdict, comparison: Comparison) -> str:
    name, baseline = verdict.progress.run.name, comparison.baseline.run.name
    target = text.number(comparison.target)
    if verdict.reached is None:
        values = verdict.progress.accuracy.values
        best = f"its best is {text.number(values.max())}" if len(values) else "it was not validated"
        line = f"<b>{_text(name)}</b> did not reach the final accuracy of {_text(baseline)} ({target}): {best}"
        return f'<div class="verdict none"><p class="big">{line}.</p></div>'
    saved, cost = verdict.against_end, verdict.reached
    line = (
        f"<b>{_text(name)}</b> reaches the final accuracy of {_text(baseline)} ({target}) at step {cost.step} instead of "
        f"{comparison.end.step}"
    )
    parts = [f"steps <b>{text.change(saved.steps)}</b>"]
    for value, label in ((saved.per_step, "time per step"), (saved.total, "total time"), (saved.tokens, "generated tokens")):
        if value is not None:
            parts.append(f"{label} <b>{text.change(value)}</b>")
    return f'<div class="verdict"><p class="big">{line}.</p><p>{", ".join(parts)}</p></div>'


def _reduction_rows(verdict: Verdict, comparison: Comparison) -> list[list[str]]:
    name = comparison.baseline.run.name
    pairs = [(f"all of {name}, as the paper", verdict.against_end)]
    if comparison.first.step < comparison.end.step:
        pairs.append((f"{name} at its own step {comparison.first.step}", verdict.against_first))
    return [
        [
            _text(verdict.progress.run.name) if place == 0 else "",
            _text(against),
            str(verdict.reached.step) if place == 0 else "",
            *(text.change(value) for value in (saved.steps, saved.per_step, saved.total, saved.tokens)),
        ]
        for place, (against, saved) in enumerate(pairs)
    ]


def _runs_table(comparison: Comparison) -> str:
    head = ["run", "steps", "accuracy first", "last", "best", "time", "s per step", "generated tokens", "informative"]
    rows = [_run_row(item) for item in comparison.runs]
    sources = ", ".join(comparison.sources)
    what = f"Accuracy: val-core mean@k, {sources}." if sources else "No validation was logged."
    note = f'<p class="note">{_text(what)} Informative: mean share of the generated groups.</p>'
    return f"<h2>Runs</h2>{_table(head, rows)}{note}"


def _run_row(item: Progress) -> list[str]:
    values = item.accuracy.values
    total, tokens = item.seconds, item.tokens
    informative = item.run.get("dots/informative_share").values
    last = float(total.values[-1]) if len(total) else None
    return [
        _text(item.run.name),
        str(item.run.last_step),
        *(text.number(float(value)) if len(values) else text.NOTHING for value in _first_last_best(values)),
        text.duration(last),
        text.number(None if last is None else last / max(1, int(total.steps[-1])), 1),
        text.count(float(tokens.values[-1]) if len(tokens) else None),
        text.share(float(informative.mean()) if len(informative) else None),
    ]


def _first_last_best(values) -> tuple[float, float, float]:
    return (values[0], values[-1], values.max()) if len(values) else (0.0, 0.0, 0.0)


# ----------------------------------------------------------------------------------------------- figures and tables


def _pictures(pictures: Sequence[Picture], questions: str) -> list[str]:
    parts = []
    for picture in pictures:
        if picture.figure is not None:
            stream = io.BytesIO()
            picture.figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
            picture.figure.set_layout_engine("none")  # laid out now; a third of the time of drawing it again as PNG
            data = base64.b64encode(stream.getvalue()).decode("ascii")
            image = f'<img alt="{_text(picture.title)}" src="data:image/svg+xml;base64,{data}">'
            caption = f"<figcaption>{_text(picture.caption)}</figcaption>"
            extra = questions if picture.key == "questions" else ""
            heading = f'<h2 id="{_text(picture.key)}">{_text(picture.title)}</h2>'
            parts.append(f"{heading}<figure>{image}{caption}</figure>{extra}")
    return parts


def _questions_table(runs: Sequence[Run], texts: dict[str, str]) -> str:
    parts = []
    for run in runs:
        rows = [
            [
                _question_cell(found.question_id, texts),
                str(found.times),
                f"{found.first_step}{text.NOTHING}{found.last_step}",
                f"{found.first_difficulty:.2f} → {found.last_difficulty:.2f}",
                _text(", ".join(f"{count} {source}" for source, count in found.sources.items())),
            ]
            for found in (favourites(run.questions) if run.questions is not None else [])
            if found.times > 1
        ]
        if rows:
            table = _table(["question", "times", "steps", "difficulty", "why"], rows, words=(0, 4))
            summary = f"The questions that {_text(run.name)} came back to most"
            parts.append(f"<details{' open' if len(parts) == 0 else ''}><summary>{summary}</summary>{table}</details>")
    return "".join(parts)


def _question_cell(identity: str, texts: dict[str, str]) -> str:
    words = " ".join(texts.get(identity, "").split())
    if not words:
        return f"<code>{_text(identity)}</code>"
    return _text(words if len(words) <= 160 else words[:157] + "...")


def _differences(runs: Sequence[Run]) -> str:
    """Keys of the command lines that are not the same in all runs that have one."""
    known = [run for run in runs if run.overrides]
    if len(known) < 2:
        return ""
    keys = sorted({key for run in known for key in run.overrides if key not in _NAMES_OF_A_RUN})
    rows = []
    for key in keys:
        values = [run.overrides.get(key) for run in known]
        if len(set(values)) > 1:
            cells = [text.NOTHING if value is None else f"<code>{_text(value)}</code>" for value in values]
            rows.append([f"<code>{_text(key)}</code>", *cells])
    if not rows:
        return ""
    head = ["verl's command line", *(run.name for run in known)]
    return f"<h2>What differs between the runs</h2>{_table(head, rows, words=range(len(head)))}"


def _run_notes(comparison: Comparison) -> list[str]:
    notes = []
    for item in comparison.runs:
        notes += [f"{item.run.name}: {note}." for note in item.run.notes]
        if len(item.tokens):
            notes.append(f"{item.run.name}: generated tokens {item.tokens_how}.")
        if len(item.seconds):
            notes.append(f"{item.run.name}: hours are the {item.seconds_how}.")
    return notes


def _absent(pictures: Sequence[Picture], notes: Sequence[str]) -> str:
    lines = [f"{picture.title}: not shown, {picture.missing}." for picture in pictures if picture.figure is None]
    items = "".join(f"<li>{_text(line)}</li>" for line in (*notes, *lines))
    return f'<h2>How it was measured</h2><ul class="note">{items}</ul>' if items else ""


def _glossary(runs: Sequence[Run]) -> str:
    used = [name for name in METRICS if any(name in run.series for run in runs)]
    if not used:
        return ""
    rows = [[f"<code>{_text(name)}</code>", _text(METRICS[name])] for name in used]
    return f"<details><summary>What our metrics mean</summary>{_table(['metric', 'meaning'], rows, words=(0, 1))}</details>"
