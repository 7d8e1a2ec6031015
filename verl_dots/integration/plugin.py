"""Importing this module registers everything that verl-dots adds to verl (entry point group ``verl.plugins``)."""

import os

if os.environ.get("VERL_PLATFORM") == "cpu":
    from verl_dots import cpu

    cpu.activate()
