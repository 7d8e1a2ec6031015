#!/usr/bin/env bash
# Which verl, transformers, Ray and TransferQueue work: one environment each.   bash tests/compat.sh [refusals | verl | ranges]...
#   refusals  verl 0.9.0, TransferQueue below the range or absent, and a newer verl that lacks one symbol are refused in one
#             line that says what works (about two minutes, 2 GB)
#   verl      every verl 0.9.x from 0.9.1 on that pip finds passes the integration tests (an hour each)
#   ranges    the low ends of the stated ranges of transformers, Ray and TransferQueue, all at once: a short run with
#             selection and replay, its checkpoint and its resume (ten minutes). The high ends are constraints-cpu.txt
# Without arguments: refusals. Environments are made under ${COMPAT_DIR:-outputs/compat} and kept; delete one to make it anew.
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/common/cpu_env.sh # the environment that works, for the newer verl without a symbol
COMPAT_DIR=$(realpath -m "${COMPAT_DIR:-outputs/compat}")
FAILED=0
LOWEST=("transformers==5.5.3" "ray==2.41.0" "TransferQueue==0.1.9") # the first two: what verl 0.9.1 itself asks for at least

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

environment() { # NAME REQUIREMENT...   everything installed, with these requirements in place of constraints-cpu.txt's
    local made=$COMPAT_DIR/$1 names
    names=$(printf '%s\n' "${@:2}" | sed -E 's/[=<>].*//' | paste -s -d '|')
    if [[ ! -f $made/installed ]]; then
        python -m venv "$made"
        grep -v -i -E "^($names)==" constraints-cpu.txt >"$made.constraints"
        "$made/bin/pip" install --quiet -c "$made.constraints" "${@:2}" -e '.[cpu,dev]'
        touch "$made/installed"
    fi
    # So that recipes/common/cpu_env.sh takes it as it is.
    touch "$made/.verl-dots-$(cat setup.py constraints-cpu.txt | cksum | cut -d' ' -f1)"
}

outcome() { # NAME CODE
    if [[ $2 -eq 0 ]]; then
        echo "ok      $1"
    else
        echo "FAILED  $1: code $2"
        FAILED=1
    fi
}

every_verl() {
    local version code
    for version in $(python -m pip index versions verl 2>/dev/null | sed -n 's/^Available versions: //p' | tr -d , | tr ' ' '\n' |
        grep -E '^0\.9\.[1-9][0-9]*(\.post[0-9]+)?$'); do
        environment "verl-$version" "verl==$version"
        code=0
        VENV=$COMPAT_DIR/verl-$version "$COMPAT_DIR/verl-$version/bin/python" -m pytest -q -m "verl and not long" \
            tests/integration || code=$?
        outcome "verl-$version" "$code"
    done
}

ranges() {
    local code=0 run part
    environment lowest "${LOWEST[@]}"
    run=$(mktemp -d "$COMPAT_DIR/run.XXXXXX")
    for part in "disable 2" "auto 4"; do # two steps with a checkpoint, then two more from it
        VENV=$COMPAT_DIR/lowest METHOD=dots_rr RESUME=${part% *} STEPS=${part#* } SAVE_FREQ=2 TEST_FREQ=-1 OUT=$run \
            bash recipes/quickstart_cpu.sh trainer.val_before_train=False data.val_max_samples=32 || code=$?
    done
    "$COMPAT_DIR/lowest/bin/python" - "$run/checkpoints/dots/metrics.jsonl" <<'PYTHON' || code=1
import sys

from verl_dots.runlog import read_metrics

steps = [line for line in read_metrics(sys.argv[1]) if "training/global_step" in line]
assert [line["step"] for line in steps] == [1, 2, 3, 4], "steps are missing or doubled"
assert steps[-1]["replay/drawn"] > 0, "nothing was replayed"
PYTHON
    outcome "lowest (${LOWEST[*]})" "$code"
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
