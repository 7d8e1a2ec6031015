"""What happens inside verl's real trainer, read from what reached the actor update and what the run left on disk."""

import json
from pathlib import Path

import numpy as np
import pytest

from verl_dots.integration.saved import read_rows
from verl_dots.types import METRICS

pytestmark = pytest.mark.verl

BATCH, ROLLOUTS, FRESH = 16, 8, 8


def rewards_by_group(record: dict) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    for key, scores in zip(record["keys"], record["rows"]["rm_scores"], strict=True):
        groups.setdefault(key.split("_")[0], []).append(sum(scores))
    return groups


def is_mixed(rewards) -> bool:
    return len(set(rewards)) > 1


def test_number_of_generated_groups_is_what_the_fresh_fraction_says(main_run):
    for line in main_run.steps():
        held_before = main_run.probe(line["step"])["plan"][1]
        assert line["dots/fresh_groups"] == BATCH - min(BATCH - FRESH, held_before)
        assert line["dots/fresh_groups"] + held_before == BATCH
    assert [line["dots/fresh_groups"] for line in main_run.steps()][-3:] == [FRESH] * 3


def test_every_batch_holds_train_batch_size_whole_groups(main_run):
    for step in range(1, 9):
        groups = rewards_by_group(main_run.probe(step))
        assert len(groups) == BATCH
        assert {len(rewards) for rewards in groups.values()} == {ROLLOUTS}


def test_the_questions_generated_are_those_observed(main_run):
    for step in range(1, 9):
        submitted = sorted(main_run.probe(step)["questions"].values())
        assert submitted == sorted(seen.question_id for seen in main_run.observations() if seen.step == step)
        assert len(set(submitted)) == len(submitted)


def test_replay_holds_mixed_groups_only_and_exactly_those_generated(main_run):
    seen = {}
    for step in range(1, 9):
        record = main_run.probe(step)
        fresh = {uid: rewards for uid, rewards in rewards_by_group(record).items() if uid in record["questions"]}
        seen |= {uid: (rewards, step - 1) for uid, rewards in fresh.items() if is_mixed(rewards)}
    held = {group["uid"]: group for group in main_run.state(8)["replay"]["groups"]}
    assert set(held) == set(seen)
    for uid, group in held.items():
        assert is_mixed(group["rewards"])
        assert sorted(group["rewards"]) == sorted(seen[uid][0])
        assert group["policy_version"] == seen[uid][1]
        assert len(group["keys"]) == ROLLOUTS


def test_a_displaced_group_was_uninformative_and_left_its_observation(main_run):
    displaced = [(step, uid) for step in range(1, 9) for uid in main_run.probe(step)["displaced"]]
    assert displaced, "this run should have filled at least one place"
    for step, uid in displaced:
        question = main_run.probe(step)["questions"][uid]
        (seen,) = [s for s in main_run.observations() if s.step == step and s.question_id == question]
        assert seen.difficulty in (0.0, 1.0)


def test_replayed_rows_keep_their_tokens_and_behaviour_log_probs(main_run):
    first: dict[str, tuple] = {}
    replayed_rows = 0
    for step in range(1, 9):
        record = main_run.probe(step)
        for i, key in enumerate(record["keys"]):
            now = (record["rows"]["responses"][i], record["rows"]["behaviour_log_probs"][i])
            if key in record["replayed"]:
                assert now == first[key]
                replayed_rows += 1
            else:
                assert record["rows"]["behaviour_log_probs"][i] == record["rows"]["old_log_probs"][i]
                first[key] = now
    assert replayed_rows > 4 * FRESH * ROLLOUTS


def test_weights_in_the_loss_are_the_truncated_ratio_of_the_stored_rows(main_run):
    truncated = 0
    for step in range(1, 9):
        record = main_run.probe(step)
        assert "rollout_is_weights" in record["fields"] or not record["fields"]
        columns = (record["rows"][name] for name in ("old_log_probs", "behaviour_log_probs", "rollout_is_weights"))
        for old, behaviour, weight in zip(*columns, strict=True):
            ratio = np.exp(np.array(old) - np.array(behaviour))
            np.testing.assert_allclose(weight, np.minimum(ratio, 2.0), rtol=1e-5)
            truncated += int((ratio > 2.0).sum())
    assert truncated > 0


def test_loss_of_the_worker_is_the_one_computed_from_the_stored_rows(switched_off_run):
    """With one mini-batch the policy still is the old one: the loss is -sum(ratio A) over the tokens of the batch."""
    for step in range(1, 4):
        record = switched_off_run.probe(step)
        total = sum(np.dot(a, m) for a, m in zip(record["rows"]["advantages"], record["rows"]["response_mask"], strict=True))
        tokens = sum(map(sum, record["rows"]["response_mask"]))
        assert record["pg_loss"] == pytest.approx(-total / tokens, abs=1e-6)


def test_advantages_are_recomputed_within_each_group(main_run):
    record = main_run.probe(8)
    rows = record["rows"]
    for uid, rewards in rewards_by_group(record).items():
        rewards = np.array(rewards)
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
        found = [rows["advantages"][i][0] for i, key in enumerate(record["keys"]) if key.startswith(uid)]
        np.testing.assert_allclose(sorted(found), sorted(expected), atol=1e-4)


def test_store_holds_the_retained_rows_and_nothing_else(main_run, overlap_run):
    for run, steps in ((main_run, 8), (overlap_run, 5)):
        for step in range(1, steps + 1):
            store = run.probe(step, "store")
            assert store["lost"] == 0 and store["orphans"] == []
            assert store["retained"] == ROLLOUTS * run.steps()[step - 1]["replay/size"]


def test_killed_and_resumed_run_equals_the_uninterrupted_one(main_run, resumed_run):
    for step in range(5, 9):
        ours, theirs = main_run.probe(step), resumed_run.probe(step)
        assert list(ours["questions"].values()) == list(theirs["questions"].values())
        assert ours["plan"] == theirs["plan"]
        assert sorted(rewards_by_group(ours).values()) == sorted(rewards_by_group(theirs).values())
        assert ours["pg_loss"] == pytest.approx(theirs["pg_loss"], abs=1e-6)
    held, restored = (run.state(8)["replay"]["groups"] for run in (main_run, resumed_run))
    assert [(g["question_id"], g["rewards"], g["policy_version"]) for g in held] == [
        (g["question_id"], g["rewards"], g["policy_version"]) for g in restored
    ]
    assert main_run.state(8)["sampler"] == resumed_run.state(8)["sampler"]


def test_logs_of_a_resumed_run_have_every_step_once(main_run, resumed_run):
    assert [line["step"] for line in resumed_run.steps()] == list(range(1, 9))
    assert [(s.step, s.question_id) for s in resumed_run.observations()] == [
        (s.step, s.question_id) for s in main_run.observations()
    ]


def test_with_both_parts_off_the_run_is_verls_own_grpo(plain_run, switched_off_run):
    verl_lines = [json.loads(line) for line in (plain_run.out / "metrics.jsonl").read_text().splitlines()]
    ours = {line["step"]: line for line in switched_off_run.steps()}
    compared = ["actor/pg_loss", "actor/grad_norm", "actor/entropy", "critic/score/mean", "response_length/mean"]
    steps = [line for line in verl_lines if "actor/pg_loss" in line]
    assert len(steps) == 3
    for line in steps:
        for name in compared:
            assert ours[line["step"]][name] == pytest.approx(line[name], abs=1e-5), (line["step"], name)


def test_fresh_reference_set_labels_the_pool_and_feeds_the_replay(paper_run):
    steps = paper_run.steps()
    assert [line["dots/reference_groups"] for line in steps] == [16, 0, 16, 0]
    assert [line["dots/labels"] for line in steps if "dots/labels" in line] == [16, 16]
    sources = [seen.source for seen in paper_run.observations() if seen.step == 1]
    assert sources.count("reference") == 16
    assert steps[0]["dots/reference_kept"] > 0
    assert steps[0]["replay/size"] == steps[0]["dots/reference_kept"] + BATCH * steps[0]["dots/informative_share"]
    assert steps[1]["dots/fresh_groups"] == FRESH


def test_behaviour_form_keeps_log_probs_and_skips_replayed_rows(paper_run):
    """Replayed rows carry the log-probs of the policy that wrote them; their reference log-probs are kept as well."""
    written: dict[str, tuple] = {}
    for step in range(1, 5):
        record = paper_run.probe(step)
        for i, key in enumerate(record["keys"]):
            now = (record["rows"]["old_log_probs"][i], record["rows"]["ref_log_prob"][i])
            if key in written:
                assert now == written[key]
            written[key] = now
        assert "rollout_is_weights" not in record["rows"]
    assert any(paper_run.probe(step)["replayed"] for step in range(2, 5))


def test_overlapping_reference_rollouts_serve_the_next_refresh(overlap_run):
    steps = overlap_run.steps()
    assert [line["dots/reference_groups"] for line in steps] == [8, 0, 8, 0, 8]
    assert [line["dots/labels"] for line in steps if "dots/labels" in line] == [0, 8, 8]


def test_surplus_groups_wait_in_the_replay_with_the_log_probs_of_their_writer(overlap_run):
    """28 groups are generated for 16 places: informative ones without a place enter the replay, and its checkpoint."""
    for line in overlap_run.steps():
        rewards = rewards_by_group(overlap_run.probe(line["step"]))
        informative = round(28 * line["dots/informative_share"])
        assert (line["dots/fresh_groups"], len(rewards)) == (28, BATCH)
        assert line["replay/surplus"] == max(0, informative - BATCH)
        assert sum(map(is_mixed, rewards.values())) == min(BATCH, informative + line["replay/drawn"])
    trained = {key.split("_")[0] for key in overlap_run.probe(5)["keys"]}
    held = [group for group in overlap_run.state(5)["replay"]["groups"] if group["policy_version"] == 4]
    waiting = {group["uid"] for group in held if group["source"] != "reference"} - trained
    assert len(waiting) == overlap_run.steps()[-1]["replay/surplus"] > 0
    (path,) = (overlap_run.checkpoints / "global_step_5" / "dots").glob("rows-*.safetensors")
    keys, fields = read_rows(path)
    rows = [row for row, key in enumerate(keys) if key.split("_")[0] in waiting]
    assert len(rows) == len(waiting) * ROLLOUTS
    for row in rows:
        np.testing.assert_allclose(fields["behaviour_log_probs"][row], fields["rollout_log_probs"][row], atol=1e-4)


def test_age_limit_and_capacity_hold(overlap_run):
    for line in overlap_run.steps():
        assert line["replay/size"] <= 20
        assert line.get("replay/age_max", 0) <= 2
    assert sum(line["replay/evicted_age"] + line["replay/evicted_capacity"] for line in overlap_run.steps()) > 0


def test_without_selection_the_questions_are_those_of_verls_sampler(replay_only_run, switched_off_run):
    assert list(replay_only_run.probe(1)["questions"].values()) == list(switched_off_run.probe(1)["questions"].values())
    assert [line["dots/fresh_groups"] for line in replay_only_run.steps()][-1] == FRESH
    assert replay_only_run.steps()[-1]["replay/drawn"] >= BATCH - FRESH


def test_engine_corrected_weights_are_verls_own(replay_only_run):
    for step in range(1, 5):
        rows = replay_only_run.probe(step)["rows"]
        columns = (rows[name] for name in ("old_log_probs", "rollout_log_probs", "rollout_is_weights"))
        for old, engine, weight in zip(*columns, strict=True):
            np.testing.assert_allclose(weight, np.minimum(np.exp(np.array(old) - np.array(engine)), 2.0), rtol=1e-4)


def test_metrics_are_documented_and_add_up(main_run):
    for line in main_run.steps():
        ours = {name for name in line if name.startswith(("dots/", "replay/"))}
        assert ours <= set(METRICS)
        shares = [line[f"dots/observed_{name}"] for name in ("0", "low", "mid", "high", "1")]
        assert sum(shares) == pytest.approx(1.0)
        seen = [s for s in main_run.observations() if s.step == line["step"]]
        assert line["dots/informative_share"] == pytest.approx(np.mean([0 < s.successes < s.trials for s in seen]))
        assert line["dots/fresh_score_mean"] == pytest.approx(sum(s.successes for s in seen) / sum(s.trials for s in seen))
        record = main_run.probe(line["step"])
        drawn = {key.split("_")[0] for key in record["replayed"]}
        assert line["replay/drawn"] == len(drawn)
        if drawn:
            rows = [i for i, key in enumerate(record["keys"]) if key in record["replayed"]]
            weights = np.concatenate([record["rows"]["rollout_is_weights"][i] for i in rows])
            size = weights.sum() ** 2 / (len(weights) * (weights**2).sum())
            assert line["replay/weight_mean"] == pytest.approx(weights.mean(), rel=1e-5)
            assert line["replay/effective_sample_size"] == pytest.approx(size, rel=1e-5)


def engine_difference(record: dict, replayed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Per token of the fresh (or the replayed) rows: log-probs at the start of the step, and the rollout engine's."""
    old, engine = [], []
    columns = (record["rows"][name] for name in ("old_log_probs", "rollout_log_probs", "response_mask"))
    for key, *row in zip(record["keys"], *columns, strict=True):
        if not key.startswith("pad") and (key in record["replayed"]) == replayed:
            old += [a for a, _, m in zip(*row, strict=True) if m]
            engine += [b for _, b, m in zip(*row, strict=True) if m]
    return np.array(old), np.array(engine)


def test_what_is_said_of_the_rollout_engine_leaves_replayed_rows_out(main_run, replay_only_run):
    for run in (main_run, replay_only_run):
        line = run.steps()[-1]
        record = run.probe(line["step"])
        old, engine = engine_difference(record, replayed=False)
        logged = line["training/rollout_probs_diff_max"]
        assert logged == pytest.approx(np.abs(np.exp(old) - np.exp(engine)).max(), abs=1e-6)
        old, engine = engine_difference(record, replayed=True)
        assert np.abs(np.exp(old) - np.exp(engine)).max() > 100 * logged
    line = main_run.steps()[-1]
    old, engine = engine_difference(main_run.probe(line["step"]), replayed=False)
    assert line["rollout_corr/kl"] == pytest.approx((engine - old).mean(), abs=1e-6)
    old, engine = engine_difference(main_run.probe(line["step"]), replayed=True)
    assert abs((engine - old).mean()) > 100 * abs(line["rollout_corr/kl"])


def test_generation_time_is_that_of_the_tokens_generated(main_run, paper_run):
    for run in (main_run, paper_run):
        for line in run.steps():
            seconds = line["timing_s/gen"] + line.get("dots/reference_seconds", 0.0)
            assert line["timing_per_token_ms/gen"] * line["dots/generated_tokens"] == pytest.approx(1000 * seconds)


def test_padded_passes_give_every_row_its_log_probs_and_leave_nothing_behind(paper_run):
    """Before the first update the policy is the reference model, whose passes of 7 rows at most hold padding rows."""
    record = paper_run.probe(1)
    for old, reference in zip(record["rows"]["old_log_probs"], record["rows"]["ref_log_prob"], strict=True):
        np.testing.assert_allclose(old, reference, atol=1e-5)
    for step in range(1, 5):
        assert paper_run.probe(step, "store")["orphans"] == []


def test_banner_says_what_is_active(main_run, switched_off_run):
    assert "DOTS  active: 2,048 questions" in main_run.log
    assert "RR    active: 50% fresh" in main_run.log
    assert "DOTS  off" in switched_off_run.log and "RR    off" in switched_off_run.log


def test_checkpoints_hold_nothing_that_executes(main_run):
    ours = [path for path in Path(main_run.checkpoints).glob("global_step_*/dots/*")]
    assert {path.suffix for path in ours} == {".json", ".safetensors", ".parquet"}
