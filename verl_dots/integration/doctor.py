"""All checks of the doctor in order; the entry point is `verl_dots.doctor`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from omegaconf import DictConfig, OmegaConf

from verl_dots.config import DotsConfig
from verl_dots.diagnosis import batch, questions, resources
from verl_dots.diagnosis.finding import Finding, failed
from verl_dots.diagnosis.resources import Node, Stored
from verl_dots.integration import check, doctor_config, doctor_data, doctor_ray, doctor_versions

Section = tuple[str, list[Finding]]


def examine(
    overrides: Sequence[str],
    *,
    config_path: str | None = None,
    config_name: str = "ppo_trainer",
    config_only: bool = False,
    ray_timeout_s: float = 180.0,
) -> Iterator[Section]:
    """Run every check that the configuration allows, one section after the other.

    Args:
        overrides: Hydra's, as for `python -m verl.trainer.main_ppo`.
        config_path, config_name: as for verl's command line.
        config_only: neither start Ray nor compare versions.
        ray_timeout_s: for Ray and its fresh workers.

    Yields:
        Title and findings.

    Raises:
        ValueError: the configuration does not compose.
    """
    config = doctor_config.composed(overrides, config_path, config_name)
    needs_plugin = doctor_config.uses_dots(config) or os.environ.get("VERL_PLATFORM") == "cpu"
    found = doctor_versions.check_plugin_here() if needs_plugin else []
    yield "Software", [*([] if config_only else doctor_versions.check_versions(config)), *found]
    if failed(found):
        return  # nothing after this would say more than that
    findings, dots = doctor_config.check_dots(config)
    said = {finding.message for finding in findings}  # embeddings and checkpoint are looked for twice
    sizes = doctor_config.check_sizes(config)
    others = [*sizes, *doctor_config.check_verl(config), *doctor_config.check_files(config, dots)]
    yield "Configuration", [*findings, *(finding for finding in others if finding.message not in said)]
    if failed(sizes):
        return  # the sums below need them
    for title, later in _examine_sizes(config, dots, config_only, ray_timeout_s):
        yield title, [finding for finding in later if finding.message not in said]


def _examine_sizes(
    config: DictConfig, dots: DotsConfig | None, config_only: bool, ray_timeout_s: float
) -> Iterator[Section]:
    shape = doctor_config.batch_shape(config)
    found = [*batch.check_batch(shape), *doctor_config.check_dynamic_batches(config)]
    if dots is not None:
        found += batch.check_shares(shape, dots)
    yield "Batch", found
    yield "Questions", _examine_questions(config, dots, shape)
    length = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    stored = Stored.of(shape, dots, length, doctor_data.validation_rows(config))
    found = resources.check_storage(stored, check.storage_limit(config))
    wanted = doctor_config.needs(config)
    if config_only:
        yield "Cluster", [*found, *resources.check_memory(stored, []), *_declared(config, wanted)]
        return
    answers, cluster = doctor_ray.ask_ray(config, wanted.accelerator, ray_timeout_s)
    found = [*answers, *found]
    if cluster is not None:
        found += resources.check_accelerators(wanted, cluster.nodes)
        found += resources.check_cpus(wanted, cluster.nodes)
        found += resources.check_memory(stored, cluster.nodes)
    yield "Cluster", found


def _examine_questions(config: DictConfig, dots: DotsConfig | None, shape: batch.BatchShape) -> list[Finding]:
    findings, data = doctor_data.read_questions(config)
    if data is None:
        return findings
    findings += questions.check_questions(data)
    most = int(config.data.get("train_max_samples", -1))
    most = most if most > 0 else len(data.ids)
    findings += batch.check_epochs(shape, min(most, len(data.ids)))
    findings += batch.check_pool(shape, dots, min(most, len(set(data.ids))))
    if dots is not None and dots.selection.enable:
        findings += doctor_config.check_default_rewards(config, dots, data.sources)
        findings += questions.check_predictor(dots.predictor, data.distinct())
    return findings


def _declared(config: DictConfig, wanted: resources.Needs) -> list[Finding]:
    """Checks against what `ray_kwargs.ray_init` declares, where it declares anything."""
    init = config.ray_kwargs.get("ray_init", {})
    cpus = init.get("num_cpus")
    declared = OmegaConf.select(init, f"resources.{wanted.accelerator}")
    declared = init.get("num_gpus") if declared is None and wanted.accelerator == "GPU" else declared
    node = Node("ray_kwargs.ray_init", float(cpus or 0), float(declared or 0))
    checks: list[tuple[object, Callable[..., list[Finding]]]] = [
        (declared, resources.check_accelerators),
        (cpus, resources.check_cpus),
    ]
    joins = bool(os.environ.get("RAY_ADDRESS")) or init.get("address") not in (None, "local")
    return [] if joins else [found for value, check in checks if value is not None for found in check(wanted, [node])]
