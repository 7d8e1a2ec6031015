"""ObservationLog and QuestionLog against plain lists, for any sequence of steps, flushes, kills and resumes."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_dots.difficulty.observations import ObservationLog, QuestionLog, read_observations
from verl_dots.types import Observation, question_id

SOURCES = ("selected", "explored", "reference")


@st.composite
def observations(draw) -> list[Observation]:
    """Groups of consecutive steps, several a step, some steps empty."""
    seen = []
    for step in range(1, draw(st.integers(1, 12)) + 1):
        for _ in range(draw(st.integers(0, 4))):
            trials = draw(st.integers(1, 16))
            seen.append(
                Observation(
                    question_id(str(draw(st.integers(0, 8)))),
                    step,
                    draw(st.sampled_from(SOURCES)),
                    draw(st.floats(0, trials, allow_nan=False)),
                    trials,
                    draw(st.none() | st.floats(0, 1, allow_nan=False)),
                )
            )
    return seen


def logged(seen: list[Observation]) -> ObservationLog:
    log = ObservationLog()
    log.append(seen)
    return log


@settings(deadline=None, max_examples=60)
@given(observations(), st.integers(0, 30), st.sampled_from(("all", *SOURCES[1:])))
def test_a_window_is_the_end_of_the_plain_list(seen, size, which):
    wanted = [one for one in seen if which == "all" or one.source == which]
    assert logged(seen).window(size, which) == (wanted[-size:] if size else [])


@settings(deadline=None, max_examples=60)
@given(observations(), st.integers(0, 40))
def test_columns_are_the_plain_list_however_it_was_appended(seen, cut):
    log = ObservationLog()
    log.append(seen[:cut])
    log.arrays()
    log.append(seen[cut:])
    arrays = log.arrays()
    assert [arrays.question_ids[i] for i in arrays.question] == [one.question_id for one in seen]
    assert arrays.step.tolist() == [one.step for one in seen]
    assert arrays.successes.tolist() == [one.successes for one in seen]
    expected = [np.nan if one.predicted is None else one.predicted for one in seen]
    np.testing.assert_array_equal(arrays.predicted, expected)


@settings(deadline=None, max_examples=60)
@given(observations())
def test_a_file_gives_back_the_same_log(seen):
    with tempfile.TemporaryDirectory() as folder:
        logged(seen).to_parquet(Path(folder) / "o.parquet")
        assert ObservationLog.from_parquet(Path(folder) / "o.parquet").window(len(seen)) == seen


@settings(deadline=None, max_examples=60)
@given(observations(), st.integers(1, 5), st.lists(st.tuples(st.integers(1, 12), st.integers(0, 12)), max_size=4))
def test_however_often_a_run_is_killed_and_resumed_each_group_is_on_disk_once(seen, steps_per_part, kills):
    """A kill loses what waits in memory; the run resumes from a checkpoint, at which the log was flushed."""
    last = max((one.step for one in seen), default=0)
    with tempfile.TemporaryDirectory() as folder:
        position = 0
        for killed_after, checkpoint in [*kills, (last, last)]:
            log = QuestionLog(folder, steps_per_part)
            resumed_from = min(position, checkpoint)
            log.cut(resumed_from)
            position = resumed_from
            for step in range(resumed_from + 1, min(killed_after, last) + 1):
                log.append(step, [one for one in seen if one.step == step])
                log.flush()  # every step has a checkpoint here, so any may be resumed from
                position = step
        found = [one for part in QuestionLog(folder).parts() for one in read_observations(part)]
        assert found == [one for one in seen if one.step <= position]
