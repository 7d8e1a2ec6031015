#!/usr/bin/env bash
# Ray on one node of a job, in a step of verl_dots.sbatch:  ray_node.sh head | worker
# Only the head's ports are fixed, in the job's own block; everything else takes free ones, so two jobs can share a node.
set -euo pipefail
source recipes/slurm/environment.sh

DIR=/tmp/ray-$SLURM_JOB_ID-$SLURMD_NODENAME # short: the path of Ray's sockets may have 107 characters
read -ra EXTRA <<<"${RAY_ARGS:-}"
COMMON=(
    --temp-dir="$DIR" --num-cpus="${SLURM_CPUS_ON_NODE:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}"
    --min-worker-port=0 --max-worker-port=0 --dashboard-agent-listen-port=0 --disable-usage-stats --block
)
case $1 in
head)
    WHERE=(
        --head --node-ip-address="$HEAD_IP" --port="$RAY_PORT" --ray-client-server-port=$((RAY_PORT + 1))
        --dashboard-port=$((RAY_PORT + 2)) --include-dashboard=false
    )
    ;;
worker) WHERE=(--address="$RAY_ADDRESS") ;;
esac
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0 # Ray would try for 30 s to tell its head, which ends at the same time
trap 'rm -rf "$DIR"' EXIT
supervise ray start "${WHERE[@]}" "${COMMON[@]}" "${EXTRA[@]}"
