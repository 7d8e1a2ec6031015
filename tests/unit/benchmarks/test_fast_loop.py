import json
from pathlib import Path

import fast_loop
import pytest
from fast_figure import DRAWN
from fast_studies import STUDIES, Run, ablations, headline
from fast_tables import compare, read_runs, setting, show, time, to_target
from matplotlib import image
from methods import Method


def line(label, seed, final, groups, task="x"):
    curve = {"step": [0, 10, 20], "accuracy": [0.4, (0.4 + final) / 2, final]}
    curve |= {name: [0, groups // 2, groups] for name in ("groups", "tokens", "trained_tokens")}
    numbers = {"informative_share": 0.5, "trained_informative_share": 0.6, "groups": groups, "tokens": groups}
    run = {"task": task, "label": label, "seed": seed, "overrides": ["batch=32"], "curve": curve, "cpu_seconds": 1}
    return {**run, "final_accuracy": final, **numbers}


RUNS = [line("grpo", 1, 0.6, 100), line("grpo", 2, 0.62, 100), line("grpo", 3, 0.58, 100), line("dots_rr", 1, 0.8, 50)]


def test_costs_are_ratios_of_grpos_whole_run_at_its_median_final_accuracy():
    rows = compare([*RUNS, line("rr", 1, 0.59, 50)])
    assert rows["dots_rr"]["step_ratio"]["median"] == pytest.approx(0.5)  # .4 -> .8 over 20 steps: .6 after 10
    assert rows["dots_rr"]["groups_ratio"]["median"] == pytest.approx(0.25)
    assert rows["rr"]["reached"] == 0 and rows["rr"]["step_ratio"]["median"] is None
    assert rows["grpo"]["final_accuracy"] == {"median": 0.6, "min": 0.58, "max": 0.62} and rows["grpo"]["reached"] == 2
    assert to_target(RUNS[0], 0.55) == pytest.approx({"step": 15, "groups": 75, "tokens": 75, "trained_tokens": 75})


def test_a_run_is_measured_against_grpo_on_its_own_task_where_a_pool_has_several():
    runs = [line("grpo", 1, 0.6, 100, "x_1"), line("grpo", 2, 0.7, 200, "x_2")]
    runs += [line("dots_rr", 1, 0.8, 50, "x_1"), line("dots_rr", 2, 0.69, 100, "x_2")]
    assert {setting(run) for run in runs} == {("x", "32")} and setting(line("rr", 1, 0.6, 10, "x_carry"))[0] == "x_carry"
    row = compare(runs)["dots_rr"]
    assert row["gain"] == pytest.approx({"median": 9.5, "min": -1, "max": 20}) and row["reached"] == 1
    assert row["groups_ratio"]["min"] == pytest.approx(0.25) and row["groups_ratio"]["max"] is None


def test_time_counts_generation_by_its_groups_and_the_rest_by_steps():
    half = {"step": 20.0, "groups": 50.0}
    assert time(half, {"step": 20.0, "groups": 100.0}, share=0.5) == pytest.approx(0.75)
    assert time(half, {"step": 40.0, "groups": 100.0}, share=0.2) == pytest.approx(0.5)


def test_table_shows_one_part_for_each_setting():
    text = show([*RUNS, line("grpo", 1, 0.7, 100, task="y")])
    assert "### Pool x, batch 32" in text and "### Pool y, batch 32" in text
    start = "| dots_rr | 1 | 0.800 (0.800 to 0.800) | +20.0 (+20.0 to +20.0) | 0.50 / 0.60 "
    assert start + "| 0.50 (0.50 to 0.50) | 0.25 (0.25 to 0.25)" in text


def test_figure_has_a_panel_for_each_setting(tmp_path, capsys):
    table, figure = tmp_path / "runs.jsonl", tmp_path / "figure.png"
    widths = []
    for runs in (RUNS, [*RUNS, line("grpo", 1, 0.7, 100, task="y")]):
        table.write_text("".join(json.dumps(run) + "\n" for run in runs))
        fast_loop.main(["--table", str(table), "--figure", str(figure)])
        widths.append(image.imread(figure).shape[1])
    assert "### Pool x, batch 32" in capsys.readouterr().out
    assert widths[1] == pytest.approx(2 * widths[0], abs=2)
    with pytest.raises(ValueError, match="name the runs to draw with --table"):
        fast_loop.main(["--figure", str(figure)])


def test_the_committed_runs_are_those_that_the_figure_draws():
    """A default that changes gives runs other labels, and a figure without them would look like a result."""
    runs = read_runs(Path(fast_loop.__file__).parent / "results" / "fast_loop.jsonl")
    for pool in ("x", "y", "x_carry"):
        labels = [run["label"] for run in runs if setting(run) == (pool, "32")]
        assert {label: labels.count(label) >= 5 for label in DRAWN} == dict.fromkeys(DRAWN, True)


def test_an_unfinished_last_line_is_passed_over(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text(json.dumps(RUNS[0]) + "\n" + '{"name": "x gr')
    assert read_runs(path) == [RUNS[0]]


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_every_study_is_a_valid_method_and_has_its_own_name(name):
    runs = STUDIES[name]([101, 102])
    for run in runs:
        Method.make(run.method, run.preset, run.overrides, run.seed)
    assert len({run.name for run in runs}) == len(runs) >= 12  # the core of six methods, two seeds
    keyed = {(setting({"task": run.task, "overrides": run.overrides}), run.label, run.seed) for run in runs}
    assert len(keyed) == len(runs)


def test_headline_interleaves_methods_and_ablations_change_one_key():
    assert [run.label for run in headline([1])[:3]] == ["grpo", "dots", "dots_rr fresh .5"]
    capacity = [run for run in ablations([1], batch=32) if run.label.startswith("replay.capacity")]
    assert {run.label for run in capacity} == {f"replay.capacity={size}" for size in (64, 128, 512, 1024)}
    assert all(set(run.overrides) == {"batch=32", run.label} for run in capacity)


def test_a_study_does_what_is_missing_and_appends_it(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(fast_loop, "load_task", lambda folder: folder)
    monkeypatch.setattr(
        fast_loop, "train", lambda task, method, seed: done.append((task, seed)) or {"final_accuracy": 0.5, "cpu_seconds": 1}
    )
    runs = [Run("x", "grpo", "grpo", seed) for seed in (1, 2)]
    output = tmp_path / "new" / "runs.jsonl"
    fast_loop.run_study(runs[:1], Path("tasks"), output)
    with output.open("a") as stream:
        stream.write('{"name": "killed wh')
    fast_loop.run_study(runs, Path("tasks"), output)
    assert done == [(Path("tasks/arithmetic_x"), 1), (Path("tasks/arithmetic_x"), 2)]
    assert [run["seed"] for run in read_runs(output)] == [1, 2]


def test_a_study_notices_that_a_default_has_changed(tmp_path, monkeypatch):
    output = tmp_path / "runs.jsonl"
    run = Run("x", "dots_rr default", "dots_rr", 1)
    output.write_text(json.dumps({"name": run.name, "settings": "of an earlier default"}) + "\n")
    with pytest.raises(ValueError, match="with other settings, a default has changed: rename that file"):
        fast_loop.run_study([run], Path("tasks"), output)


def test_seeds_on_the_command_line():
    assert fast_loop.seed_list("201-203") == [201, 202, 203] and fast_loop.seed_list("2") == [101, 102]
    with pytest.raises(ValueError, match="--seeds 'all' is not allowed"):
        fast_loop.seed_list("all")
