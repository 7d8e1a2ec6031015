#!/usr/bin/env bash
# GRPO with difficulty-targeted selection and rollout replay | Qwen2.5-3B on SCP-25K | FSDP2, vLLM
#
#   bash recipes/run_qwen2_5_3b_scp25k_fsdp.sh                   # METHOD=dots_rr, PRESET=default
#   METHOD=grpo bash recipes/run_qwen2_5_3b_scp25k_fsdp.sh       # the baseline; METHOD=dots, rr, dapo
#   DRY_RUN=1 bash recipes/run_qwen2_5_3b_scp25k_fsdp.sh         # print and check the configuration, no GPU needed
#   sbatch --nodes=1 recipes/slurm/verl_dots.sbatch recipes/run_qwen2_5_3b_scp25k_fsdp.sh [verl overrides]
#
# Data: 25,000 science questions made from SCP-116K (ProRL's selection with SCP_FILE, see data_prep/README.md).
# The paper's science run. 512 questions are held out to validate on, so validation says nothing about other benchmarks.
# Hardware: 8 GPUs with 48 GB or more (DRY_RUN=1 estimates the memory). Not run by us on GPUs.
# Duration: 60 steps. Not measured by us, DRY_RUN=1 gives an estimate. The paper's numbers (8 GPUs): 23 to 62 % less time to
# GRPO's final accuracy over its six combinations, of which 11 to 13 % a step; plain GRPO is METHOD=grpo.
# In the log: after "verl-dots" the lines DOTS and RR say what is active. dots/informative_share above GRPO's is selection at work,
# dots/pearson says how well difficulty is predicted, replay/weight_mean near 1 that replayed rollouts still fit the policy,
# val-core/*/mean@* is the accuracy. Compare runs with: python -m verl_dots.report OUT_OF_GRPO OUT_OF_DOTS_RR
set -euo pipefail
cd "$(dirname "$0")/.."

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-3B}
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-4096}
TRAIN_DATA=scp25k
VAL_DATA=(scp25k_heldout)

source recipes/common/grpo_fsdp.sh
