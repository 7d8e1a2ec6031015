"""The quickstart's table adds up, also for a run without our metrics."""

import json

from verl_dots.cpu import summary


def lines(ours: bool) -> list[dict]:
    found = [{"step": 0, "val-core/arithmetic/reward/mean@1": 0.4}]
    for step in (1, 2):
        line = {"step": step, "training/global_step": step, "timing_s/step": 2.0}
        if ours:
            line |= {"dots/informative_share": 0.5, "dots/trained_informative_share": 1.0, "dots/generated_groups": 8}
            line |= {"replay/size": 12, "replay/age_mean": float(step), "dots/pearson": 0.7}
        found.append(line)
    found[-1]["val-core/arithmetic/reward/mean@1"] = 0.6
    return found


def test_table_of_our_run():
    table = dict(summary.summarise(lines(ours=True), batch=16))
    assert table["validation accuracy"] == "0.400 -> 0.600"
    assert table["groups generated"] == "16, plain GRPO 32 (-50%)"
    assert table["replay"] == "12 groups; drawn ones 1.5 policy versions old on average"


def test_table_of_a_first_step_in_which_nothing_was_drawn():
    first = lines(ours=True)[:2]
    del first[1]["replay/age_mean"]
    assert dict(summary.summarise(first, batch=16))["replay"] == "12 groups; none drawn yet"


def test_table_of_plain_grpo_leaves_our_rows_out():
    table = dict(summary.summarise(lines(ours=False), batch=16))
    assert set(table) == {"steps", "validation accuracy", "seconds per step"}


def test_table_of_a_run_that_went_on_with_verls_own_trainer():
    mixed = lines(ours=True)[:2] + lines(ours=False)[2:]
    assert dict(summary.summarise(mixed, batch=16))["groups generated"] == "24, plain GRPO 32 (-25%)"


def test_figure_is_written(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines(ours=True)))
    summary.main([str(tmp_path)])
    assert (tmp_path / "quickstart.png").stat().st_size > 5000
