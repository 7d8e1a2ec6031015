"""What the report measures, against sums done by hand."""

import dataclasses

import numpy as np
import pytest

from tests.unit import report_logs as logs
from verl_dots.difficulty.observations import calibration_error, read_observations
from verl_dots.reporting import quantities as q
from verl_dots.reporting.compare import compare
from verl_dots.reporting.questions import calibration, favourites, read_question_log
from verl_dots.reporting.readers import Series, collect
from verl_dots.reporting.runs import Run
from verl_dots.reporting.style import smooth, thin


def run_of(lines, name="run", **more):
    return Run(name, None, collect((line["step"], line) for line in lines), **more)


def series(**values):
    return Series.of([int(step[1:]) for step in values], values.values())


# ------------------------------------------------------------------------------------------------- quantities


def test_tokens_of_plain_verl_are_derived_and_ours_are_counted():
    plain, how = q.tokens_per_step(run_of(logs.plain_steps(3)))
    assert plain.values.tolist() == [logs.ROWS * logs.RESPONSE] * 3
    assert how == "derived from the batch's total tokens and mean lengths"
    ours, how = q.tokens_per_step(run_of(logs.dots_steps(3)))
    assert ours.values.tolist() == [logs.ROWS / 2 * logs.RESPONSE] * 3
    assert how == "counted where they were generated"


def test_groups_that_verl_filtered_away_were_generated_too():
    lines = logs.plain_steps(2)
    lines[1] |= {"training/filter_groups/evicted_samples": 4, "training/filter_groups/discarded_surplus_samples": 2}
    tokens, how = q.tokens_per_step(run_of(lines, rollouts=8))
    assert tokens.values.tolist() == [1280.0, 1280.0 + 6 * 8 * 10.0]
    assert how.endswith("are added with the mean length")
    tokens, how = q.tokens_per_step(run_of(lines))  # how many rollouts a group has is not in the log
    assert tokens.values.tolist() == [1280.0, 1280.0]
    assert "a lower bound" in how


def test_a_running_total_counts_missing_steps_like_the_next_one():
    total = q.cumulative(series(s1=2.0, s2=3.0, s5=4.0))
    assert total.values.tolist() == [2.0, 5.0, 17.0]
    assert [q.at(total, step) for step in (0, 1, 2, 4, 5, 9)] == [0.0, 2.0, 5.0, 5.0, 17.0, 17.0]
    assert q.at(q.EMPTY, 3) is None


def test_time_is_the_step_timer_and_otherwise_the_loggers_clock():
    total, how = q.seconds(run_of(logs.plain_steps(10, accuracy=lambda step: 0.5)))
    assert total.values[-1] == 40.0 and "validation not counted" in how  # 2 s of validation are not in it
    lines = [{"step": step, "val-core/x/acc/mean@1": 0.5, "wall_seconds": 7.0 * step} for step in range(3)]
    total, how = q.seconds(run_of(lines))
    assert total.values.tolist() == [0.0, 7.0, 14.0] and how.startswith("clock of the logger")


def test_the_parts_of_a_step_add_up_to_the_step():
    lines = logs.dots_steps(10, accuracy=lambda step: 0.5, seconds=4.0)
    lines[1]["timing_s/step"] = 100.0  # the first step starts the machinery
    parts = q.step_seconds(run_of(lines))
    validation = parts.pop("validation")
    assert sum(parts.values()) == pytest.approx(4.0)
    assert (parts["rollouts"], parts["prediction and selection"]) == (2.0, pytest.approx(0.01))
    assert validation == pytest.approx(2.0 / 9)  # once in nine steps


def test_accuracy_is_the_mean_over_the_sources_that_all_runs_have():
    both = run_of([{"step": 0, "val-core/a/acc/mean@4": 0.2, "val-core/b/x/acc/mean@8": 0.6}])
    one = run_of([{"step": 0, "val-core/a/acc/mean@4": 0.3}])
    assert q.common_benchmarks([both, one]) == ["a"]
    assert q.common_benchmarks([both]) == ["a", "b/x"]
    assert q.accuracy(both, ["a", "b/x"]).values.tolist() == [pytest.approx(0.4)]
    assert len(q.accuracy(one, ["a", "b/x"])) == 0


def test_only_steps_with_every_source_count():
    lines = [{"step": 0, "val-core/a/acc/mean@1": 0.2, "val-core/b/acc/mean@1": 0.4}]
    lines += [{"step": 5, "val-core/a/acc/mean@1": 0.9}]
    found = q.accuracy(run_of(lines), ["a", "b"])
    assert (found.steps.tolist(), found.values.tolist()) == ([0], [pytest.approx(0.3)])


# ------------------------------------------------------------------------------------------------- comparison


def base_and_ours(ours=lambda step: 0.2 + 0.02 * step, base=lambda step: 0.2 + 0.01 * step):
    return (
        run_of(logs.plain_steps(40, accuracy=base, seconds=10.0), "grpo"),
        run_of(logs.dots_steps(40, accuracy=ours, seconds=8.0), "dots_rr"),
    )


def test_reductions_by_hand():
    base, ours = base_and_ours()
    found = compare([base, ours])
    assert found.baseline.run is base and found.target == pytest.approx(0.6)
    (verdict,) = found.verdicts
    assert (verdict.reached.step, found.end.step, found.spacing) == (20, 40, 10)
    saved = verdict.against_end
    assert saved.steps == 0.5
    assert saved.per_step == pytest.approx(0.2)  # 8 s instead of 10 s
    assert saved.total == pytest.approx(1 - 160 / 400)
    assert saved.tokens == pytest.approx(1 - (20 * 640) / (40 * 1280))
    assert 1 - saved.total == pytest.approx((1 - saved.steps) * (1 - saved.per_step))


def test_the_baseline_is_held_to_its_own_first_crossing_as_well():
    wobbly = {0: 0.2, 10: 0.4, 20: 0.6, 30: 0.5, 40: 0.6}
    base, ours = base_and_ours(base=wobbly.get)
    (verdict,) = compare([base, ours]).verdicts
    assert verdict.against_end.steps == 0.5  # 20 against 40, as in the paper
    assert verdict.against_first.steps == 0.0  # 20 against 20


def test_a_run_that_never_gets_there_has_no_reductions():
    base, ours = base_and_ours(ours=lambda step: 0.3)
    (verdict,) = compare([base, ours]).verdicts
    assert verdict.reached is None and verdict.against_end is None


def test_step_0_reaches_nothing():
    base, ours = base_and_ours(ours=lambda step: 0.9 if step in (0, 40) else 0.1)
    (verdict,) = compare([base, ours]).verdicts
    assert verdict.reached.step == 40


@pytest.mark.parametrize(
    ("base", "why"),
    [(lambda step: 0.5, "ends no better than it began"), (None, "has no validation after step 0")],
)
def test_without_a_target_there_is_no_comparison_and_a_reason(base, why):
    runs = run_of(logs.plain_steps(20, accuracy=base), "grpo"), base_and_ours()[1]
    found = compare(runs)
    assert found.end is None and why in found.why_not and found.verdicts == ()


def test_which_run_is_the_baseline():
    base, ours = base_and_ours()
    assert compare([ours, base]).baseline.run is base
    assert compare([base]).baseline is None
    other = dataclasses.replace(base, name="grpo again")
    assert "--baseline" in compare([base, other, ours]).why_not
    assert compare([base, other, ours], baseline=other).baseline.run is other
    assert compare([base, ours], baseline=ours).verdicts[0].progress.run is base


def test_missing_time_and_tokens_leave_the_steps():
    base, ours = base_and_ours()
    only = [{name: v for name, v in line.items() if name == "step" or name.startswith("val")} for line in logs.dots_steps(
        40, accuracy=lambda step: 0.2 + 0.02 * step)]  # fmt: skip
    (verdict,) = compare([base, run_of(only, "bare")], baseline=base).verdicts
    assert verdict.against_end.steps == 0.5
    assert (verdict.against_end.per_step, verdict.against_end.total, verdict.against_end.tokens) == (None, None, None)


# ------------------------------------------------------------------------------------------------- questions


@pytest.fixture(scope="module")
def table_and_records(tmp_path_factory):
    folder = logs.write_questions(tmp_path_factory.mktemp("log") / "questions", 200)
    records = [seen for path in sorted(folder.glob("part-*")) for seen in read_observations(path)]
    return read_question_log(folder), records


def test_the_question_log_is_read_back_whole(table_and_records):
    table, records = table_and_records
    assert len(table) == len(records) == 200 * 8
    for place in (0, 7, 8, 1599):
        seen = records[place]
        assert table.ids[table.question[place]] == seen.question_id
        assert (table.step[place], table.trials[place]) == (seen.step, seen.trials)
        assert table.difficulty[place] == pytest.approx(seen.difficulty)
        assert np.isnan(table.predicted[place]) == (seen.predicted is None)
    assert table.of_source("explored").sum() == 2 * 200


def test_calibration_is_that_of_the_training_metric(table_and_records):
    table, records = table_and_records
    explored = [seen for seen in records if seen.source == "explored" and seen.predicted is not None]
    predicted = np.array([seen.predicted for seen in explored])
    observed = np.array([seen.difficulty for seen in explored])
    found = calibration(table, ["explored"])
    assert found.count.sum() == len(explored)
    assert found.expected_error == pytest.approx(calibration_error(predicted, observed), abs=2e-3)  # float32 at bin edges
    assert found.pearson == pytest.approx(np.corrcoef(predicted, observed)[0, 1], abs=1e-4)
    assert np.all(np.abs(found.predicted - found.observed) < 5 * found.error + 0.05)  # they were right up to noise


def test_too_few_predictions_are_not_judged(table_and_records):
    table, _ = table_and_records
    assert calibration(table, ["reference"]) is None


def test_favourites_are_the_questions_rolled_out_most(table_and_records):
    table, records = table_and_records
    counts = {}
    for seen in records:
        counts[seen.question_id] = counts.get(seen.question_id, 0) + 1
    found = favourites(table, most=5)
    assert [item.times for item in found] == sorted(counts.values(), reverse=True)[:5]
    first = found[0]
    mine = [seen for seen in records if seen.question_id == first.question_id]
    assert (first.first_step, first.last_step) == (mine[0].step, mine[-1].step)
    assert first.last_difficulty == pytest.approx(mine[-1].difficulty)
    assert sum(first.sources.values()) == first.times


def test_no_log_and_a_damaged_one(tmp_path):
    assert read_question_log(tmp_path) is None
    (tmp_path / "part-00000001.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ValueError, match="part-00000001.parquet is not a part of a question log"):
        read_question_log(tmp_path)


# ------------------------------------------------------------------------------------------------- long series


def test_thinning_keeps_means_and_smoothing_keeps_a_line():
    steps = np.arange(10_000)
    line = Series(steps, 3.0 * steps)
    few = thin(line, 100)
    assert len(few) == 100
    assert few.values.mean() == pytest.approx(line.values.mean())
    middle = slice(1_000, 9_000)
    np.testing.assert_allclose(smooth(line).values[middle], line.values[middle])
    short = Series(steps[:20], line.values[:20])
    assert thin(short) is short and smooth(short) is short
