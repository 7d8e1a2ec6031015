#!/usr/bin/env bash
# Which verl, transformers, Ray and TransferQueue work: one environment each.   bash tests/compat.sh [refusals | verl | ranges]...
#   refusals  verl 0.9.0, TransferQueue below and above the range, and a newer verl that lacks one symbol are refused in one
#             line that says what works (about two minutes, 2 GB)
#   verl      every verl 0.9.x from 0.9.1 on that pip finds passes the integration tests (an hour each)
#   ranges    both ends of the stated ranges of transformers, Ray and TransferQueue pass the short integration tests
# Without arguments: refusals. Environments are made under ${COMPAT_DIR:-outputs/compat} and kept; delete one to make it anew.
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/common/cpu_env.sh # the environment that works, for the newer verl without a symbol
COMPAT_DIR=$(realpath -m "${COMPAT_DIR:-outputs/compat}")
FAILED=0
RANGES=("transformers==4.57.*" "ray==2.50.*" "TransferQueue==0.1.9") # the low ends; the high ends are constraints-cpu.txt

report() { # NAME EXPECTED-TEXT OUTPUT CODE
    if [[ $4 -ne 0 && $3 == *"$2"* ]]; then
        echo "ok      $1: $(tail -n 1 <<<"$3")"
    else
        echo "FAILED  $1: code $4, expected '$2' in: $(tail -n 3 <<<"$3")"
        FAILED=1
    fi
}

versions_environment() { # NAME REQUIREMENT...   packages alone: enough to ask for their versions
    local environment=$COMPAT_DIR/$1
    if [[ ! -x $environment/bin/python ]]; then
        python -m venv "$environment"
        "$environment/bin/pip" install --quiet --no-deps packaging "${@:2}"
    fi
}

refused() { # NAME EXPECTED-TEXT REQUIREMENT...
    versions_environment "$1" "${@:3}"
    local output code=0
    output=$(PYTHONPATH=$PWD "$COMPAT_DIR/$1/bin/python" -c \
        'from verl_dots.integration import compat; compat.check_versions()' 2>&1) || code=$?
    report "$1" "$2" "$output" "$code"
}

refusals() {
    refused verl-0.9.0 "verl 0.9.0 is not supported: verl-dots works with verl <0.10,>=0.9.1" verl==0.9.0 TransferQueue==0.1.11
    refused transferqueue-0.1.7 "TransferQueue 0.1.7 is not supported" verl==0.9.1 TransferQueue==0.1.7
    refused no-transferqueue "TransferQueue is not installed: pip install" verl==0.9.1
    newer_without_a_symbol
}

newer_without_a_symbol() { # the installed verl under the version 0.9.9, without one method that we override
    local output code=0
    output=$(python - 2>&1 <<'PYTHON'
from importlib import metadata

real = metadata.version
metadata.version = lambda name: "0.9.9" if name == "verl" else real(name)
from verl.trainer.ppo.v1 import trainer_base

del trainer_base.PPOTrainer.prepare_step
from verl_dots.integration import compat

compat.check_versions()
compat.check_symbols()
PYTHON
    ) || code=$?
    report verl-0.9.9 "PPOTrainer.prepare_step does not exist in the installed verl 0.9.9: verl-dots works with verl" "$output" "$code"
}

tested() { # NAME PYTEST-SELECTION REQUIREMENT...
    local environment=$COMPAT_DIR/$1
    if [[ ! -x $environment/bin/python ]]; then
        python -m venv "$environment"
        grep -v -i -E "^($(sed -E 's/[=<>].*//' <<<"$3"))==" constraints-cpu.txt >"$COMPAT_DIR/$1.constraints"
        "$environment/bin/pip" install --quiet -c "$COMPAT_DIR/$1.constraints" "${@:3}" -e '.[cpu,dev]'
    fi
    if (source "$environment/bin/activate" && python -m pytest -q -m "verl and not long" tests/integration -k "$2"); then
        echo "ok      $1"
    else
        echo "FAILED  $1"
        FAILED=1
    fi
}

every_verl() {
    local version
    for version in $(python -m pip index versions verl 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d , | tr ' ' '\n' |
        grep -E '^0\.9\.[1-9][0-9]*(\.post[0-9]+)?$'); do
        tested "verl-$version" "" "verl==$version"
    done
}

ranges() {
    local requirement
    for requirement in "${RANGES[@]}"; do
        tested "low-${requirement//[^a-zA-Z0-9.]/-}" "main_run or banner or whole_groups" "$requirement"
    done
}

mkdir -p "$COMPAT_DIR"
for part in "${@:-refusals}"; do
    case $part in
    refusals) refusals ;;
    verl) every_verl ;;
    ranges) ranges ;;
    *)
        echo "compat.sh: error: '$part' is unknown: use refusals, verl or ranges" >&2
        exit 2
        ;;
    esac
done
exit $FAILED
