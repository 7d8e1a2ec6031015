"""Checks of command lines that several scripts make."""

from __future__ import annotations

import argparse


def flag(name: str) -> str:
    """The option as the user types it: ``batch_size`` is ``--batch-size``."""
    return f"--{name.replace('_', '-')}"


def check_at_least(args: argparse.Namespace, lowest: int, *names: str) -> None:
    """Refuse options below ``lowest``; those not given (None) pass.

    Raises:
        ValueError: naming the option, its value and what is allowed.
    """
    for name in names:
        value = getattr(args, name)
        if value is not None and value < lowest:
            raise ValueError(f"{flag(name)} {value}: must be at least {lowest}")
