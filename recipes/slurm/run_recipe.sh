#!/usr/bin/env bash
# The recipe of a job, in a step of verl_dots.sbatch:  run_recipe.sh RECIPE [verl overrides]
set -euo pipefail
source recipes/slurm/environment.sh
supervise python recipes/slurm/wait_for_nodes.py "$NNODES"
[[ -z $ASKED ]] || exit 0
supervise bash "$@"
