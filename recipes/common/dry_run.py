"""Print a recipe's composed configuration and check it without a GPU and without Ray.

    DRY_RUN=1 bash recipes/run_qwen2_5_3b_deepmath_fsdp.sh [verl overrides]     # calls this, from the repository's root
    GPU_MEMORY_GB=80 GPU_PEAK_TFLOPS=989 RESPONSE_LENGTH=1000                   # what the estimates assume
    QUESTIONS_TO_BUILD=/a.parquet,/b.parquet                                    # missing, and made by the recipe itself

The configuration goes to stdout; what doctor finds in it (files, batch sizes, questions, the store's size) and the
estimates go to stderr. Exit code as doctor's: 0 nothing is wrong, 1 something is, 2 the overrides do not compose.
"""

from __future__ import annotations

import math
import os
import sys
import warnings
from collections.abc import Sequence

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from recipes.common import estimates
from verl_dots.diagnosis.finding import Finding, fail, failed, ok, show, warn
from verl_dots.files import run_cli

GB = estimates.GB


def check_memory(config: DictConfig, gpu_bytes: float) -> list[Finding]:
    """Whether weights, optimiser, KV cache and activations fit a GPU of `gpu_bytes`, and the responses the model."""
    topic = "GPU memory"
    try:
        shape = estimates.model_shape(config.actor_rollout_ref.model.path)
    except ValueError as error:
        return [fail(topic, str(error), "name a model whose config.json can be read")]
    memory = estimates.gpu_memory(config, shape, gpu_bytes)
    length = config.data.max_prompt_length + config.data.max_response_length
    found = []
    for phase, parts in (("during rollouts", memory.rollout), ("during the update", memory.update)):
        listed = ", ".join(f"{name} {value / GB:.1f}" for name, value in parts.items())
        line = f"{phase} about {sum(parts.values()) / GB:.0f} of {gpu_bytes / GB:.0f} GB ({listed})"
        remedy = "OFFLOAD=True, a smaller PPO_MAX_TOKEN_LEN_PER_GPU or ROLLOUT_GPU_MEM_UTIL, or more GPUs"
        found.append(ok(topic, line) if sum(parts.values()) <= gpu_bytes else fail(topic, line, remedy))
    gpus = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    line = f"the KV cache of an engine ({gpus} GPU) holds {memory.kv_sequences:.0f} sequences of {length} tokens"
    remedy = "raise ROLLOUT_GPU_MEM_UTIL or ROLLOUT_TP"
    found.append(ok(topic, line) if memory.kv_sequences >= 1 else fail(topic, line, remedy))
    if length > shape.max_position_embeddings:
        line = f"prompt and response take {length} positions, the model has {shape.max_position_embeddings}"
        found.append(fail("lengths", line, "lower MAX_RESPONSE_LENGTH or MAX_PROMPT_LENGTH"))
    return found


def estimated_hours(config: DictConfig, response_length: float, peak_flops: float) -> list[Finding]:
    """Duration of plain GRPO by arithmetic; nothing where the number of steps is not fixed."""
    steps = config.trainer.total_training_steps
    if not steps:
        return []
    shape = estimates.model_shape(config.actor_rollout_ref.model.path)
    hours = estimates.hours(config, shape, steps, response_length, peak_flops)
    line = (
        f"{steps} steps of plain GRPO take about {hours:.1f} h by arithmetic ({response_length:.0f} tokens a response, "
        f"{estimates.UTILISATION:.0%} of {peak_flops / 1e12:.0f} TFLOPS a GPU; start-up and validation not counted)"
    )
    return [ok("duration", line)]


def announce_builds(findings: Sequence[Finding], to_build: Sequence[str]) -> list[Finding]:
    """Doctor's findings, where a missing file that the recipe makes before it trains is no mistake."""
    lines = {f"{path}: no such file" for path in to_build}
    return [
        warn(found.topic, found.message.replace("no such file", "not there yet"), "a run builds it first and then checks it")
        if found.level == "fail" and found.message.partition("=")[2] in lines
        else found
        for found in findings
    ]


def _number(name: str, default: float) -> float:
    """A positive number from the environment."""
    text = os.environ.get(name, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError(f"{name}={text} is not allowed: use a number above 0")
    return value


def main(overrides: Sequence[str]) -> int:
    warnings.filterwarnings("ignore", module="verl")  # about engines that are not installed and GPUs that are not here
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
    from verl_dots.integration import doctor, doctor_config

    to_build = [path for path in os.environ.get("QUESTIONS_TO_BUILD", "").split(",") if path]
    gpu, peak = _number("GPU_MEMORY_GB", 80) * GB, _number("GPU_PEAK_TFLOPS", 989) * 1e12
    length = _number("RESPONSE_LENGTH", 1000)
    config = doctor_config.composed(overrides)
    print(OmegaConf.to_yaml(config, resolve=True), flush=True)
    console, findings = Console(stderr=True, highlight=False), []
    sections = list(doctor.examine(overrides, config_only=True))
    if not failed(doctor_config.check_sizes(config)):
        estimated = check_memory(config, gpu)
        if not failed(estimated):
            estimated += estimated_hours(config, length, peak)
        sections.append(("Estimates", estimated))
    for title, section in sections:
        found = announce_builds(section, to_build)
        if not found:
            continue
        console.print(f"[bold]{title}[/bold]")
        show(found, console)
        findings += found
    return 1 if failed(findings) else 0


if __name__ == "__main__":
    run_cli(lambda argv: main(sys.argv[1:] if argv is None else argv))
