# shellcheck shell=bash
# The body of every recipes/run_<model>_<data>_fsdp.sh: GRPO in verl's V1 trainer, FSDP2 actor, vLLM rollout. Sourced from the
# repository's root; the recipe has set MODEL_PATH, MAX_RESPONSE_LENGTH, TRAIN_DATA and VAL_DATA and keeps its "$@".
#
#   METHOD   grpo     verl's own trainer: the baseline
#            dots     difficulty-targeted selection: every group is generated, for questions it picks
#            rr       rollout replay: verl's own random questions, part of each batch replayed
#            dots_rr  both
#            dapo     verl's own group filter: groups whose rewards are all equal are generated anew, until the batch is full
#   PRESET   default, paper or released (verl_dots/configs/dots); it also sets the advantage and the loss's mean of grpo and dapo,
#            so that a baseline and a treatment of one PRESET differ in nothing but what METHOD sets
#   DRY_RUN=1 prints the composed configuration, checks it and estimates memory; DOCTOR=0 skips the preflight
#
# Numbers without a comment are the paper's (arXiv 2506.05316, appendix D).

# ---- user-adjustable ----
METHOD=${METHOD:-dots_rr}
PRESET=${PRESET:-default}
SEED=${SEED:-1}
STEPS=${STEPS:-60}
NNODES=${NNODES:-1}
NGPUS_PER_NODE=${NGPUS_PER_NODE:-8}

DATA_DIR=${DATA_DIR:-data} # where data_prep writes; what is missing is built
TRAIN_FILE=${TRAIN_FILE:-}
VAL_FILES=${VAL_FILES:-} # separated by commas
EMBEDDINGS=${EMBEDDINGS:-} # of data_prep/embed_questions.py; none: features of the questions' text
PREDICTOR=${PREDICTOR:-}   # of data_prep/fit_predictor.py; none: fitted on the run's own groups. The paper has one

TRAIN_BATCH=${TRAIN_BATCH:-512}
MINI_BATCH=${MINI_BATCH:-64}
ROLLOUTS=${ROLLOUTS:-8}
MAX_PROMPT_LENGTH=${MAX_PROMPT_LENGTH:-1024}
ACTOR_LR=${ACTOR_LR:-1e-6}
PPO_MAX_TOKEN_LEN_PER_GPU=${PPO_MAX_TOKEN_LEN_PER_GPU:-$((8192 + MAX_RESPONSE_LENGTH))} # as in the authors' script
OFFLOAD=${OFFLOAD:-False} # True: weights and optimiser wait in host memory during rollouts, for smaller GPUs

ROLLOUT_TP=${ROLLOUT_TP:-1}
ROLLOUT_GPU_MEM_UTIL=${ROLLOUT_GPU_MEM_UTIL:-0.7} # as in the authors' script
MAX_NUM_SEQS=${MAX_NUM_SEQS:-512}                 # a GPU's share of plain GRPO's batch: verl's 256 would make it wait twice

TEST_FREQ=${TEST_FREQ:-10}
SAVE_FREQ=${SAVE_FREQ:-10}
VAL_ROLLOUTS=${VAL_ROLLOUTS:-1} # responses per validation question
RESUME=${RESUME:-auto}          # continues from the newest checkpoint in $OUT/checkpoints
KEEP_CHECKPOINTS=${KEEP_CHECKPOINTS:-2}
LOGGER=${LOGGER:-[console,file]} # and tensorboard, wandb, mlflow, ...
PROJECT=${PROJECT:-verl_dots}
RECIPE=$(basename "$0" .sh)
OUT=${OUT:-outputs/$RECIPE/${METHOD}_${PRESET}_seed$SEED}
PYTHON=${PYTHON:-python3}
DRY_RUN=${DRY_RUN:-0}
DOCTOR=${DOCTOR:-1}
# ---- end user-adjustable ----

usage_error() {
    echo "$RECIPE.sh: error: $1" >&2
    exit 2
}

OVERLAY=('hydra.searchpath=[pkg://verl_dots.configs]' +dots="$PRESET" dots.seed="$SEED")
[[ -z $EMBEDDINGS ]] || OVERLAY+=(dots.predictor.embeddings="$(realpath -m "$EMBEDDINGS")")
[[ -z $PREDICTOR ]] || OVERLAY+=(dots.predictor.checkpoint="$(realpath -m "$PREDICTOR")")
case $METHOD in
grpo) DOTS=(trainer.v1.trainer_mode=sync) ;;
dots) DOTS=("${OVERLAY[@]}" dots.replay.enable=False) ;;
rr) DOTS=("${OVERLAY[@]}" dots.selection.enable=False) ;;
dots_rr) DOTS=("${OVERLAY[@]}") ;;
dapo) # filter and refill only: DAPO's other changes to the loss would be a second difference
    DOTS=(trainer.v1.trainer_mode=sync algorithm.filter_groups.enable=True algorithm.filter_groups.metric=reward) ;;
*) usage_error "METHOD '$METHOD' is unknown: use grpo, dots, rr, dots_rr or dapo" ;;
esac
case $PRESET in
default | released) NORM_ADV_BY_STD=True LOSS_AGG_MODE=token-mean ;;
paper) NORM_ADV_BY_STD=False LOSS_AGG_MODE=seq-mean-token-mean ;; # section 2: A = r - mean, mean over sequences
*) usage_error "PRESET '$PRESET' is unknown: use default, paper or released" ;;
esac

[[ ! -d $MODEL_PATH ]] || MODEL_PATH=$(realpath "$MODEL_PATH")
source recipes/common/questions.sh # TRAIN_FILE and VAL_FILES, absolute

OUT=$(realpath -m "$OUT")
export VERL_USE_EXTERNAL_MODULES=${VERL_USE_EXTERNAL_MODULES:-verl_dots.integration.plugin} # fails loudly, unlike the entry point
export VERL_FILE_LOGGER_PATH=$OUT/verl_metrics.jsonl
export TOKENIZERS_PARALLELISM=${TOKENIZERS_PARALLELISM:-true} PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1

DATA=(
    data.train_files="$TRAIN_FILE"
    data.val_files="[$VAL_FILES]"
    data.train_batch_size="$TRAIN_BATCH"
    data.max_prompt_length="$MAX_PROMPT_LENGTH"
    data.max_response_length="$MAX_RESPONSE_LENGTH"
    data.filter_overlong_prompts=True
    data.truncation=error
    data.seed="$SEED"
    data.dataloader_num_workers=0 # a prefetched selection would be stale; the same for the baseline
)
MODEL=(
    actor_rollout_ref.model.path="$MODEL_PATH"
    actor_rollout_ref.model.use_remove_padding=True
    actor_rollout_ref.model.enable_gradient_checkpointing=True
)
ACTOR=(
    actor_rollout_ref.actor.strategy=fsdp2
    actor_rollout_ref.actor.optim.lr="$ACTOR_LR"
    actor_rollout_ref.actor.optim.lr_scheduler_type=constant
    actor_rollout_ref.actor.ppo_mini_batch_size="$MINI_BATCH"
    actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu="$PPO_MAX_TOKEN_LEN_PER_GPU"
    actor_rollout_ref.actor.clip_ratio=0.2
    actor_rollout_ref.actor.entropy_coeff=0
    actor_rollout_ref.actor.use_kl_loss=False # no reference policy is loaded
    actor_rollout_ref.actor.loss_agg_mode="$LOSS_AGG_MODE"
    actor_rollout_ref.actor.data_loader_seed="$SEED"
    actor_rollout_ref.actor.fsdp_config.param_offload="$OFFLOAD"
    actor_rollout_ref.actor.fsdp_config.optimizer_offload="$OFFLOAD"
)
ROLLOUT=(
    actor_rollout_ref.rollout.name=vllm
    actor_rollout_ref.rollout.n="$ROLLOUTS"
    actor_rollout_ref.rollout.temperature=0.6
    actor_rollout_ref.rollout.top_p=0.95
    actor_rollout_ref.rollout.seed="$SEED"
    actor_rollout_ref.rollout.tensor_model_parallel_size="$ROLLOUT_TP"
    actor_rollout_ref.rollout.gpu_memory_utilization="$ROLLOUT_GPU_MEM_UTIL"
    actor_rollout_ref.rollout.max_num_seqs="$MAX_NUM_SEQS"
    actor_rollout_ref.rollout.max_model_len=$((MAX_PROMPT_LENGTH + MAX_RESPONSE_LENGTH))
    actor_rollout_ref.rollout.val_kwargs.do_sample=True
    actor_rollout_ref.rollout.val_kwargs.temperature=0.6
    actor_rollout_ref.rollout.val_kwargs.top_p=0.95
    actor_rollout_ref.rollout.val_kwargs.n="$VAL_ROLLOUTS"
)
ALGORITHM=(
    algorithm.adv_estimator=grpo
    algorithm.norm_adv_by_std_in_grpo="$NORM_ADV_BY_STD"
    algorithm.use_kl_in_reward=False
    reward.custom_reward_function.path=pkg://verl_dots.rewards
)
TRAINER=(
    trainer.use_v1=True
    trainer.nnodes="$NNODES"
    trainer.n_gpus_per_node="$NGPUS_PER_NODE"
    trainer.total_epochs=1000000 # total_training_steps ends the run
    trainer.total_training_steps="$STEPS"
    trainer.val_before_train=True
    trainer.test_freq="$TEST_FREQ"
    trainer.save_freq="$SAVE_FREQ"
    trainer.max_actor_ckpt_to_keep="$KEEP_CHECKPOINTS"
    trainer.resume_mode="$RESUME"
    trainer.default_local_dir="$OUT/checkpoints"
    trainer.logger="$LOGGER"
    trainer.project_name="$PROJECT"
    trainer.experiment_name="${RECIPE#run_}_${METHOD}_${PRESET}_seed$SEED"
    # A cluster that is running already (RAY_ADDRESS) has an environment of its own: its workers are told.
    "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES='$VERL_USE_EXTERNAL_MODULES'"
    "+ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH='$VERL_FILE_LOGGER_PATH'"
    hydra.run.dir="$OUT/hydra"
)
OVERRIDES=("${DATA[@]}" "${MODEL[@]}" "${ACTOR[@]}" "${ROLLOUT[@]}" "${ALGORITHM[@]}" "${TRAINER[@]}" "${DOTS[@]}" "$@")

if [[ $DRY_RUN == 1 ]]; then
    build_missing_questions echo >&2 # what a run would do first
    QUESTIONS_TO_BUILD=$(missing_questions)
    export QUESTIONS_TO_BUILD
    exec "$PYTHON" -m recipes.common.dry_run "${OVERRIDES[@]}"
fi
mkdir -p "$OUT"
build_missing_questions
[[ $DOCTOR == 0 ]] || "$PYTHON" -m verl_dots.doctor "${OVERRIDES[@]}"

# verl starts its file anew at every start, so what an earlier start of this run logged moves to metrics.jsonl first.
keep_metrics() {
    [[ ! -s $VERL_FILE_LOGGER_PATH ]] || cat "$VERL_FILE_LOGGER_PATH" >>"$OUT/metrics.jsonl"
    rm -f "$VERL_FILE_LOGGER_PATH"
}
[[ $RESUME != disable ]] || rm -f "$VERL_FILE_LOGGER_PATH" "$OUT/metrics.jsonl"
keep_metrics
trap keep_metrics EXIT
"$PYTHON" -m verl.trainer.main_ppo "${OVERRIDES[@]}"
