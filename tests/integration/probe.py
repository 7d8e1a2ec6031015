"""Named in VERL_USE_EXTERNAL_MODULES by a test: DotsTrainer that also writes down what reaches the actor update.

Nothing is replaced: every method calls the real one. One file per step, under $DOTS_PROBE:
    {"wall_clock", "keys", "replayed", "plan", "pg_loss": verl's, "rows": {field: [[...] per row]}, ...}
"""

import json
import os
import time
from pathlib import Path

from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

from verl_dots.integration import rows, store
from verl_dots.integration.trainer import DotsTrainer

FIELDS = [rows.OLD_LOG_PROBS, rows.BEHAVIOUR_LOG_PROBS, rows.WEIGHTS, rows.RESPONSE_MASK, rows.REWARD, "advantages"]
FIELDS += [rows.ROLLOUT_LOG_PROBS, "responses", "ref_log_prob"]


class ProbeTrainer(DotsTrainer):
    def _update_actor(self, batch, metrics):
        keys = list(batch.keys)
        data = store.read(keys, FIELDS)
        values = {name: [row.tolist() for row in data[name].unbind()] for name in data.keys()}
        batch = super()._update_actor(batch, metrics)
        record = {
            "step": self.global_steps,
            "wall_clock": time.time(),
            "keys": keys,
            "padding": [bool(tag.get("is_padding", False)) for tag in batch.tags] or None,
            "replayed": sorted(self.now.replayed_keys),
            "questions": {uid: s.question_id for uid, s in self.now.submissions.items()},
            "plan": [self.now.plan.fresh, self.now.plan.replayed],
            "displaced": [group.uid for group in self.now.batch.displaced],
            "pg_loss": float(metrics["actor/pg_loss"]),
            "fields": sorted(batch.fields or []),
            "rows": values,
        }
        folder = Path(os.environ["DOTS_PROBE"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"step-{self.global_steps:04d}.json").write_text(json.dumps(record))
        return batch

    def _compute_metrics(self, batch, metrics, timing_raw, global_steps, epoch):
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        retained = {key for group in self.rollout_replay for key in group.keys}
        held = set(store.row_tags())
        leak = {"held": len(held), "retained": len(retained), "lost": len(retained - held)}
        leak["orphans"] = sorted(held - retained - set(batch.keys))
        (Path(os.environ["DOTS_PROBE"]) / f"store-{global_steps:04d}.json").write_text(json.dumps(leak))


TRAINER_REGISTRY["dots"] = ProbeTrainer
