#!/usr/bin/env bash
# GRPO with difficulty-targeted selection and rollout replay | Qwen2.5-Math-1.5B on ORZ | FSDP2, vLLM
#
#   bash recipes/run_qwen2_5_math_1_5b_orz_fsdp.sh                   # METHOD=dots_rr, PRESET=default
#   METHOD=grpo bash recipes/run_qwen2_5_math_1_5b_orz_fsdp.sh       # the baseline; METHOD=dots, rr, dapo
#   DRY_RUN=1 bash recipes/run_qwen2_5_math_1_5b_orz_fsdp.sh         # print and check the configuration, no GPU needed
#   sbatch --nodes=1 recipes/slurm/verl_dots.sbatch recipes/run_qwen2_5_math_1_5b_orz_fsdp.sh [verl overrides]
#
# Data: 8,192 questions of Open-Reasoner-Zero's 57k.
# One of the paper's six combinations. Validated on GSM8K, MATH-500, Minerva and OlympiadBench, whose mean is its accuracy.
# Hardware: 8 GPUs with 40 GB or more (DRY_RUN=1 estimates the memory). Not run by us on GPUs.
# Duration: 60 steps. Not measured by us, DRY_RUN=1 gives an estimate. The paper's numbers (8 GPUs): 23 to 62 % less time to
# GRPO's final accuracy over its six combinations, of which 11 to 13 % a step; plain GRPO is METHOD=grpo.
# In the log: after "verl-dots" the lines DOTS and RR say what is active. dots/informative_share above GRPO's is selection at work,
# dots/pearson says how well difficulty is predicted, replay/weight_mean near 1 that replayed rollouts still fit the policy,
# val-core/*/mean@* is the accuracy. Compare runs with: python -m verl_dots.report OUT_OF_GRPO OUT_OF_DOTS_RR
set -euo pipefail
cd "$(dirname "$0")/.."

MODEL_PATH=${MODEL_PATH:-Qwen/Qwen2.5-Math-1.5B}
MAX_RESPONSE_LENGTH=${MAX_RESPONSE_LENGTH:-3072}
TRAIN_DATA=orz
VAL_DATA=(gsm8k math500 minerva olympiadbench)

source recipes/common/grpo_fsdp.sh
