#!/usr/bin/env bash
# Real Slurm on this machine, two nodes of it, and real training under recipes/slurm/verl_dots.sbatch. Not part of tests/run.sh:
# it needs root, Debian's packages (apt-get install slurmctld slurmd slurm-client munge) and about ten minutes.
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
RESUME_STEPS=${RESUME_STEPS:-30} # more than a turn can do between its second step and the signal

# submit NAME SBATCH_OPTIONS... -- OVERRIDES...: its id goes to $DIR/NAME.id, its log to $DIR/NAME.log.
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
}

# Returns when the job has left the queue for good; shows its logs where it failed.
finish() {
    wait_for_job "$(cat "$DIR/$1.id")" || {
        cat "$DIR/$1.log" "$DIR/$1/train.log" >&2
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
    STEPS=3 SAVE_FREQ=3 submit finishes --time=20 -- || return 1
    finish finishes || return 1
    check finishes 3 1
}

# Shortens the time limit of a job when it has trained two steps, so that it meets it in the middle of a run whatever the
# machine's speed, and gives the next turn a long one again.
cut_off() {
    local id=$1 metrics=$2/checkpoints/dots/metrics.jsonl elapsed state steps=0
    until ((steps >= 2)); do
        [[ $(job_state "$id") =~ PENDING|RUNNING|CONFIGURING ]] || return 1
        sleep 1
        [[ ! -f $metrics ]] || steps=$(wc -l <"$metrics")
    done
    elapsed=$(($(date +%s) - $(date -d "$(squeue --noheader --job "$id" --format %S)" +%s)))
    scontrol update JobId="$id" TimeLimit=$((elapsed / 60 + 4))
    echo "slurm.sh: two steps after $elapsed s; the time limit is $((elapsed / 60 + 4)) minutes now"
    while state=$(job_state "$id") && [[ $state != PENDING ]]; do
        [[ $state =~ RUNNING|COMPLETING|REQUEUED ]] || return 1
        sleep 1
    done
    scontrol update JobId="$id" TimeLimit=30
}

# No checkpoint but the requested ones: SAVE_FREQ is out of reach. The signal's lead is above the time that is left, so it comes as
# soon as Slurm looks, which is every 30 s.
resumes() {
    STEPS=$RESUME_STEPS SAVE_FREQ=100000 STOP_SECONDS=90 submit resumes --time=30 --signal=B:USR1@240 -- || return 1
    cut_off "$(cat "$DIR/resumes.id")" "$DIR/resumes" || echo "slurm.sh: resumes was not cut off" >&2
    finish resumes || return 1
    check resumes "$RESUME_STEPS" 2 || return 1
    grep "Resuming from .*global_step_" "$DIR/resumes/train.log"
}

nodes() {
    STEPS=3 SAVE_FREQ=3 submit nodes --nodes=2 --time=20 -- trainer.nnodes=2 \
        actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=64 || return 1
    finish nodes || return 1
    check nodes 3 1
    grep "Ray has 2 of 2 nodes" "$DIR/nodes.log" || return 1
    (cd "$DIR/nodes/checkpoints/global_step_3/actor" && ls model_world_size_2_rank_0.pt model_world_size_2_rank_1.pt) # each rank saved its half
}

PASSED=0 FAILED=0
for case in "${@:-finishes resumes nodes}"; do
    for name in $case; do
        if "$name"; then PASSED=$((PASSED + 1)); else FAILED=$((FAILED + 1)); fi
    done
done
echo "$PASSED passed, $FAILED failed"
[[ $FAILED == 0 ]]
