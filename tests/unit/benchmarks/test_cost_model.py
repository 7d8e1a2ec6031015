import itertools
from dataclasses import replace

import pytest
from cost_model import (
    PAPER_REDUCTION,
    SETTINGS,
    Setting,
    check_study,
    filter_groups,
    groups_per_step,
    informative_per_generated,
    main,
    step_time,
)

from tests.unit.benchmarks.files_of_runs import write_runs

PAPER = SETTINGS["paper: K 256 fresh, delta .5"]


def test_the_papers_reductions_follow_from_768_instead_of_1024_groups():
    assert 2 * groups_per_step(PAPER) == 768 and 2 * groups_per_step(SETTINGS["grpo"]) == 1024
    low, high = (1 - step_time(replace(PAPER, share=share)) for share in (0.46, 0.54))
    assert (low, high) == (pytest.approx(0.115), pytest.approx(0.135))
    assert all(low - 1e-9 <= reduction <= high + 1e-9 for reduction in PAPER_REDUCTION)


def test_grpo_is_one_whatever_its_share_and_tail():
    for share, tail in itertools.product((0, 0.5, 1), (0, 0.4, 1)):
        assert step_time(Setting(share=share, tail=tail)) == pytest.approx(1)


def test_a_tail_makes_fewer_groups_worth_less_and_a_second_generation_dear():
    half = Setting(fresh_fraction=0.5)
    assert step_time(half) == pytest.approx(0.75) and step_time(replace(half, tail=1.0)) == pytest.approx(1)
    alone, together = (Setting(fresh_fraction=0.5, reference=256, tail=0.2, alone=alone) for alone in (True, False))
    assert step_time(alone) - step_time(together) == pytest.approx(0.5 * 0.2 / 2)


def test_reuse_and_exploration_change_what_a_generated_group_yields():
    paper = replace(PAPER, explore=0.25)
    fresh, reference = 256, 128
    expected = fresh * (0.75 * 0.8 + 0.25 * 0.4) + reference * 0.4
    assert informative_per_generated(paper, 0.8, 0.4) == pytest.approx(expected / 384)
    without = informative_per_generated(replace(paper, reuse=False), 0.8, 0.4)
    assert without == pytest.approx((expected - reference * 0.4) / 384)


def test_filter_generates_twice_what_it_evicts():
    assert filter_groups(1.0) == 1
    assert filter_groups(0.6) == pytest.approx(1.8)  # .4 evicted, .8 more, of which .48 are kept
    assert filter_groups(0.2) > 1 / 0.2 - 1e-9  # never fewer than it takes
    with pytest.raises(ValueError, match="informative share 0"):
        filter_groups(0)


def test_measured_steps_beside_the_model(tmp_path):
    write_runs(tmp_path / "runs.jsonl", {"grpo": (1.0, 8), "dots_rr": (0.5, 4)})
    rows = [line.split(" | ") for line in check_study(tmp_path / "runs.jsonl").splitlines()[2:]]
    assert [row[1:5] for row in rows] == [["grpo", "1.00", "1.00", "1.00"], ["dots_rr", "0.50", "0.75", "0.75"]]


def test_command_line(capsys):
    main(["--share", "0.5", "--reference", "256"])
    assert capsys.readouterr().out == "384 groups per step, time -12.5%\n"
    with pytest.raises(ValueError, match="share 1.5 is not allowed"):
        main(["--share", "1.5"])
