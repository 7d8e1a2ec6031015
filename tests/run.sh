#!/usr/bin/env bash
# Unit tests, then the integration tests that run verl on the CPU.   bash tests/run.sh [--all] [pytest options]
#   --all   also the long matrix (every preset, two ranks, fault injection; hours)
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/common/cpu_env.sh # makes .venv when there is none

SELECT=(-m "not long")
if [[ "${1:-}" == "--all" ]]; then
    SELECT=()
    shift
fi
python -m ruff check .
OMP_NUM_THREADS=1 python -m pytest -q "${SELECT[@]}" tests "$@"
