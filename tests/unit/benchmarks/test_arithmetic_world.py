"""The policy in plain PyTorch: its rollouts, its exact accuracy and its updates against slow, plain versions."""

import numpy as np
import pytest
import torch
from arithmetic_world import ArithmeticWorld, Questions, Task, exact_success, response_log_probs
from methods import Method

from verl_dots.cpu.arithmetic.dataset import draw_split, rows
from verl_dots.cpu.arithmetic.model import PAD_ID, build_model
from verl_dots.cpu.arithmetic.settings import ModelSize
from verl_dots.types import Group


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """24 questions, and a small model fitted to their answers for a moment, so that it is right now and then."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("task")
    train, val = draw_split("x", 16, 8, seed=0)
    for name, part in (("train", train), ("val", val)):
        pd.DataFrame(rows(part, name)).to_parquet(folder / f"{name}.parquet")
    model = build_model(ModelSize(32, 1, 2), seed=0)
    questions = Questions.load(folder / "train.parquet")
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    mask = questions.answers != PAD_ID
    for _ in range(60):
        if exact_success(model, questions).mean() > 0.4:
            break
        optimiser.zero_grad()
        (-(response_log_probs(model, questions.prompts, questions.answers) * mask).sum() / mask.sum()).backward()
        optimiser.step()
    model.save_pretrained(folder / "model")
    (folder / "manifest.json").write_text("{}")
    return Task.load(folder)


def world(task, name="grpo", *overrides):
    return ArithmeticWorld(task, Method.make(name, overrides=["batch=16", "mini_batches=1", *overrides]), seed=1)


def groups_of(uids, rewards):
    return [
        Group(uid, f"{number:032x}", 0, "selected", (uid,), reward, True)
        for number, (uid, reward) in enumerate(zip(uids, rewards, strict=True))
    ]


def test_log_probs_of_sampling_are_those_of_a_forward_pass(task):
    policy = world(task)
    uids = [f"u{i}" for i in range(16)]
    policy.roll_out(uids, range(16))
    for number, uid in enumerate(uids):
        group = policy._groups[uid]
        prompts = task.train.prompts[[number]].repeat(8, 1)
        with torch.no_grad():
            expected = response_log_probs(policy._model, prompts, group.tokens)
        torch.testing.assert_close(group.log_probs[group.mask], expected[group.mask], atol=1e-4, rtol=1e-4)
        assert (group.tokens[~group.mask] == PAD_ID).all()


def test_exact_accuracy_is_what_sampling_gives_on_average(task):
    policy = world(task)
    exact = 1 - policy.true_difficulty(np.arange(16))
    assert 0.05 < exact.mean() < 0.95
    sampled = np.array([policy.roll_out([f"u{i}" for i in range(16)], range(16))[0] for _ in range(40)])  # (40, 16, 8)
    error = np.sqrt(exact * (1 - exact) / 320)
    assert (np.abs(sampled.mean((0, 2)) - exact) < 4.5 * error + 1e-3).all()


def test_a_token_is_counted_up_to_the_end_token(task):
    policy = world(task)
    rewards, tokens = policy.roll_out(["u"], [3])
    assert tokens == sum(int(row.sum()) for row in policy._groups["u"].mask)
    right = [bool((row == task.train.answers[3]).all()) for row in policy._groups["u"].tokens]
    assert rewards == [tuple(map(float, right))]


@pytest.mark.parametrize("mean_of_rows", [False, True])
def test_update_equals_the_plain_loss_over_all_rows(task, mean_of_rows):
    """Rows without advantage are skipped; the gradient is that of the whole batch, by token or by row."""
    policy = world(task, "grpo", f"mean_of_rows={str(mean_of_rows).lower()}", "learning_rate=1.0")
    uids = [f"u{i}" for i in range(16)]
    rewards, _ = policy.roll_out(uids, range(16))
    groups = groups_of(uids, rewards)
    assert 0 < sum(group.informative for group in groups) < 16
    model = task.model()
    loss, count = 0.0, sum(int(policy._groups[uid].mask.sum()) for uid in uids)
    for number, uid in enumerate(uids):
        group = policy._groups[uid]
        log_probs = response_log_probs(model, task.train.prompts[[number]].repeat(8, 1), group.tokens.clone())
        advantage = (group.rewards - group.rewards.mean()) / (group.rewards.std() + 1e-6)
        ratio = (log_probs - group.log_probs.clone()).exp()
        terms = -torch.minimum(ratio * advantage[:, None], ratio.clamp(0.8, 1.2) * advantage[:, None]) * group.mask
        loss = loss + ((terms.sum(1) / group.mask.sum(1)).sum() / 128 if mean_of_rows else terms.sum() / count)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    taken = []
    policy._optimiser.step = lambda: taken.extend(parameter.grad.clone() for parameter in policy._model.parameters())
    assert policy.train(groups, []) == count
    for mine, plain in zip(taken, model.parameters(), strict=True):
        torch.testing.assert_close(mine, plain.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("loss", ["decoupled", "behaviour"])
def test_replayed_rows_are_corrected_for_the_policy_that_wrote_them(task, loss):
    """After the policy has moved, the decoupled update weighs by old / behaviour; the other keeps behaviour itself."""
    policy = world(task, "dots_rr", f"loss={loss}", "learning_rate=1e-2")
    uids = [f"u{i}" for i in range(16)]
    rewards, _ = policy.roll_out(uids, range(16))
    groups = [group for group in groups_of(uids, rewards) if group.informative]
    policy.train(groups, [])
    seen = {}

    def record(prompts, tokens, old, weight, mask, advantages):
        seen.update(old=old, weight=weight, mask=mask)

    policy._update = record
    policy.train([], groups)
    written = torch.stack([policy._groups[group.uid].log_probs for group in groups])
    assert seen["old"].shape == written.shape
    if loss == "behaviour":
        assert (seen["weight"] == 1).all()
        assert sorted(seen["old"].sum((1, 2)).tolist()) == pytest.approx(sorted(written.sum((1, 2)).tolist()))
    else:
        weights = seen["weight"][seen["mask"]]
        assert weights.max() <= 2.0 + 1e-6 and weights.std() > 0.01


def test_a_folder_without_a_task_is_refused(tmp_path):
    with pytest.raises(ValueError, match="holds no task"):
        Task.load(tmp_path)
