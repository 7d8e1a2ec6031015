# Source this to run verl on a CPU: makes .venv when there is none, activates it and sets the environment.
#   VENV=.venv  PYTHON=python3
# The folder must be the repository's root. Packages come from wherever pip is configured to look; on a machine without
# a GPU, PIP_EXTRA_INDEX_URL can point at torch's CPU builds, which are much smaller.
VENV=${VENV:-.venv}
PYTHON=${PYTHON:-python3}

if [[ ! -x $VENV/bin/python ]]; then
    echo "making $VENV" >&2
    "$PYTHON" -m venv "$VENV"
fi
# Installed already for exactly these requirements: then pip is not asked.
_stamp=$VENV/.verl-dots-$(cat setup.py constraints-cpu.txt | cksum | cut -d' ' -f1)
if [[ ! -f $_stamp ]]; then
    echo "installing packages into $VENV (minutes, once)" >&2
    "$VENV/bin/python" -m pip install --quiet "$(grep '^torch==' constraints-cpu.txt)"
    "$VENV/bin/python" -m pip install --quiet -c constraints-cpu.txt -e '.[cpu,dev]'
    rm -f "$VENV"/.verl-dots-*
    touch "$_stamp"
fi
source "$VENV/bin/activate"

export VERL_PLATFORM=cpu
export VERL_USE_EXTERNAL_MODULES=${VERL_USE_EXTERNAL_MODULES:-verl_dots.integration.plugin} # fails loudly, unlike the entry point
export TQ_NUM_THREADS=2                                       # more, and TransferQueue writes hundreds of warnings a step
export RAY_worker_niceness=0 # Ray starts its workers at nice 15: anything else on the machine would starve them
export RAY_USAGE_STATS_ENABLED=0 RAY_DEDUP_LOGS=0 RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false PYTHONUNBUFFERED=1 HYDRA_FULL_ERROR=1
unset RAY_ADDRESS CUDA_VISIBLE_DEVICES
