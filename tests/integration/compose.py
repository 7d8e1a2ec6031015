"""Compose verl's real PPO trainer configuration in this process, as its command line would."""

from __future__ import annotations

import importlib.resources
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig

OVERLAY = ["hydra.searchpath=[pkg://verl_dots.configs]", "+dots=default"]


def verl_config_dir() -> Path:
    import verl.trainer

    return Path(str(importlib.resources.files(verl.trainer))) / "config"


def composed(*overrides: str, config_dir: Path | None = None, config_name: str = "ppo_trainer") -> DictConfig:
    """The configuration that `python -m verl.trainer.main_ppo OVERRIDES` hands to verl's main function."""
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(config_dir or verl_config_dir()), version_base=None):
        return compose(config_name, overrides=list(overrides))
