import pytest
from own_time import main, owner, shares

FIT = "run (verl/trainer/main_ppo.py:9);PPOTrainer.fit (verl/trainer/ppo/v1/trainer_base.py:90)"
OUR_STEP = f"{FIT};DotsTrainer.step (verl_dots/integration/trainer.py:230)"


def test_a_sample_belongs_to_the_innermost_frame_of_either_package():
    found = shares(
        [
            f"{OUR_STEP};PPOTrainer.step (verl/trainer/ppo/v1/trainer_base.py:300);wait (ray/worker.py:1) 60\n",
            f"{OUR_STEP};RolloutReplay.admit (verl_dots/replay.py:80);sort (numpy/core.py:2) 30\n",
            f"{OUR_STEP};clear (verl_dots/integration/store.py:50);put (transfer_queue/client.py:3) 10\n",
            "poll (threading.py:1);fit_nothing (asyncio/base.py:2) 500\n",
        ]
    )
    assert found == {
        "verl": pytest.approx(0.6),
        "verl_dots/replay.py RolloutReplay.admit": pytest.approx(0.3),
        "verl_dots/integration/store.py clear": pytest.approx(0.1),
    }


def test_a_checkout_may_lie_in_a_folder_of_any_name():
    assert owner(["fit (/home/verl/verl_dots/integration/trainer.py:1)"]) == "verl_dots/integration/trainer.py fit"
    assert owner(["fit (/home/verl_dots/site-packages/verl/trainer.py:1)"]) == "verl"


def test_it_prints_what_is_ours_and_the_sum(tmp_path, capsys):
    profile = tmp_path / "driver.raw"
    profile.write_text(f"{FIT} 98\n{OUR_STEP};draw (verl_dots/replay.py:90) 2\n")
    main([str(profile)])
    assert capsys.readouterr().out.splitlines()[-2:] == ["  2.00%  verl_dots/replay.py draw", "  2.00%  this package in all"]


@pytest.mark.parametrize(("text", "message"), [("", "no sample is of verl's training loop"), ("{}\n", "is not a stack")])
def test_a_file_that_is_no_profile_is_refused_by_name(text, message, tmp_path):
    profile = tmp_path / "other.raw"
    profile.write_text(text)
    with pytest.raises(ValueError, match=f"other.raw: .*{message}"):
        main([str(profile)])
