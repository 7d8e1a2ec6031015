#!/usr/bin/env bash
# verl's GRPO training on a CPU, from nothing to a trained model.
#
#   bash recipes/quickstart_cpu.sh                            # everything at its default
#   METHOD=grpo STEPS=20 OUT=outputs/try bash recipes/quickstart_cpu.sh [verl overrides]
#
# Makes .venv when there is none, builds the arithmetic task with its warm-started model, trains verl's real V1 trainer
# (Ray, TransferQueue, FSDP2, agent loop) and shows a progress bar; the full log goes to $OUT/train.log and one flat object
# per step to $OUT/metrics.jsonl. Hardware: 2 cores, 6 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."

METHOD=${METHOD:-dots_rr}
PRESET=${PRESET:-default} # default, paper or released
FRESH=${FRESH-0.5}        # share of each batch that is generated; empty: the preset's own, which is all of a batch of 16
STEPS=${STEPS:-60}
SEED=${SEED:-1}
OUT=${OUT:-outputs/quickstart}
POOL=${POOL:-x}                               # mix of questions: x, y or z
TASK_DIR=${TASK_DIR:-outputs/arithmetic_$POOL} # built here unless it is there
BUILD_ARGS=${BUILD_ARGS:-} # more for data_prep/build_arithmetic.py, such as "--task carry_slip --width 192"
TRAIN_BATCH=${TRAIN_BATCH:-16}
MINI_BATCH=${MINI_BATCH:-8}
ROLLOUTS=${ROLLOUTS:-8}
TEST_FREQ=${TEST_FREQ:-20}
SAVE_FREQ=${SAVE_FREQ:--1}
RESUME=${RESUME:-disable} # auto: continue from the newest checkpoint in $OUT/checkpoints

OVERLAY=('hydra.searchpath=[pkg://verl_dots.configs]' +dots="$PRESET" dots.seed="$SEED" +trainer.v1.sync.poll_interval=0.05)
[[ -z $FRESH ]] || OVERLAY+=(dots.replay.fresh_fraction="$FRESH")
case $METHOD in
grpo) # verl's own trainer; its 2 s between polls would be most of a step of a small model
    DOTS=(
        trainer.v1.trainer_mode=sync
        trainer.v1.sampler.custom_sampler.path=pkg://verl_dots.cpu.replay_buffer
        trainer.v1.sampler.custom_sampler.name=FastReplayBuffer
    )
    ;;
dots) DOTS=("${OVERLAY[@]}" dots.replay.enable=False) ;;
rr) DOTS=("${OVERLAY[@]}" dots.selection.enable=False) ;;
dots_rr) DOTS=("${OVERLAY[@]}") ;;
*)
    echo "quickstart_cpu.sh: error: METHOD '$METHOD' is unknown: use grpo, dots, rr or dots_rr" >&2
    exit 2
    ;;
esac

case $PRESET in # what the overlay sets too, but here it comes before the command line and METHOD=grpo has none
default | released) NORM_ADV_BY_STD=True LOSS_AGG_MODE=token-mean ;;
paper) NORM_ADV_BY_STD=False LOSS_AGG_MODE=seq-mean-token-mean ;; # section 2: A = r - mean, mean over sequences
*)
    echo "quickstart_cpu.sh: error: PRESET '$PRESET' is unknown: use default, paper or released" >&2
    exit 2
    ;;
esac

source recipes/common/cpu_env.sh
# shellcheck disable=SC2086 # several arguments in one variable
python data_prep/build_arithmetic.py --output "$TASK_DIR" --pool "$POOL" $BUILD_ARGS
mkdir -p "$OUT"
OUT=$(realpath "$OUT")
TASK_DIR=$(realpath "$TASK_DIR")
RAY_DIR=$(mktemp -d "${TMPDIR:-/tmp}/vd.XXXXXX") # short: the path of Ray's sockets may have 107 characters
trap 'rm -rf "$RAY_DIR"' EXIT
if [[ $RESUME == auto && ! -e $OUT/checkpoints/latest_checkpointed_iteration.txt ]]; then
    echo "quickstart_cpu.sh: no checkpoint in $OUT/checkpoints (SAVE_FREQ=5 writes one every 5 steps): starting anew" >&2
fi
export VERL_FILE_LOGGER_PATH=$OUT/verl_metrics.jsonl

DATA=(
    data.train_files="$TASK_DIR/train.parquet"
    data.val_files="$TASK_DIR/val.parquet"
    data.train_batch_size="$TRAIN_BATCH"
    data.max_prompt_length=16
    data.max_response_length=14
    data.seed="$SEED"
    data.dataloader_num_workers=0
)
MODEL=(
    actor_rollout_ref.model.path="$TASK_DIR/model"
    actor_rollout_ref.model.external_lib=verl_dots.cpu.backend
    +actor_rollout_ref.model.override_config.attn_implementation=sdpa
    actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=False
)
ACTOR=(
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.use_torch_compile=False
    actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
    actor_rollout_ref.actor.ppo_mini_batch_size="$MINI_BATCH"
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=$((MINI_BATCH * ROLLOUTS))
    actor_rollout_ref.actor.optim.lr=3e-4
    "actor_rollout_ref.actor.optim.betas=[0.9,0.99]"
    actor_rollout_ref.actor.optim.weight_decay=0.0
    actor_rollout_ref.actor.clip_ratio=0.2
    actor_rollout_ref.actor.use_kl_loss=False
    actor_rollout_ref.actor.loss_agg_mode="$LOSS_AGG_MODE"
    actor_rollout_ref.actor.data_loader_seed="$SEED"
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=dots_cpu
    actor_rollout_ref.rollout.n="$ROLLOUTS"
    actor_rollout_ref.rollout.seed="$SEED"
    actor_rollout_ref.rollout.dtype=float64
    actor_rollout_ref.rollout.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.temperature=1.0
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=$((TRAIN_BATCH * ROLLOUTS))
    actor_rollout_ref.rollout.agent.num_workers=1
    actor_rollout_ref.rollout.agent.default_agent_loop=dots_cpu_agent
    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=verl_dots.cpu.agent_loop.PartitionedAgentLoopManager
)
ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.norm_adv_by_std_in_grpo="$NORM_ADV_BY_STD"
    algorithm.use_kl_in_reward=False
    reward.custom_reward_function.path=verl_dots/cpu/arithmetic/reward.py
    reward.num_workers=1
)
TRAINER=(
    trainer.use_v1=True
    trainer.device=cpu
    trainer.n_gpus_per_node=1
    trainer.nnodes=1
    trainer.total_epochs=1000000 # total_training_steps ends the run
    trainer.total_training_steps="$STEPS"
    trainer.val_before_train=True
    trainer.test_freq="$TEST_FREQ"
    trainer.save_freq="$SAVE_FREQ"
    trainer.resume_mode="$RESUME"
    trainer.default_local_dir="$OUT/checkpoints"
    "trainer.logger=[console,file]"
    trainer.project_name=quickstart
    trainer.experiment_name="$METHOD"
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    # Ray counts logical resources: three CPUs a rank and the rest of the actors, whatever the machine has, and an
    # accelerator that does not exist, because verl counts nothing else.
    +ray_kwargs.ray_init.address=local
    ray_kwargs.ray_init.num_cpus=8
    +ray_kwargs.ray_init.resources.NPU=1
    +ray_kwargs.ray_init._temp_dir="$RAY_DIR"
    +ray_kwargs.ray_init.include_dashboard=False
    +ray_kwargs.ray_init.object_store_memory=500000000
    hydra.run.dir="$OUT/hydra"
)

python -m verl_dots.cpu.watch --out "$OUT" --steps "$STEPS" -- \
    python -m verl.trainer.main_ppo \
    "${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${ALGORITHM[@]}" "${TRAINER[@]}" "${DOTS[@]}" "$@"
python -m verl_dots.cpu.summary "$OUT" --batch "$TRAIN_BATCH"
