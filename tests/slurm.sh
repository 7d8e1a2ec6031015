#!/usr/bin/env bash
# Real Slurm on this machine, two nodes of it, and real training under recipes/slurm/verl_dots.sbatch. Not part of tests/run.sh:
# it needs root, Debian's packages (apt-get install slurmctld slurmd slurm-client munge) and about half an hour.
#
#   bash tests/slurm.sh [finishes] [resumes] [nodes]       # default: all three
#
#   finishes  a job runs the quickstart on the Ray that it started, and leaves nothing behind
#   resumes   a job cut off by its time limit saves, is queued again by itself, and goes on where it stopped
#   nodes     one training over two nodes, two ranks
set -euo pipefail
cd "$(dirname "$0")/.."
for program in slurmctld slurmd sbatch munged; do
    [[ -x $(command -v "$program" || echo "/usr/sbin/$program") ]] || {
        echo "slurm.sh: error: no $program: apt-get install slurmctld slurmd slurm-client munge" >&2
        exit 2
    }
done
source recipes/common/cpu_env.sh
export TASK_DIR=${TASK_DIR:-$PWD/outputs/arithmetic_x}
python data_prep/build_arithmetic.py --output "$TASK_DIR" --pool x
DIR=$(mktemp -d /tmp/slurm.XXXX)
export SLURM_CONF=$DIR/slurm.conf
source tests/slurm_cluster.sh
trap 'stop_cluster; rm -rf "$DIR"' EXIT
start_cluster

# The quickstart brings its own Ray; these make it join the job's, whose nodes declare the accelerator that verl counts.
JOIN=(
    "ray_kwargs.ray_init.address='\${oc.env:HEAD_IP}:\${oc.env:RAY_PORT}'" ray_kwargs.ray_init.num_cpus=null
    '~ray_kwargs.ray_init.resources' '~ray_kwargs.ray_init._temp_dir' '~ray_kwargs.ray_init.include_dashboard'
    '~ray_kwargs.ray_init.object_store_memory'
)
SHORT=(trainer.val_before_train=False data.val_max_samples=16)
export RAY_ARGS='--resources={"NPU":1} --object-store-memory=200000000' SETUP=recipes/common/cpu_env.sh
export METHOD=dots_rr TEST_FREQ=-1

# submit NAME SBATCH_OPTIONS... -- OVERRIDES...: returns when the job has left the queue for good.
submit() {
    local name=$1 options=()
    shift
    while [[ $1 != -- ]]; do
        options+=("$1")
        shift
    done
    shift
    echo "slurm.sh: $name"
    OUT=$DIR/$name sbatch --parsable --gpus-per-node=0 --cpus-per-task=8 --output="$DIR/$name.log" "${options[@]}" \
        recipes/slurm/verl_dots.sbatch recipes/quickstart_cpu.sh "${JOIN[@]}" "${SHORT[@]}" \
        +ray_kwargs.ray_init.runtime_env.env_vars.VERL_FILE_LOGGER_PATH="$DIR/$name/verl_metrics.jsonl" "$@" >"$DIR/$name.id"
    wait_for_job "$(cat "$DIR/$name.id")" || {
        cat "$DIR/$name.log" "$DIR/$name/train.log" >&2
        return 1
    }
}

# check NAME STEPS TURNS: every step once and in order, so many turns at least, nothing left on the machine.
check() {
    local id
    id=$(cat "$DIR/$1.id")
    python - "$DIR/$1" "$2" <<'PYTHON'
import sys
from verl_dots.runlog import read_metrics
found = [line["step"] for line in read_metrics(f"{sys.argv[1]}/checkpoints/dots/metrics.jsonl")]
assert found == list(range(1, int(sys.argv[2]) + 1)), found
PYTHON
    grep -q "turn $3 on" "$DIR/$1.log" || { echo "slurm.sh: $1 had fewer than $3 turns" >&2 && return 1; }
    local left
    left=$(pgrep -f "/tmp/ray-$id-" | wc -l)
    [[ $left == 0 && -z $(find /tmp -maxdepth 1 -name "ray-$id-*") ]] || { echo "slurm.sh: $1 left $left processes" >&2 && return 1; }
    echo "slurm.sh: $1: passed"
    grep verl_dots.sbatch "$DIR/$1.log"
}

finishes() {
    STEPS=4 SAVE_FREQ=4 submit finishes --time=20 -- || return 1
    check finishes 4 1
}

# No checkpoint but the requested ones: SAVE_FREQ is out of reach.
resumes() {
    STEPS=${RESUME_STEPS:-90} SAVE_FREQ=100000 STOP_SECONDS=75 submit resumes --time="${RESUME_MINUTES:-6}" --signal=B:USR1@150 -- || return 1
    check resumes "${RESUME_STEPS:-90}" 2
    grep -q "Resuming from .*global_step_" "$DIR/resumes/train.log"
}

nodes() {
    STEPS=3 SAVE_FREQ=3 submit nodes --nodes=2 --time=20 -- trainer.nnodes=2 \
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64 || return 1
    check nodes 3 1
    grep -q "Ray has 2 of 2 nodes" "$DIR/nodes.log"
}

PASSED=0 FAILED=0
for case in "${@:-finishes resumes nodes}"; do
    for name in $case; do
        if "$name"; then PASSED=$((PASSED + 1)); else FAILED=$((FAILED + 1)); fi
    done
done
echo "$PASSED passed, $FAILED failed"
[[ $FAILED == 0 ]]
