"""Mistakes in verl's configuration: the dots block, and keys of verl's own that do not go with it."""

from __future__ import annotations

from tests.unit.bad_input.case import Case, config

LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
CORRECTION = "algorithm.rollout_correction"
SAMPLER = "trainer.v1.sampler.custom_sampler"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
STRATEGY = "actor_rollout_ref.actor.strategy"


def wrong_value(override: str, allowed: str) -> Case:
    """A key of the dots block with a value that is not allowed."""
    key, _, value = override.partition("=")
    return Case(override, config(override), (key, "is not allowed: use", allowed))


CONFIG = [
    wrong_value("dots.seed=-1", "a whole number >= 0"),
    wrong_value("dots.seed=1.5", "a whole number"),
    wrong_value("dots.seed=one", "a whole number"),
    wrong_value("dots.stall_timeout_s=0", "null or seconds above 0"),
    wrong_value("dots.reward_range=[1,0]", "[lowest, highest] reward"),
    wrong_value("dots.reward_range=[0]", "a list of 2 numbers"),
    wrong_value("dots.reward_range=[0,.inf]", "[lowest, highest] reward"),
    wrong_value("dots.reward_range=1", "a list of 2 numbers"),
    wrong_value("dots.selection.enable=maybe", "true or false"),
    wrong_value("dots.selection.target=2", "a failure rate in [0, 1]"),
    wrong_value("dots.selection.target=half", "a number"),
    wrong_value("dots.selection.target=null", "a number"),
    wrong_value("dots.selection.temperature=0", "a number above 0"),
    wrong_value("dots.selection.temperature=.inf", "a number above 0"),
    wrong_value("dots.selection.temperature=.nan", "a number"),
    wrong_value("dots.selection.refresh_every=0", "a whole number >= 1"),
    wrong_value("dots.selection.refresh_every=2.5", "a whole number"),
    wrong_value("dots.selection.explore_fraction=1.5", "a share of the fresh batch in [0, 1]"),
    wrong_value("dots.reference.mode=windows", "window or overlap or fresh"),
    wrong_value("dots.reference.window=some", "all or explored"),
    wrong_value("dots.reference.size=1", "null or a whole number >= 2"),
    wrong_value("dots.reference.min_size=1", "a whole number >= 2"),
    wrong_value("dots.reference.timeout_s=0", "seconds above 0"),
    wrong_value("dots.predictor.checkpoint=p.safetensors", "it together with predictor.embeddings"),
    wrong_value("dots.predictor.posterior=2", "true or false"),
    wrong_value("dots.replay.fresh_fraction=0", "a share in (0, 2]"),
    wrong_value("dots.replay.fresh_fraction=2.5", "a share in (0, 2]"),
    wrong_value("dots.replay.capacity=0", "null or a whole number >= 1"),
    wrong_value("dots.replay.max_age=0", "null or a whole number >= 1"),
    wrong_value("dots.replay.max_weight=0.5", "null or a number >= 1"),
    wrong_value("dots.replay.behaviour=engine", "trainer or rollout"),
    wrong_value("dots.replay.draw=random", "uniform or informative"),
    wrong_value("dots.replay.fill=all", "informative or none"),
    wrong_value("dots.replay.warmup_steps=-1", "a whole number >= 0"),
    wrong_value("dots.replay.newest_per_question=1", "true or false"),
    wrong_value("dots.replay=5", "a block of keys"),
    Case(
        "min_size above size", config("dots.reference.size=16"), ("dots.reference.min_size=32", "at most reference.size=16")
    ),
    Case("dots is a list", config(dots=[1]), ("dots", "use a block of keys")),
    Case(
        "misspelt key",
        config("dots.selection.temprature=1"),
        ("dots.selection.temprature", "did you mean dots.selection.temp"),
    ),
    Case("unknown key", config("dots.delta=.5"), ("dots.delta does not exist", "known keys: predictor")),
    Case("interpolation to nothing", config(dots__seed="${no.such.key}"), ("no.such.key", "not found")),
    Case("old trainer", config("trainer.use_v1=false"), ("trainer.use_v1=False", "set it to True")),
    Case(
        "verl's own mode", config("trainer.v1.trainer_mode=sync"), ("trainer_mode=sync", "set trainer.v1.trainer_mode=dots")
    ),
    Case("keys in the wrong block", config("trainer.v1.dots.seed=1"), ("trainer.v1.dots does not exist", "the block dots")),
    Case("prefetching", config("data.dataloader_num_workers=8"), ("num_workers=8", "set data.dataloader_num_workers=0")),
    Case("no batch size", config("data.train_batch_size=null"), ("data.train_batch_size=None", "a whole number >= 1")),
    Case("empty batch", config("data.train_batch_size=0"), ("data.train_batch_size=0", "a whole number >= 1")),
    Case("no rollouts", config("actor_rollout_ref.rollout.n=1"), ("actor_rollout_ref.rollout.n=1", "2 or more")),
    Case("loss without correction", config(f"{LOSS}=vanilla"), (f"{LOSS}=vanilla", "set", "dots_decoupled")),
    Case("verl's weights over ours", config(f"{CORRECTION}.rollout_is=token"), ("rollout_is=token", "set them to null")),
    Case("bypass over ours", config(f"{CORRECTION}.bypass_mode=true"), ("bypass_mode=True", "set them to null")),
    Case("masks rewritten", config(f"{CORRECTION}.rollout_rs=token_k1"), ("rollout_rs=token_k1", "set it to null")),
    Case(
        "no engine log-probs",
        config("dots.replay.behaviour=rollout"),
        ("dots.replay.behaviour=rollout", "calculate_log_probs=True"),
    ),
    *(
        Case(f"advantages of {name}", config(f"algorithm.adv_estimator={name}"), (f"adv_estimator={name}", "use grpo"))
        for name in ("gae", "reinforce_plus_plus")
    ),
    *(
        Case(f"{name} workers", config(f"{STRATEGY}={name}"), (f"{STRATEGY}={name}", "set it to fsdp or fsdp2"))
        for name in ("megatron", "veomni", "torchtitan")
    ),
    Case(
        "a sampler of one's own",
        config(f"{SAMPLER}.path=mine.py", f"{SAMPLER}.name=Mine"),
        (f"{SAMPLER}.path=mine.py", f"set {SAMPLER}.path=null"),
    ),
    Case(
        "several updates a step",
        config("trainer.v1.sync.parameter_sync_step=2"),
        ("parameter_sync_step=2", "set trainer.v1.sync.parameter_sync_step=1"),
    ),
    Case(
        "penalty for length below the range",
        config(f"{OVERLONG}.enable=true", f"{OVERLONG}.penalty_factor=.5"),
        ("overlong_buffer_cfg.enable=True", "set dots.reward_range=[-0.5,1]"),
    ),
    Case(
        "store too small",
        config("transfer_queue.backend.SimpleStorage.total_storage_size=1000"),
        ("total_storage_size=1000", "raise it, or lower dots.replay.capacity"),
    ),
    Case(
        "store too small for a step",
        config("transfer_queue.backend.SimpleStorage.total_storage_size=100"),
        ("total_storage_size=100", "raise it, or lower data.train_batch_size"),
    ),
    Case(
        "verl's filter",
        config("algorithm.filter_groups.enable=true"),
        ("filter_groups.enable=True", "use dots.replay.fill=inform"),
    ),
    Case(
        "labels too late",
        config("dots.reference.mode=fresh", "reward.reward_model.enable=true"),
        ("dots.reference.mode=fresh", "use dots.reference.mode=window"),
    ),
]
