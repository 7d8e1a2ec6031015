"""verl_dots.difficulty.observations: windows, tracking, files that survive a resume."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from verl_dots.difficulty.observations import ObservationLog, QuestionLog, calibration_error, read_observations
from verl_dots.types import Observation, question_id

SOURCES = ("selected", "explored", "reference")


def seen(number: int, step: int, source: str = "selected", successes: float = 2.0, predicted: float | None = None):
    return Observation(question_id(str(number)), step, source, successes, 8, predicted)


def filled(count: int = 30) -> ObservationLog:
    log = ObservationLog()
    log.append(seen(i, 1 + i // 3, SOURCES[i % 3], i % 9, None if i < 3 else i / count) for i in range(count))
    return log


def test_windows_hold_the_most_recent_groups_oldest_first():
    log = filled()
    everything = log.window(1000)
    assert len(everything) == len(log) == 30
    assert log.window(4) == everything[-4:]
    assert log.window(4, "explored") == [o for o in everything if o.source == "explored"][-4:]
    assert log.reference(3) == [o for o in everything if o.source == "reference"][-3:]
    assert log.window(0) == []


def test_arrays_are_the_same_records():
    log = filled()
    arrays = log.arrays()
    for i, observation in enumerate(log.window(30)):
        assert arrays.question_ids[arrays.question[i]] == observation.question_id
        assert (arrays.step[i], arrays.successes[i]) == (observation.step, observation.successes)
        assert arrays.trials[i] == 8
        assert np.isnan(arrays.predicted[i]) if observation.predicted is None else arrays.predicted[i] == i / 30
    log.append([seen(0, 99)])
    assert log.arrays().step[-1] == 99
    assert log.arrays().question[-1] == 0


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (Observation("a", 5, "selected", 9.0, 8), "9.0 successes in 8 trials"),
        (Observation("a", 5, "selected", -1.0, 8), "-1.0 successes"),
        (Observation("a", 5, "selected", 0.0, 0), "0 trials"),
        (Observation("a", 5, "selected", float("nan"), 8), "nan successes"),
        (Observation("a", 3, "selected", 1.0, 8), "in the order of steps"),
    ],
)
def test_impossible_observations_are_refused(bad, says):
    log = ObservationLog()
    log.append([seen(0, 4)])
    with pytest.raises(ValueError, match=says):
        log.append([bad])


def test_tracking_counts_predicted_explored_groups_only():
    log = ObservationLog()
    rng = np.random.default_rng(0)
    for step in range(1, 41):
        log.append([seen(step, step, "selected", 8.0, 1.0)])  # all wrong, must not count
        log.append([seen(1000 + step, step, "explored", 8.0, None)])
        log.append([seen(2000 + step, step, "explored", float(rng.integers(9)), rng.random())])
        if step == 31:
            assert log.tracking() == {}
    counted = [o for o in log.window(1000, "explored") if o.predicted is not None]
    predicted = np.array([o.predicted for o in counted])
    observed = np.array([1 - o.successes / 8 for o in counted])
    metrics = log.tracking()
    assert metrics["dots/pearson"] == pytest.approx(np.corrcoef(predicted, observed)[0, 1])
    error = sum(
        (inside := (predicted >= b / 10) & (predicted < (b + 1) / 10)).sum()
        * abs((predicted[inside].mean() - observed[inside].mean()) if inside.any() else 0)
        for b in range(10)
    )
    assert metrics["dots/calibration_error"] == pytest.approx(error / 40)
    assert log.tracking(last=35)["dots/pearson"] == pytest.approx(np.corrcoef(predicted[-35:], observed[-35:])[0, 1])


def test_a_correlation_that_does_not_exist_is_absent():
    log = ObservationLog()
    log.append(seen(i, 1, "explored", i % 9, 0.5) for i in range(40))
    assert set(log.tracking()) == {"dots/calibration_error"}


def test_calibration_error_counts_the_value_one():
    assert calibration_error(np.array([1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(0.5)


def test_parquet_gives_the_same_log(tmp_path):
    log = filled()
    log.to_parquet(tmp_path / "o.parquet")
    loaded = ObservationLog.from_parquet(tmp_path / "o.parquet")
    assert loaded.window(100) == log.window(100)
    assert pq.read_table(tmp_path / "o.parquet")["policy"].to_pylist()[-1] == str(log.window(1)[0].step - 1)


def test_an_empty_log_survives(tmp_path):
    ObservationLog().to_parquet(tmp_path / "o.parquet")
    assert len(ObservationLog.from_parquet(tmp_path / "o.parquet")) == 0


def test_a_broken_file_is_named(tmp_path):
    (tmp_path / "o.parquet").write_text("nonsense")
    with pytest.raises(ValueError, match="o.parquet"):
        ObservationLog.from_parquet(tmp_path / "o.parquet")


def write_steps(log: QuestionLog, steps: range) -> None:
    for step in steps:
        log.append(step, [seen(step, step, "explored"), seen(100 + step, step)])


def steps_on_disk(log: QuestionLog) -> list[int]:
    return [o.step for part in log.parts() for o in read_observations(part)]


def test_parts_appear_every_few_steps_and_at_a_flush(tmp_path):
    log = QuestionLog(tmp_path / "questions", steps_per_part=4)
    write_steps(log, range(1, 4))
    assert log.parts() == []
    write_steps(log, range(4, 11))
    assert [path.name for path in log.parts()] == ["part-00000001.parquet", "part-00000005.parquet"]
    log.flush()
    log.flush()
    assert steps_on_disk(log) == [s for s in range(1, 11) for _ in range(2)]


@pytest.mark.parametrize("after", [0, 3, 4, 6, 100])
def test_a_resumed_run_continues_without_gaps_or_repeats(tmp_path, after):
    log = QuestionLog(tmp_path, steps_per_part=4)
    write_steps(log, range(1, 11))
    log.flush()
    resumed = QuestionLog(tmp_path, steps_per_part=4)
    resumed.cut(after)
    write_steps(resumed, range(after + 1, 11))
    resumed.flush()
    assert steps_on_disk(resumed) == [s for s in range(1, 11) for _ in range(2)]
