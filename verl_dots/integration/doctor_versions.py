"""Versions against what is supported, and whether verl has loaded the plugin in this process."""

from __future__ import annotations

import importlib
import os
import platform
from importlib import metadata

from omegaconf import DictConfig, OmegaConf
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from verl_dots.diagnosis.finding import Finding, fail, ok, warn
from verl_dots.files import one_line
from verl_dots.integration import check, compat
from verl_dots.manifests import tool_version

PLUGIN = "verl_dots.integration.plugin"
_BASE = ("torch", "transformers", "ray", "tensordict", "numpy", "pyarrow")
_ENGINES = ("vllm", "sglang")
_REMEDY = f"install verl-dots in that environment, and export VERL_USE_EXTERNAL_MODULES={PLUGIN}, which fails loudly"


def version(package: str) -> str | None:
    """The installed version, None where there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check_versions(config: DictConfig) -> list[Finding]:
    """verl and TransferQueue against our range, the others against what verl's own package metadata asks for."""
    findings = [ok("versions", f"verl-dots {tool_version()}, Python {platform.python_version()}")]
    try:
        compat.check_versions()
        compat.check_symbols()
        findings.append(ok("versions", f"verl {version('verl')}, TransferQueue {version('TransferQueue')}"))
    except RuntimeError as error:
        supported = f"pip install 'verl{compat.SUPPORTED_VERL}' 'TransferQueue{compat.SUPPORTED_TRANSFER_QUEUE}'"
        findings.append(fail("versions", one_line(error), supported))
    wanted = _verl_requirements("")
    findings += _compared({name: wanted.get(name, SpecifierSet()) for name in _BASE})
    engine = str(OmegaConf.select(config, "actor_rollout_ref.rollout.name"))
    if engine in _ENGINES:
        findings += _check_engine(engine)
    return findings + _check_attention(config)


def _verl_requirements(extra: str) -> dict[str, SpecifierSet]:
    """What verl asks for, by package, unconditionally or under one of its extras."""
    found: dict[str, SpecifierSet] = {}
    for line in metadata.requires("verl") or []:
        requirement = Requirement(line)
        if requirement.marker is None or (extra and requirement.marker.evaluate({"extra": extra})):
            found[requirement.name] = requirement.specifier
    return found


def _compared(wanted: dict[str, SpecifierSet]) -> list[Finding]:
    good, findings = [], []
    for name, specifier in wanted.items():
        found = version(name)
        if found is None:
            findings.append(fail("versions", f"{name} is not installed", f"pip install '{name}{specifier}'"))
        elif not specifier.contains(found, prereleases=True):
            message = f"{name} {found}: verl asks for {specifier}"
            findings.append(warn("versions", message, f"pip install '{name}{specifier}'"))
        else:
            good.append(f"{name} {found}")
    return [ok("versions", ", ".join(good)), *findings] if good else findings


def _check_engine(engine: str) -> list[Finding]:
    """The rollout engine: missing is wrong, another version than verl was tested with is doubtful."""
    found, specifier = version(engine), _verl_requirements(engine).get(engine, SpecifierSet())
    if found is None:
        message = f"actor_rollout_ref.rollout.name={engine} and {engine} is not installed"
        return [fail("versions", message, f"pip install 'verl[{engine}]', which brings {engine}{specifier}")]
    if not specifier.contains(found, prereleases=True):
        return [warn("versions", f"{engine} {found}: verl {version('verl')} was tested with {specifier}")]
    return [ok("versions", f"{engine} {found}")]


def _check_attention(config: DictConfig) -> list[Finding]:
    """verl's models use flash attention unless told otherwise (verl/workers/config/model.py)."""
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    attention = OmegaConf.select(config, key, default=None) or "flash_attention_2"
    found = version("flash-attn")
    if not str(attention).startswith("flash_attention_2"):
        return []
    if found is None:
        message = "flash-attn is not installed, and the model uses flash_attention_2 unless told otherwise"
        return [fail("versions", message, f"pip install flash-attn, or +{key}=sdpa")]
    return [ok("versions", f"flash-attn {found}")]


def check_plugin_here() -> list[Finding]:
    """Did `import verl` load our plugin in this process, as it will on the driver."""
    topic = "plugin here"
    try:
        importlib.import_module("verl")
        trainers = importlib.import_module("verl.trainer.ppo.v1.trainer_base").TRAINER_REGISTRY
        losses = importlib.import_module("verl.trainer.ppo.core_algos").POLICY_LOSS_REGISTRY
    except Exception as error:  # noqa: BLE001  an environment may be broken in any way; a person must see how
        # On a CPU this is how a missing plugin shows: it is the plugin that registers the platform.
        message = f"verl does not import: {type(error).__name__}: {one_line(error)}"
        return [fail(topic, message, _REMEDY)]
    has_trainer, has_losses = check.TRAINER_MODE in trainers, {check.DECOUPLED, check.BEHAVIOUR} <= set(losses)
    return judge_plugin(topic, has_trainer, has_losses, "" if has_trainer and has_losses else reason_absent())


def judge_plugin(topic: str, has_trainer: bool, has_losses: bool, reason: str) -> list[Finding]:
    """A verdict on one process; `reason` is what is known about why something is absent."""
    if has_trainer and has_losses:
        return [ok(topic, "trainer dots and the losses dots_decoupled and dots_behaviour are registered in verl")]
    missing = "neither trainer nor losses are" if not (has_trainer or has_losses) else "only a part of it is"
    return [fail(topic, f"verl did not load the plugin: {missing} registered ({reason})", _REMEDY)]


def reason_absent() -> str:
    """Why verl might not have loaded us: it logs errors of plugins at DEBUG only. For a process without the plugin."""
    policy = os.environ.get("VERL_USE_EXTERNAL_PLUGINS", "auto")
    try:
        importlib.import_module(PLUGIN)
    except Exception as error:  # noqa: BLE001  whatever it is, verl has hidden it and a person must see it
        return f"importing {PLUGIN}: {type(error).__name__}: {one_line(error)}"
    if policy.strip().lower() not in ("", "auto"):
        return f"VERL_USE_EXTERNAL_PLUGINS={policy}"
    return "no entry point of verl-dots is installed: pip install it, a source folder on PYTHONPATH has none"
