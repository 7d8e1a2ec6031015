"""Preflight: would this command line train? `python -m verl_dots.doctor [hydra overrides]`, the overrides of main_ppo.

    python -m verl_dots.doctor 'hydra.searchpath=[pkg://verl_dots.configs]' +dots=default data.train_files=...

Composes verl's real configuration, looks at versions, data, embeddings and sizes, and asks a fresh worker of Ray (started as
verl would start it, or the cluster that RAY_ADDRESS names) whether it has the plugin. Exit code 0: nothing is wrong;
1: something is, and the line under it says what to do; 2: the arguments do not compose.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Sequence

from rich.console import Console

from verl_dots.diagnosis.finding import failed, show
from verl_dots.files import Parser, run_cli


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m verl_dots.doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="Hydra overrides, as for verl.trainer.main_ppo")
    parser.add_argument("-cp", "--config-path", metavar="DIR", help="as for verl's command line")
    parser.add_argument("-cn", "--config-name", default="ppo_trainer", metavar="NAME", help="default: ppo_trainer")
    parser.add_argument("--config-only", action="store_true", help="the configuration and its data; no Ray, no versions")
    parser.add_argument("--ray-timeout", type=float, default=180.0, metavar="SECONDS", help="default: 180")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")  # it warns of a missing GPU, of which our own line says what to do
    warnings.filterwarnings("ignore", module="verl")
    from verl_dots.integration.doctor import examine  # imports verl, which takes seconds: after the arguments are read

    console = Console(highlight=False)
    sections = examine(
        args.overrides,
        config_path=args.config_path,
        config_name=args.config_name,
        config_only=args.config_only,
        ray_timeout_s=args.ray_timeout,
    )
    findings = []
    for title, found in sections:
        if not found:
            continue
        console.print(f"[bold]{title}[/bold]")
        show(found, console)
        findings += found
    wrong, doubtful = (sum(finding.level == level for finding in findings) for level in ("fail", "warn"))
    console.print(f"{wrong} wrong, {doubtful} to look at, {len(findings) - wrong - doubtful} good")
    return 1 if failed(findings) else 0


if __name__ == "__main__":
    run_cli(main)
