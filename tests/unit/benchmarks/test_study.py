import json

import pytest
from study import METHODS, TASKS, Run, collect, do_run, finished, main, plan, runs_file, seed_list
from study_runs import step_numbers
from study_tables import accuracy_at, aggregate, show, to_baseline

from tests.unit.benchmarks.files_of_runs import study_result

GRPO = [study_result("grpo", 1.0, 8, accuracy=(0.4, final), seed=seed) for seed, final in enumerate((0.58, 0.6, 0.62))]
HALF = study_result("dots_rr", 0.5, 4, accuracy=(0.4, 0.8))


def test_runs_are_interleaved_by_seed():
    runs = plan(["pool_x", "pool_y"], ["grpo", "dots"], [1, 2], None, None)
    assert [(run.seed, run.task, run.method) for run in runs[:5]] == [
        (1, "pool_x", "grpo"), (1, "pool_x", "dots"), (1, "pool_y", "grpo"), (1, "pool_y", "dots"), (2, "pool_x", "grpo"),
    ]  # fmt: skip
    assert (runs[0].steps, runs[0].batch) == (TASKS["pool_x"].steps, 32)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_quickstart_of_its_own_folder(tmp_path, method):
    environment, command = Run("carry_slip", method, 7, steps=20, batch=32).command(tmp_path)
    assert command[:2] == ["bash", "recipes/quickstart_cpu.sh"] and environment["SEED"] == "7"
    assert environment["METHOD"] in ("grpo", "dots", "rr", "dots_rr") and environment["BUILD_ARGS"] == "--task carry_slip"
    assert environment["OUT"].startswith(f"{tmp_path}/carry_slip/{method.replace(':', '_')}/")
    assert ("algorithm.filter_groups.enable=True" in command) == (method == "dapo")
    scaled = [argument for argument in command if argument.startswith(("dots.reference.size", "dots.replay.capacity"))]
    assert scaled == (["dots.reference.size=32", "dots.replay.capacity=32"] if method[-5:] in ("paper", "eased") else [])


def test_json_has_the_quantities_with_median_and_range():
    study = aggregate([*GRPO, HALF])
    row = study["pool_x"]["dots_rr"]
    assert set(row) == {"seeds", "final_accuracy", "step_seconds_ratio", "informative_share", "to_baseline_accuracy"}
    ratios = row["to_baseline_accuracy"]
    assert set(ratios) == {"seconds_ratio", "steps_ratio", "generated_tokens_ratio"}
    assert study["pool_x"]["grpo"]["seeds"] == 3 and study["pool_x"]["grpo"]["final_accuracy"]["max"] == 0.62
    # .6 is reached half way of 4 steps of 1.5 s with 40 tokens each, against 4 of 2 s with 80
    assert ratios["steps_ratio"] == pytest.approx({"median": 0.5, "min": 0.5, "max": 0.5})
    assert ratios["seconds_ratio"]["median"] == pytest.approx(0.5 * 1.5 / 2)
    assert ratios["generated_tokens_ratio"]["median"] == pytest.approx(0.25)
    assert row["step_seconds_ratio"]["median"] == pytest.approx(0.75)


def test_seconds_are_reweighted_to_a_share_of_generation():
    """Half the generation: at a share s a step costs 1 - s / 2, and half the steps are needed."""
    ratios = to_baseline([HALF], GRPO)
    for share in (0.46, 0.54):
        assert ratios[f"seconds_{share}"]["median"] == pytest.approx(0.5 * (1 - share / 2))


def test_seconds_are_compared_with_the_run_of_the_same_seed():
    """A machine three times slower for one seed changes no ratio."""
    ours = {**HALF, "seed": 1}
    slow = [slowed(run, 3) if run["seed"] == 1 else run for run in GRPO]
    for runs, baseline in (([ours], GRPO), ([slowed(ours, 3)], slow)):
        assert to_baseline(runs, baseline)["seconds"]["median"] == pytest.approx(0.5 * 1.5 / 2)
        assert to_baseline(runs, baseline)["seconds_0.54"]["median"] == pytest.approx(0.5 * (1 - 0.54 / 2))
        assert aggregate([*baseline, *runs])["pool_x"]["dots_rr"]["step_seconds_ratio"]["median"] == pytest.approx(0.75)


def test_seconds_of_another_machine_are_compared_with_nothing():
    elsewhere = study_result("dots_rr", 0.1, 4, accuracy=(0.4, 0.8), boot="elsewhere")
    ratios = to_baseline([HALF, elsewhere], GRPO)
    assert ratios["seconds"]["max"] == pytest.approx(0.5 * 1.5 / 2) and ratios["steps"]["median"] == pytest.approx(0.5)
    alone = aggregate([*GRPO, elsewhere])["pool_x"]["dots_rr"]
    assert alone["step_seconds_ratio"] is None and alone["to_baseline_accuracy"]["seconds_ratio"] is None
    assert " | - | - / - | - | 1/1 |" in show([*GRPO, elsewhere])


def slowed(run, factor):
    seconds = {name: [factor * value for value in row] for name, row in run["per_step"].items() if "seconds" in name}
    return {**run, "per_step": {**run["per_step"], **seconds}}


def test_accuracy_stands_against_steps_and_against_generated_tokens():
    assert accuracy_at(GRPO, "steps", 2) == pytest.approx(0.5)
    assert accuracy_at(GRPO, "generated_tokens", 80) == pytest.approx(0.45)
    assert accuracy_at([HALF], "generated_tokens", 80) == pytest.approx(0.6)
    assert accuracy_at([HALF], "generated_tokens", 320) is None
    assert "| dots_rr | 4.0 | 0.500, 0.700, 0.800 | 0.560, 0.720, - |" in show([*GRPO, HALF])


def test_without_grpo_there_are_no_ratios_and_never_is_null():
    assert aggregate([HALF])["pool_x"]["dots_rr"]["to_baseline_accuracy"]["steps_ratio"] is None
    worse = study_result("rr", 1.0, 8, accuracy=(0.4, 0.5))
    assert to_baseline([worse], GRPO)["reached"] == 0
    assert to_baseline([worse], GRPO)["steps"] == {"median": None, "min": None, "max": None}
    assert "| rr | 1 | 0.500" in show([*GRPO, worse])


def test_numbers_of_a_step_of_verls_own_trainer_with_its_filter():
    scores = {"a_0_0": 1.0, "a_1_0": 0.0, "b_0_0": 1.0, "b_1_0": 1.0}
    rows = [{"uid": key, "score": score} for key, score in scores.items()]
    line = {"timing_s/step": 5.0, "timing_s/gen": 3.0, "timing_s/save_checkpoint": 1.0, "response_length/mean": 10.0}
    numbers = step_numbers(line, 2, rows)
    assert (numbers["seconds"], numbers["seconds_gen"], numbers["trained_tokens"]) == (4.0, 3.0, 40.0)
    assert numbers["trained_informative"] == numbers["fresh_informative"] == 0.5 and numbers["generated_groups"] == 2
    line |= {"training/filter_groups/evicted_samples": 2, "training/filter_groups/discarded_surplus_samples": 1}
    filtered = step_numbers(line, 2, rows)
    assert (filtered["generated_groups"], filtered["generated_tokens"], filtered["fresh_informative"]) == (5, 100.0, 0.25)
    line |= {"dots/generated_tokens": 7, "dots/generated_groups": 3, "dots/informative_share": 0.9}
    ours = step_numbers(line, 2, rows)
    assert (ours["generated_tokens"], ours["generated_groups"], ours["fresh_informative"]) == (7, 3, 0.9)


def test_the_estimate_is_told_where_the_difficulty_was_estimated():
    rows = [{"step": 5, "spread": 0.4}] + [{"step": step, "pearson": value} for step, value in ((10, 0.9), (40, 0.7))]
    text = show([*GRPO, {**HALF, "estimate": rows}])
    assert text.endswith("\nPearson of estimated and true difficulty, first 20 steps and all: dots_rr 0.90, 0.80.")
    assert "Pearson" not in show(GRPO)


def test_collecting_writes_the_table_and_the_json(tmp_path, capsys):
    with pytest.raises(ValueError, match="holds no finished run"):
        collect(tmp_path, tmp_path / "results" / "study.json")
    for result in (*GRPO, HALF):
        folder = tmp_path / result["task"] / result["method"] / f"seed{result['seed']}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps(result))
    collect(tmp_path, tmp_path / "results" / "study.json")
    assert json.loads((tmp_path / "results" / "study.json").read_text())["pool_x"]["dots_rr"]["seeds"] == 1
    assert len((tmp_path / "results" / "study_runs.jsonl").read_text().splitlines()) == 4
    assert "### pool_x" in capsys.readouterr().out == (tmp_path / "results" / "study.md").read_text()


def test_runs_of_another_machine_are_not_done_again(tmp_path, monkeypatch):
    """A new machine has the committed results and no folders of runs."""
    output = tmp_path / "results" / "study.json"
    output.parent.mkdir()
    lines = [study_result("grpo", 1.0, 8, seed=101), study_result("grpo", 1.0, 8, seed=101, steps=9)]
    runs_file(output).write_text("".join(json.dumps(line) + "\n" for line in lines))
    ran = []

    def pretend(run, root, lock):
        ran.append(run.method)
        run.folder(root).mkdir(parents=True)
        (run.folder(root) / "result.json").write_text(json.dumps(study_result(run.method, 0.5, 4, seed=run.seed)))

    monkeypatch.setattr("study.do_run", pretend)
    sizes = ["--steps", "4", "--batch", "8", "--folder", str(tmp_path / "study"), "--output", str(output)]
    main(["--tasks", "pool_x", "--methods", "dots", "grpo", "--seeds", "101", *sizes])
    assert ran == ["dots"]
    assert [(run["method"], run["steps"]) for run in finished(tmp_path, output).values()] == [
        ("grpo", 4), ("grpo", 9), ("dots", 4),
    ]  # fmt: skip


def test_a_failed_run_names_its_log(tmp_path, monkeypatch):
    monkeypatch.setattr(Run, "command", lambda self, root: ({}, ["bash", "-c", "exit 3"]))
    run = Run("pool_x", "grpo", 1, 4, 8)
    with pytest.raises(ValueError, match="ended with code 3: see .*console.log"):
        do_run(run, tmp_path, tmp_path / "lock")
    assert json.loads((run.folder(tmp_path) / "run.json").read_text())["versions"]["verl"]


def test_seeds_on_the_command_line():
    assert seed_list("101-103") == [101, 102, 103] and seed_list("7") == [7]
    with pytest.raises(ValueError, match="--seeds 'x' is not allowed"):
        seed_list("x")
