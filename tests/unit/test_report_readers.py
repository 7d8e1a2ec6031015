"""Every format in which a run may come gives the same numbers."""

import json

import numpy as np
import pytest

from tests.unit import report_logs as logs
from verl_dots.reporting.readers import Series, collect, read_csv
from verl_dots.reporting.runs import read_runs


def rising(step):
    return 0.3 + 0.005 * step


@pytest.fixture(scope="module")
def lines():
    return logs.dots_steps(20, accuracy=rising)


def assert_same(run, lines, tolerance=0.0):
    for name in ("val-core/arithmetic/acc/mean@4", "timing_s/step", "dots/pearson", "replay/size"):
        expected = Series.of(*zip(*[(line["step"], line[name]) for line in lines if name in line], strict=True))
        assert run.get(name).steps.tolist() == expected.steps.tolist(), name
        np.testing.assert_allclose(run.get(name).values, expected.values, rtol=tolerance, err_msg=name)


def test_flat_nested_wandb_and_tensorboard_logs_give_the_same_series(tmp_path, lines):
    assert_same(*read_runs([str(logs.write_flat(tmp_path / "flat.jsonl", lines))]), lines)
    assert_same(*read_runs([str(logs.write_nested(tmp_path / "verl.jsonl", lines))]), lines)
    assert_same(*read_runs([str(logs.write_wandb_history(tmp_path / "history.csv", lines))]), lines)
    assert_same(*read_runs([str(logs.write_tensorboard(tmp_path / "events", lines))]), lines, tolerance=1e-6)  # float32


def test_wandb_history_as_json_lines(tmp_path, lines):
    rows = [{**line, "_step": line["step"], "_runtime": 5.0 * line["step"]} for line in lines]
    for row in rows:
        del row["step"]
    (run,) = read_runs([str(logs.write_flat(tmp_path / "history.jsonl", rows))])
    assert_same(run, lines)
    assert run.get("wall_seconds").values[-1] == 100.0


def test_a_wandb_panel_holds_one_run_per_column(tmp_path):
    metric = "val-core/arithmetic/acc/mean@4"
    runs = {"grpo": logs.plain_steps(20, accuracy=rising), "a - b": logs.plain_steps(20, accuracy=lambda step: 0.5)}
    path = logs.write_wandb_panel(tmp_path / "panel.csv", metric, runs)
    found = read_runs([str(path)])
    assert [run.name for run in found] == ["grpo", "a - b"]
    assert found[0].get(metric).values.tolist() == [0.3, 0.35, 0.4]
    assert set(found[1].series) == {metric}


def test_what_the_report_does_not_use_is_not_kept(tmp_path, lines):
    (run,) = read_runs([str(logs.write_flat(tmp_path / "m.jsonl", lines))])
    assert "actor/grad_norm" not in run.series


def test_a_resumed_run_logs_steps_again_and_the_later_record_counts(tmp_path):
    first, second = logs.plain_steps(20, seconds=4.0), logs.plain_steps(30, seconds=8.0)
    path = logs.write_flat(tmp_path / "m.jsonl", first + second[15:])
    (run,) = read_runs([str(path)])
    assert run.get("timing_s/step").steps.tolist() == list(range(1, 31))
    assert run.get("timing_s/step").values.tolist() == [4.0] * 15 + [8.0] * 15


def test_values_that_are_no_finite_numbers_are_left_out():
    series = collect([(1, {"dots/pearson": None, "dots/labels": "many"}), (2, {"dots/pearson": float("nan")})])
    assert series == {}
    series = collect([(1, {"dots/pearson": "0.5", "replay/size": True})])
    assert series["dots/pearson"].values.tolist() == [0.5] and set(series) == {"dots/pearson"}


def test_a_line_that_a_kill_cut_off_is_skipped_and_a_damaged_one_is_named(tmp_path, lines):
    path = logs.write_flat(tmp_path / "m.jsonl", lines)
    whole = path.read_text()
    path.write_text(whole + '{"step": 21, "dots/pea')
    (run,) = read_runs([str(path)])
    assert (run.last_step, run.notes) == (20, ())
    path.write_text(whole + '{"step": 21, "dots/pea' + whole)  # resumed, and appended to
    (run,) = read_runs([str(path)])
    assert run.notes == ("1 damaged line(s) of m.jsonl were left out, first line 22",)
    assert_same(run, lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PK\x03\x04 not a log", "line 1: not JSON"),
        ("[1, 2]\n", "line 1: not a JSON object"),
        ('{"dots/pearson": 1}\n', "line 1: no step under any of step, _step"),
        ('{"step": 3, "loss": 1}\n', "no metrics of verl in"),
        ("", "no metrics of verl in"),
    ],
)
def test_a_file_of_something_else_is_refused_in_one_line(tmp_path, text, message):
    path = tmp_path / "other.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        read_runs([str(path)])
    assert "\n" not in str(caught.value) and "other.jsonl" in str(caught.value)


def test_a_csv_without_a_step_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no column step or _step"):
        read_csv(path)


def test_a_folder_is_searched_best_log_first(tmp_path, lines):
    out = tmp_path / "mine"
    logs.write_nested(out / "verl_metrics.jsonl", lines[:5])
    assert read_runs([str(out)])[0].source == out / "verl_metrics.jsonl"
    logs.write_flat(out / "checkpoints" / "dots" / "metrics.jsonl", lines)  # survives a resume
    assert read_runs([str(out)])[0].source == out / "checkpoints" / "dots" / "metrics.jsonl"
    (run,) = read_runs([str(out / "checkpoints")])  # verl's default_local_dir
    assert (run.name, run.last_step) == ("mine", 20)


def test_a_recipe_that_resumed_left_two_files(tmp_path):
    first, second = logs.plain_steps(20, seconds=4.0), logs.plain_steps(30, seconds=8.0)
    logs.write_nested(tmp_path / "metrics.jsonl", first)  # what verl's file held when the run was resumed
    logs.write_nested(tmp_path / "verl_metrics.jsonl", second[15:])
    (run,) = read_runs([str(tmp_path)])
    assert run.get("timing_s/step").values.tolist() == [4.0] * 15 + [8.0] * 15


def test_names_come_from_the_argument_or_the_path_and_are_distinct(tmp_path, lines):
    for folder in ("a/x", "b/x"):
        logs.write_flat(tmp_path / folder / "metrics.jsonl", lines)
    a, b = str(tmp_path / "a/x"), str(tmp_path / "b/x")
    assert [run.name for run in read_runs([a, f"ours={b}"])] == ["x", "ours"]
    assert [run.name for run in read_runs([a, b])] == ["x", "x (2)"]
    odd = logs.write_flat(tmp_path / "lr=1e-6" / "metrics.jsonl", lines).parent
    assert [run.name for run in read_runs([str(odd)])] == ["lr=1e-6"]


def test_a_folder_without_metrics_and_no_folder_at_all(tmp_path, lines):
    with pytest.raises(ValueError, match="no such file or folder"):
        read_runs([str(tmp_path / "absent")])
    with pytest.raises(ValueError, match="no metrics in .*: give a run folder"):
        read_runs([str(tmp_path)])
    for name in ("a.jsonl", "b.jsonl"):
        logs.write_nested(tmp_path / name, lines)
    with pytest.raises(ValueError, match="it has 2 .jsonl files, name one"):
        read_runs([str(tmp_path)])


def test_a_folder_of_several_tensorboard_runs_must_be_narrowed_down(tmp_path):
    for name in ("one", "two"):
        logs.write_tensorboard(tmp_path / name, logs.plain_steps(2))
    with pytest.raises(ValueError, match="holds 2 TensorBoard runs: name one, such as"):
        read_runs([str(tmp_path)])
    assert read_runs([str(tmp_path / "two")])[0].name == "two"


def test_the_configuration_is_read_where_hydra_left_it(tmp_path, lines):
    logs.write_flat(tmp_path / "metrics.jsonl", lines)
    hydra = tmp_path / "hydra" / ".hydra"
    hydra.mkdir(parents=True)
    (hydra / "overrides.yaml").write_text("- +dots=default\n- data.train_batch_size=16\n")
    (hydra / "config.yaml").write_text("actor_rollout_ref: {rollout: {n: 8}}\n")
    (run,) = read_runs([str(tmp_path)])
    assert run.overrides == {"dots": "default", "data.train_batch_size": "16"}
    assert run.rollouts == 8


def test_an_incomplete_log_says_so(tmp_path, lines):
    (run,) = read_runs([str(logs.write_flat(tmp_path / "m.jsonl", [line for line in lines if line["step"] > 4]))])
    assert run.notes == ("its log begins at step 5: hours and tokens count from there",)
    (run,) = read_runs([str(logs.write_flat(tmp_path / "m.jsonl", lines[:5] + lines[8:]))])
    assert run.notes == ("3 of its steps are not in the log: each is counted like the next one that is",)


def test_reading_does_not_depend_on_the_order_of_lines(tmp_path, lines):
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in reversed(lines)))
    assert_same(*read_runs([str(path)]), lines)
