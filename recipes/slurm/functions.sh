# shellcheck shell=bash
# What verl_dots.sbatch is made of. Uses its OUT, REQUEST and STOP_SECONDS.

declare -A STEP=() # name of a running step -> process id of its srun

say() {
    echo "$(date '+%F %T') verl_dots.sbatch: $1"
}

fail() {
    say "error: $1" >&2
    exit 1
}

# The IPv4 address of a node, from its name or, where that says loopback or nothing, this machine's (the batch script runs on
# the first node). Set HEAD_IP where nodes reach each other by another network.
address_of() {
    local address
    address=$({ getent ahostsv4 "$1" | cut -d' ' -f1; hostname -I | tr ' ' '\n'; } | grep -F . | grep -v '^127\.' | head -n 1) || true
    echo "${address:-127.0.0.1}"
}

# Of the job's own block of 8 ports, below the range that Linux hands out. Jobs whose ids differ by a multiple of 2,600 would clash
# on a shared node.
first_port() {
    echo $((11000 + $1 % 2600 * 8))
}

# Step of the newest complete checkpoint, 0 for none: verl writes this file last.
checkpointed_step() {
    cat "$OUT/checkpoints/latest_checkpointed_iteration.txt" 2>/dev/null || echo 0
}

# start_step NAME NODES SRUN_OPTIONS... COMMAND; one task on each of so many nodes, with all that the job has there.
start_step() {
    local name=$1 nodes=$2
    shift 2
    srun --overlap --nodes="$nodes" --ntasks="$nodes" --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --mem=0 "$@" </dev/null &
    STEP[$name]=$!
}

running() {
    [[ -n ${STEP[$1]:-} ]] && kill -0 "${STEP[$1]}" 2>/dev/null
}

# Ends steps, all at once, within 50 s. srun hands SIGUSR2 to the step's task (ray_node.sh, run_recipe.sh), which ends what it
# started. SIGTERM makes srun kill at once.
stop_steps() {
    local name second
    for name in "$@"; do
        ! running "$name" || kill -USR2 "${STEP[$name]}" 2>/dev/null || true
    done
    for name in "$@"; do
        for ((second = SECONDS + 50; SECONDS < second; )); do
            running "$name" || break
            sleep 1
        done
        ! running "$name" || kill -TERM "${STEP[$name]}" 2>/dev/null || true
    done
}

# When Slurm's time limit ends the job, in seconds since 1970. Asked for and not taken from SLURM_JOB_END_TIME, which older versions
# lack and which stays as it was when somebody changes the limit.
end_of_job() {
    local end
    end=$(squeue --noheader --job "$SLURM_JOB_ID" --format %e) && [[ -n $end ]] && date -d "$end" +%s && return
    echo "${SLURM_JOB_END_TIME:-$(($(date +%s) + 2 * STOP_SECONDS))}" # Slurm does not answer
}

# Asks DotsTrainer for a checkpoint at the end of its running step, and waits for that, for one of verl's own (every SAVE_FREQ
# steps, all that METHOD=grpo and dapo have), or until time is up. The caller removes the request when the recipe has ended.
request_checkpoint() {
    local step end
    step=$(checkpointed_step)
    end=$(end_of_job)
    say "$((end - $(date +%s))) s left: asking for a checkpoint after $step"
    mkdir -p "$(dirname "$REQUEST")"
    touch "$REQUEST"
    while running recipe && (($(checkpointed_step) <= step && end - $(date +%s) > STOP_SECONDS)); do
        sleep 2
    done
}
