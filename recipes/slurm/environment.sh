# shellcheck shell=bash
# Sourced by the scripts of a job's steps: the user's environment on this node, and `supervise`, which runs a command in it.

ADDRESS=$RAY_ADDRESS
# shellcheck disable=SC1090
[[ -z ${SETUP:-} ]] || source "$SETUP"
export RAY_ADDRESS=$ADDRESS # whatever SETUP says
if [[ -z ${CONTAINER:-} && -n ${VENV:-} && -f $VENV/bin/activate ]]; then
    source "$VENV/bin/activate"
fi

# Words to put before a command, so that it runs in the container.
container_prefix() {
    local name variables=()
    read -ra extra <<<"${CONTAINER_ARGS:-}"
    case ${CONTAINER:-} in
    "") PREFIX=() ;;
    *.sif) PREFIX=(apptainer exec --nv --bind "$PWD" --pwd "$PWD" "${extra[@]}" "$CONTAINER") ;;
    *.sqsh)
        # enroot hands on no variables by itself; those that say where programs lie are the image's own
        for name in $(compgen -e | grep -vE '^(PATH|HOME|SHELL|TMPDIR|LD_.*|PYTHON.*|VIRTUAL_ENV)$'); do
            variables+=(--env "$name")
        done
        PREFIX=(enroot start --mount "$PWD:$PWD" "${variables[@]}" "${extra[@]}" "$CONTAINER")
        ;;
    *)
        echo "verl_dots.sbatch: error: CONTAINER=$CONTAINER is neither apptainer's .sif nor enroot's .sqsh" >&2
        exit 2
        ;;
    esac
}

# Runs a command in a process group of its own and ends that group, by its id, on SIGUSR2 (from stop_steps) or SIGTERM (from
# Slurm). Slurm gives either to every process of the step, so the command ignores the first and can end in order.
# Returns the command's code, 0 where it was ended by SIGUSR2.
supervise() {
    local code
    ASKED='' KILLER=''
    container_prefix
    set -m # background commands become process groups
    (trap '' USR2 && exec "${PREFIX[@]}" "$@") &
    GROUP=$!
    trap 'ASKED=1; end_group' USR2
    trap end_group TERM
    while true; do
        wait "$GROUP" && code=0 || code=$?
        kill -0 "$GROUP" 2>/dev/null || break # otherwise a signal ended the wait
    done
    trap - USR2 TERM
    kill -KILL -- "-$GROUP" ${KILLER:+"-$KILLER"} 2>/dev/null || true # whatever of the group is left
    [[ -z $ASKED ]] || code=0
    return "$code"
}

end_group() {
    kill -TERM -- "-$GROUP" 2>/dev/null || true
    (sleep 40 && kill -KILL -- "-$GROUP" 2>/dev/null) &
    KILLER=$!
    disown "$KILLER" # no message about its end
}
