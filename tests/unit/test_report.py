"""The command: from logs to a page that stands alone, whatever the logs lack and whatever their names contain."""

import base64
import contextlib
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit import report_logs as logs
from verl_dots import report
from verl_dots.files import explain
from verl_dots.types import question_id

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).parent / "samples" / "runs"
FIGURES = ["accuracy", "difficulty", "informative", "prediction", "questions", "replay", "seconds"]


class Page(HTMLParser):
    """Tags balance, and what a page shows."""

    VOID = {"meta", "img", "br"}

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.images, self.links, self.words = [], [], [], [], []
        self.feed(text)
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        self.links += [values[name] for name in ("src", "href") if name in values and not values[name].startswith("data:")]
        if tag == "img":
            self.images.append((values["alt"], values["src"]))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def make(tmp_path, *arguments):
    """Run the command on `arguments`; the page, parsed and as text."""
    assert report.main([*map(str, arguments), "--output", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    return Page(text), text


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A baseline as verl's file logger writes it, and one of ours with everything."""
    folder = tmp_path_factory.mktemp("runs")
    lines = logs.plain_steps(40, accuracy=lambda s: 0.2 + 0.01 * s)
    base = logs.write_nested(folder / "grpo" / "verl_metrics.jsonl", lines)
    lines = logs.dots_steps(40, accuracy=lambda s: 0.2 + 0.02 * s, seconds=3.0)
    ours = logs.write_flat(folder / "ours" / "checkpoints" / "dots" / "metrics.jsonl", lines)
    logs.write_questions(ours.parent / "questions", 40)
    return base.parent, folder / "ours"


@pytest.fixture(scope="module")
def made(tmp_path_factory, runs):
    """The page of the two, made once: folder, parsed page, text, what was printed."""
    folder = tmp_path_factory.mktemp("made")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        page, text = make(folder, *runs)
    return folder, page, text, printed.getvalue()


def test_a_comparison_has_every_figure_and_the_reductions(made):
    folder, page, text, printed = made
    assert sorted(path.stem for path in (folder / "out").glob("*.png")) == FIGURES
    assert len(page.images) == len(FIGURES)
    words = " ".join(" ".join(page.words).split())
    assert "ours reaches the final accuracy of grpo (0.600) at step 20 instead of 40 ." in words.replace("40.", "40 .")
    # 20 of 40 steps, 3 s instead of 4 s, 60 s of 160 s, 12.8 k of 51.2 k tokens
    for change in ("\N{MINUS SIGN}50", "\N{MINUS SIGN}25", "\N{MINUS SIGN}62", "\N{MINUS SIGN}75"):
        assert change in printed and change in text


def test_the_page_needs_nothing_but_itself(made):
    _, page, text, _ = made
    assert page.links == []
    assert "script" not in page.tags and "link" not in page.tags
    assert re.findall(r"@import|url\(", text) == []
    for alt, source in page.images:
        assert alt
        image = base64.b64decode(source.removeprefix("data:image/svg+xml;base64,"))
        assert image.lstrip().startswith(b"<?xml") and b"<script" not in image
        # references inside a figure stay inside it; anything else is the name of an XML schema
        assert all(link.startswith((b"#", b"data:")) for link in re.findall(rb'xlink:href="([^"]*)"', image))


def test_names_from_outside_cannot_become_markup_or_mathematics(tmp_path, runs):
    nasty = "<script>alert('x')</script> & $\\frac{1}{2}$ \"q\""
    bare = logs.write_flat(tmp_path / "bare.jsonl", logs.plain_steps(10, accuracy=lambda step: 0.9))
    page, text = make(tmp_path, f"{nasty}={runs[0]}", f"[red]ours={bare}", "--baseline", nasty)
    assert "script" not in page.tags and "<script>alert" not in text
    assert nasty in " ".join(page.words)


def test_metrics_and_benchmarks_with_odd_names_are_escaped(tmp_path):
    odd = {"val-core/<i>a</i>/acc/mean@1": 0.1, "val-core/b$^$/acc/mean@1": 0.2}
    lines = [{"step": step, **odd} for step in range(3)]
    page, text = make(tmp_path, logs.write_flat(tmp_path / "m.jsonl", lines))
    assert "i" not in page.tags and "&lt;i&gt;a" in text


def test_plain_verl_alone_makes_a_page_that_says_what_is_missing(tmp_path, runs):
    page, text = make(tmp_path, runs[0])
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == ["accuracy", "seconds"]
    words = " ".join(page.words)
    for title in ("Informative groups", "Predicted against observed difficulty", "Which questions were chosen"):
        assert f"{title}: not shown, " in words
    assert "generated tokens derived from the batch's total tokens and mean lengths" in words


@pytest.mark.parametrize(
    "kept",
    [("val-core/",), ("timing_s/step",), ("dots/pearson",), ("replay/size",), ("dots/observed_0", "critic/")],
)
def test_any_part_of_the_metrics_is_enough_for_a_page(tmp_path, kept):
    every = logs.dots_steps(12, accuracy=lambda step: 0.3)
    lines = [{name: v for name, v in line.items() if name == "step" or name.startswith(kept)} for line in every]
    page, _ = make(tmp_path, logs.write_flat(tmp_path / "m.jsonl", lines))
    assert "table" in page.tags


def test_a_run_of_one_step_makes_a_page(tmp_path):
    make(tmp_path, logs.write_flat(tmp_path / "m.jsonl", logs.dots_steps(1)))


def test_ten_thousand_steps_are_drawn_with_few_points(tmp_path):
    lines = logs.dots_steps(10_000, accuracy=lambda step: 0.3 + 1e-5 * step)
    _, text = make(tmp_path, logs.write_flat(tmp_path / "m.jsonl", lines))
    assert len(text) < 1_000_000


def test_the_same_logs_give_the_same_page(tmp_path, runs, made):
    folder, _, text, _ = made
    _, again = make(tmp_path, *runs)
    assert again == text
    assert (tmp_path / "out" / "accuracy.png").read_bytes() == (folder / "out" / "accuracy.png").read_bytes()


def test_question_texts_come_from_the_question_file(tmp_path):
    text = "How many <b>sheep</b>?"
    folder = logs.write_flat(tmp_path / "run" / "dots" / "metrics.jsonl", logs.dots_steps(3)).parent
    identity = question_id(text)
    part = logs.write_questions(folder / "questions", 3) / "part-00000001.parquet"
    table = pq.read_table(part)
    ids = pa.array([identity] * len(table))
    pq.write_table(table.set_column(table.column_names.index("question_id"), "question_id", ids), part)
    questions = tmp_path / "train.parquet"
    row = {"prompt": [{"role": "user", "content": "other"}], "extra_info": {"question": text}}
    pq.write_table(pa.Table.from_pylist([row]), questions)
    page, _ = make(tmp_path, tmp_path / "run", "--questions", questions)
    assert text in page.words and "b" not in page.tags and identity not in page.words


def test_what_differs_between_two_command_lines_is_shown(tmp_path):
    for name, batch in (("a", 16), ("b", 32)):
        logs.write_flat(tmp_path / name / "metrics.jsonl", logs.plain_steps(2))
        hydra = tmp_path / name / "hydra" / ".hydra"
        hydra.mkdir(parents=True)
        overrides = f"- data.train_batch_size={batch}\n- data.seed=1\n- trainer.default_local_dir={name}\n"
        (hydra / "overrides.yaml").write_text(overrides)
        (hydra / "config.yaml").write_text("{}")
    page, _ = make(tmp_path, tmp_path / "a", tmp_path / "b")
    assert "data.train_batch_size" in page.words and {"16", "32"} <= set(page.words)
    assert "data.seed" not in page.words and "trainer.default_local_dir" not in page.words


def test_real_runs_of_the_quickstart(tmp_path, capsys):
    page, _ = make(tmp_path, SAMPLES / "grpo", SAMPLES / "dots_rr")
    assert sorted(path.stem for path in (tmp_path / "out").glob("*.png")) == FIGURES
    assert "Time to the final accuracy of grpo" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent"], "no such file or folder: 'absent'"),
        ([], "the following arguments are required: RUN (see --help)"),
        (["{grpo}", "--baseline", "absent"], "no such file or folder: 'absent'"),
        (["{grpo}", "--benchmark", "aime"], "--benchmark aime: grpo was not validated on it, it has arithmetic"),
        (["{grpo}", "--output", "{grpo}/verl_metrics.jsonl"], "is a file: give a folder"),
        (["{grpo}", "--questions", "absent.parquet"], "no such file: 'absent.parquet'"),
    ],
)
def test_a_mistake_is_one_line(tmp_path, runs, arguments, message):
    with pytest.raises((ValueError, FileNotFoundError)) as caught:
        report.main([argument.format(grpo=runs[0]) for argument in arguments])
    assert message in explain(caught.value) and "\n" not in explain(caught.value)


def test_a_mistake_ends_the_command_with_exit_code_2_and_no_traceback(tmp_path):
    command = [sys.executable, "-m", "verl_dots.report", "absent"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert (done.returncode, done.stderr) == (2, "report.py: error: no such file or folder: 'absent'\n")


@pytest.mark.parametrize("baseline", ["second", "{path}", "new={path}"])
def test_the_baseline_is_a_name_or_a_path_and_need_not_be_among_the_runs(tmp_path, baseline, capsys):
    slow = logs.write_flat(tmp_path / "slow.jsonl", logs.plain_steps(20, accuracy=lambda step: 0.01 * step))
    fast = logs.write_flat(tmp_path / "fast.jsonl", logs.plain_steps(20, accuracy=lambda step: 0.02 * step))
    runs = [f"first={fast}"] if "new" in baseline else [f"first={fast}", f"second={slow}"]
    make(tmp_path, *runs, "--baseline", baseline.format(path=slow))
    name = "new" if "new" in baseline else "second"
    assert f"Time to the final accuracy of {name} (0.200 after 20 steps" in capsys.readouterr().out
