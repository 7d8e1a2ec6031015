"""DotsTrainer: verl's synchronous trainer with difficulty selection and rollout replay. No copy of its `fit()`.

One step, in the order verl calls the overridden methods (verl/trainer/ppo/v1/trainer_base.py, 0.9.1):

    prepare_step            reference rollouts, prediction, selection; submit the fresh prompts
    _step_once              sample as many groups as were submitted
    _balance_batch          rewards exist: record observations, put the batch together with replayed groups
    _compute_old_log_prob   log-probs, behaviour log-probs, replay weights (in logprobs.py)
    step                    admit the informative fresh groups to the replay, evict the oldest
    _save_checkpoint        our state before verl's, whose last act marks the checkpoint complete
    _compute_metrics        our metrics; take the rows of retained groups out of what `fit` clears next
"""

from __future__ import annotations

import logging
import math
import time

import ray
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu

from verl_dots import batch as batches
from verl_dots.integration import (
    check,
    check_data,
    checkpoint,
    compat,
    filtered,
    questions,
    reference,
    rows,
    stepstate,
    store,
    waiting,
)
from verl_dots.integration.logprobs import BehaviourLogProbs
from verl_dots.integration.stepstate import StepState
from verl_dots.integration.store import Rows
from verl_dots.integration.worker import RolloutReplayWorker
from verl_dots.replay import RolloutReplay
from verl_dots.runlog import FolderLock, MetricsLog
from verl_dots.types import Draw, Group, Observation

logger = logging.getLogger(__name__)


@register_trainer("dots")
class DotsTrainer(BehaviourLogProbs, PPOTrainerSync):
    """GRPO on verl's synchronous V1 trainer, with the `dots` block of its configuration in force."""

    # The base class compares trainer_mode with "sync" in six places; any other name silently gets asynchronous behaviour.
    trainer_mode = property(lambda self: "sync", lambda self, value: None)

    def __init__(self, config: DictConfig) -> None:
        compat.check_symbols()
        self.dots = check.check(config)
        self.form = check.loss_mode(config)
        if self.dots.replay.enable and not self.dots.selection.enable:
            with open_dict(config):  # verl's own loader must hand out any number of prompts
                config.data.gen_batch_size = 1
        self._folder_lock = FolderLock(checkpoint.run_folder(config))
        super().__init__(config)
        self.pool: questions.Pool | None = None  # with selection: sampler and difficulty estimator
        self.rollout_replay = RolloutReplay.from_config(self.dots)
        self.metrics_log = MetricsLog(checkpoint.run_folder(config) / "metrics.jsonl")
        self.now = StepState()
        self._training = False
        self._warned_of_storage = False

    @property
    def policy_version(self) -> int:
        """Number of policy updates so far; `global_steps` counts the running step, from 1."""
        return self.global_steps - 1

    # ------------------------------------------------------------------------------------------------- setting up

    def _init_dataloader(self) -> None:
        """verl PPOTrainer._init_dataloader: then draw from our sampler instead of a random one."""
        super()._init_dataloader()
        check_data.check_data_sizes(self.config, self.dots, len(self.train_dataset), len(self.val_dataset))
        if self.dots.selection.enable:
            folder = checkpoint.run_folder(self.config) / "questions"
            self.pool = questions.Pool.build(self.train_dataset, self.config, self.dots, folder)
            self.train_dataloader = self.pool.dataloader(self.train_dataset)

    def _init_resource_pool_mgr(self) -> None:
        """verl PPOTrainer._init_resource_pool_mgr: install the worker that computes replay weights."""
        super()._init_resource_pool_mgr()
        for role in (Role.ActorRollout, Role.ActorRolloutRef):
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(RolloutReplayWorker)

    def _build_replay_buffer(self):
        """verl PPOTrainer._build_replay_buffer: poll faster where a step takes less than verl's 2 s, and not for ever."""
        replay_buffer = super()._build_replay_buffer()
        replay_buffer.poll_interval = float(self.config.trainer.v1.sync.get("poll_interval", replay_buffer.poll_interval))
        workers = lambda: self.agent_loop_manager.agent_loop_workers  # noqa: E731  made after this
        waiting.bound(replay_buffer, self.dots.stall_timeout_s, workers, self._describe_prompt)
        filtered.count(replay_buffer, lambda groups, tokens: self.now.discarded(groups, tokens))
        return replay_buffer

    def _describe_prompt(self, uid: str) -> str:
        submission = self.now.submissions.get(uid)
        return f"prompt {uid}" if submission is None else f"question {submission.question_id}"

    def fit(self, agent_loop_manager) -> None:
        """verl PPOTrainer.fit: but a run whose store has died ends, where verl would wait for its answer for ever."""
        with waiting.needing(store.processes()):
            super().fit(agent_loop_manager)

    def on_train_begin(self) -> None:
        """verl hook before the first step."""
        super().on_train_begin()
        self._training = True
        print(questions.banner(self.dots, self.form, self.pool, self.rollout_replay), flush=True)

    def on_train_end(self) -> None:
        """verl hook after `total_epochs`; at `total_training_steps` verl returns without it (see `_compute_metrics`)."""
        super().on_train_end()
        if self.pool is not None:
            self.pool.question_log.flush()

    # ------------------------------------------------------------------------------------------------- generation

    def prepare_step(self) -> dict:
        """verl PPOTrainer.prepare_step: decide what this step generates, and submit it."""
        self.now = StepState()
        metrics: dict[str, float] = {}
        size, config = self.config.data.train_batch_size, self.dots
        fetch_reference = False
        if self.pool is not None and self.pool.sampler.needs_refresh(self.global_steps):
            fetch_reference = config.reference.mode == "overlap"
            if config.reference.mode == "fresh":
                self._roll_out_reference(metrics)
            expected = config.selection.refresh_every * batches.nominal_fresh(size, config.replay)
            metrics.update(self.pool.refresh(self.global_steps, expected))
        store.check_held(self.rollout_replay)
        eligible = self.rollout_replay.eligible(self.policy_version)
        self.now.plan = batches.plan_step(size, config.replay, self.global_steps, eligible)
        self._submit_training_prompts(self.now.plan.fresh)
        if fetch_reference:
            self._submit(self.pool.sampler.draw_reference(config.reference.size))
        return metrics

    def _submit_training_prompts(self, size: int) -> int:
        """Submit `size` questions to train on, drawn by our sampler or, with selection off, by verl's."""
        if self.pool is not None:
            return self._submit(self.pool.sampler.request(size))
        batch = self._next_train_batch(size)
        return self._submit(rows.draws_of_batch(list(batch["extra_info"]), list(batch["raw_prompt"])), batch)

    def _submit(self, draws: list[Draw], batch=None) -> int:
        """Hand the drawn questions to the rollout engine; `batch` holds them when verl's own sampler fetched them."""
        if batch is None:
            batch = self._fetch_one_gen_batch()  # our batch sampler yields exactly what was requested last
            tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
            rows.check_fetched(draws, batch, self.config.data.get("prompt_key", "prompt"))
        tu.assign_non_tensor_stack(batch, rows.OCCURRENCE, [draw.occurrence for draw in draws])
        uids = [str(uid) for uid in batch["uid"]]
        predictions = [None] * len(draws) if self.pool is None else self.pool.predictions(draws)
        self.now.submitted(uids, draws, predictions)
        return self._submit_batch_to_rollout(batch)

    def _add_prompts_to_generate(self, num_prompts: int) -> int:
        """verl PPOTrainer._add_prompts_to_generate, its refill of failed groups: a refill is selected too."""
        return self._submit_training_prompts(num_prompts)

    def _roll_out_reference(self, metrics: dict) -> None:
        """Mode `fresh`: label K extra questions before predicting (paper, Algorithm 1)."""
        start = time.monotonic()
        self._submit(self.pool.sampler.draw_reference(self.dots.reference.size))
        uids = list(self.now.submissions)
        poll = self.replay_buffer.poll_interval
        done = reference.wait_for(uids, self.dots.reference.timeout_s, poll, self._abort_rollouts)
        if len(done) < self.dots.reference.min_size:
            logger.warning("dots: only %d of %d reference rollouts finished: older labels serve on", len(done), len(uids))
        keys, tags = reference.collect(done)
        self.now.generated_tokens += rows.response_tokens(tags)
        self._observe_reference(self._groups(keys))
        self.now.forget(uids)
        metrics["dots/reference_seconds"] = time.monotonic() - start

    def _abort_rollouts(self) -> None:
        self.checkpoint_manager.abort_replicas()
        self.checkpoint_manager.resume_generation_replicas()

    def _step_once(self, metrics: dict, timing_raw: dict, sample_batch_size: int) -> Rows:
        """verl PPOTrainer._step_once: wait for what was submitted, not for a full batch."""
        return super()._step_once(metrics, timing_raw, self.now.awaited)

    # ------------------------------------------------------------------------------------------------- the batch

    def _groups(self, keys: list[str]) -> list[Group]:
        """Groups of generated rows."""
        sessions = self.config.actor_rollout_ref.rollout.n
        rewards = store.rewards(keys) if keys else []
        return rows.group_rows(keys, rewards, self.now.submissions, sessions, self.policy_version)

    def _observe(self, groups: list[Group]) -> None:
        """Every finished rollout is evidence, also of groups that are not trained on."""
        if self.pool is not None:
            predictions = self.now.predictions
            step, reward_range = self.global_steps, self.dots.reward_range
            self.pool.observe(
                step, (Observation.of(group, step, reward_range, predictions.get(group.uid)) for group in groups)
            )

    def _observe_reference(self, groups: list[Group]) -> None:
        """Record reference groups; keep the informative ones for the replay, clear the others' rows."""
        self._observe(groups)
        reuse = self.dots.reference.reuse and self.dots.replay.enable
        self.now.reference += groups
        self.now.kept_reference += [group for group in groups if reuse and group.informative]
        store.clear(key for group in groups if not (reuse and group.informative) for key in group.keys)

    def _balance_batch(self, batch: Rows, metrics: dict, **kwargs) -> Rows:
        """verl PPOTrainer._balance_batch, the first method after rewards exist: observe, and put the batch together."""
        now, replay = self.now, self.rollout_replay
        now.generated_tokens += rows.response_tokens(batch.tags)
        groups = self._groups(list(batch.keys))
        self._observe_reference([group for group in groups if group.source == "reference"])
        now.fresh = [group for group in groups if group.source != "reference"]
        self._observe(now.fresh)
        now.batch = batches.assemble(now.plan, now.fresh, replay, self.dots.replay, self.policy_version)
        store.clear(key for group in now.batch.displaced for key in group.keys)
        keys = [key for group in now.batch.groups for key in group.keys]
        if not keys:
            raise RuntimeError("no rollout of this step finished and the replay is empty: see the agent loop's log")
        metrics.update(stepstate.batch_metrics(now, self.policy_version))
        metrics.update(stepstate.success_histogram(now.fresh, self.dots.reward_range))
        return super()._balance_batch(store.lookup(keys, batch.extra_info), metrics, **kwargs)

    # ------------------------------------------------------------------------------------------------- after the update

    def step(self, metrics: dict, timing_raw: dict) -> Rows:
        """verl PPOTrainer.step: then admit this step's informative groups, in submission order, and evict the oldest."""
        batch = super().step(metrics, timing_raw)
        if self.dots.replay.enable:
            replay, version = self.rollout_replay, self.policy_version + 1
            by_capacity = replay.admit([*self.now.kept_reference, *self.now.batch.fresh, *self.now.batch.surplus])
            by_age = replay.expire(version)
            by_capacity += self._make_room()
            in_batch = set(batch.keys)  # `fit` clears those
            gone = {key for group in (*by_age, *by_capacity) for key in group.keys} - in_batch
            unkept = {key for group in self.now.untrained if group.uid not in replay for key in group.keys}
            store.clear(gone | unkept)
            metrics.update(
                {
                    "replay/size": len(replay),
                    "replay/evicted_age": len(by_age),
                    "replay/evicted_capacity": len(by_capacity),
                }
            )
        return batch

    def _make_room(self) -> list[Group]:
        """Evict the oldest groups where the next step could overflow the store; only several outputs a rollout lead there.

        In a full store rollouts fail one by one, in the agent loop (verl/trainer/ppo/v1/agent_loop_tq.py).
        """
        limit = check.storage_limit(self.config)
        if limit is None:
            return []
        rollouts = check.groups_of_a_step(self.config, self.dots) * self.config.actor_rollout_ref.rollout.n
        step_rows = math.ceil(rollouts * self.now.rows_per_rollout)
        evicted = self.rollout_replay.shrink(limit - step_rows)
        if evicted and not self._warned_of_storage:
            self._warned_of_storage = True
            logger.warning(
                f"dots: {check.STORAGE_KEY}={limit} is too little for {self.now.rows_per_rollout:.1f} rows a rollout: a "
                f"step needs room for {step_rows}, so that the oldest of the replay's groups are evicted (it holds "
                f"{len(self.rollout_replay)} now, see replay/evicted_capacity); raise it"
            )
        return evicted

    def _compute_metrics(self, batch: Rows, metrics: dict, timing_raw: dict, global_steps: int, epoch: int) -> None:
        """verl PPOTrainer._compute_metrics: add our line, and keep `fit` from clearing the rows of retained groups."""
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        metrics.update(stepstate.generation_timing(self.now, metrics))
        metrics.update(self.now.save_metrics)
        self.metrics_log.append(global_steps, metrics)
        if self.pool is not None and global_steps >= self.total_training_steps:
            self.pool.question_log.flush()
        self.now.trained_rows = store.handle(batch.keys, batch.tags)
        retained = {key for group in self.rollout_replay for key in group.keys}
        batch.keys = store.keys_to_clear([key for key in batch.keys if key not in retained])

    def _log_rollout_data(self, batch: Rows, timing_raw: dict, rollout_data_dir: str) -> None:
        """verl PPOTrainer._log_rollout_data, called after `_compute_metrics`: on all rows that were trained on."""
        super()._log_rollout_data(self.now.trained_rows, timing_raw, rollout_data_dir)

    def _validate(self) -> dict[str, float]:
        """verl PPOTrainer._validate: the validation before training belongs into our log too."""
        metrics = super()._validate()
        if not self._training and not self.config.trainer.get("val_only"):
            self.metrics_log.append(self.global_steps, metrics)
        return metrics

    # ------------------------------------------------------------------------------------------------- checkpoints

    def _save_checkpoint(self) -> None:
        """verl PPOTrainer._save_checkpoint: ours first, since verl's last act marks the checkpoint complete."""
        self.now.save_metrics = checkpoint.save(self)
        super()._save_checkpoint()

    def on_step_end(self) -> None:
        """verl hook after a step and its checkpoint: save on request too (a job that is about to lose its machine)."""
        request = checkpoint.run_folder(self.config) / checkpoint.SAVE_NOW
        if request.exists():
            if not self.now.save_metrics:
                self._save_checkpoint()
            request.unlink(missing_ok=True)
        super().on_step_end()

    def _load_checkpoint(self) -> None:
        """verl PPOTrainer._load_checkpoint: then our state, or a clean start of our logs."""
        super()._load_checkpoint()
        checkpoint.restore(self)
