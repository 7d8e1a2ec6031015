#!/usr/bin/env python
"""Build the arithmetic task: questions, a warm-started model and the questions' embeddings. Nothing is downloaded.

    python data_prep/build_arithmetic.py --output outputs/arithmetic_x

writes train.parquet and val.parquet (verl's schema), model/ (a small Qwen2 with tokenizer and chat template),
embeddings.safetensors (the model's own mean-pooled hidden states, all questions) and manifest.json; prints how often the
model is right at the start. A second run with the same arguments returns at once.

The warm-started models of the default size and seed are in data_prep/arithmetic_models: trained anew on another kind of
CPU they come out as other models, which learn at another rate. All others, or these with --train, are trained here: about
a minute on 2 free cores, then cached by their settings.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from verl_dots.cpu.arithmetic.dataset import DATA_SOURCE, draw_split, rows
from verl_dots.cpu.arithmetic.settings import STAGES, ModelSize, WarmStart
from verl_dots.cpu.arithmetic.task import POOLS
from verl_dots.files import Parser, atomic_path, run_cli

MEASURED, SAMPLES = 512, 16
SHIPPED = Path(__file__).resolve().parent / "arithmetic_models"
FILES = ("train.parquet", "val.parquet", "embeddings.safetensors", "embeddings.json", "model/model.safetensors")


def parse(argv) -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="where the files go")
    parser.add_argument("--pool", choices=POOLS, default="x", help="mix of questions (default: %(default)s)")
    parser.add_argument("--task", choices=STAGES, default="tens_slip", help="noise of the warm start (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the questions and the model (default: %(default)s)")
    parser.add_argument("--train-size", type=int, default=2048, metavar="N", help="training questions (%(default)s)")
    parser.add_argument("--val-size", type=int, default=512, metavar="N", help="validation questions (%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="hidden size of the model (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="layers of the model (default: %(default)s)")
    parser.add_argument("--heads", type=int, default=4, help="attention heads of the model (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="threads of the warm start (default: %(default)s)")
    parser.add_argument("--train", action="store_true", help="train the warm start also where its result is shipped")
    parser.add_argument("--cache", type=Path, default=default_cache(), metavar="DIR", help="warm-started models")
    args = parser.parse_args(argv)
    for name, most in (("train_size", 1_000_000), ("val_size", 1_000_000), ("threads", 1024)):
        if not 1 <= getattr(args, name) <= most:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(args, name)}: must be 1 to {most}")
    if args.output.is_file():
        raise ValueError(f"--output {str(args.output)!r} is a file: give a folder")
    return args


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "verl-dots" / "arithmetic"


def main(argv=None) -> None:
    args = parse(argv)
    console = Console()
    warm = WarmStart(args.task, ModelSize(args.width, args.layers, args.heads), args.seed)
    train, val = draw_split(args.pool, args.train_size, args.val_size, args.seed)
    settings = {
        "pool": args.pool,
        "seed": args.seed,
        "train_size": args.train_size,
        "val_size": args.val_size,
        "warm_start": warm.settings(),
        "warm_start_key": warm.key(),
        "trained_here": args.train or not shipped(warm).is_file(),
    }
    manifest = finished(args.output, settings)
    if manifest is None:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "manifest.json").unlink(missing_ok=True)
        model_dir = cached_model(warm, args, console)
        manifest = build(args.output, settings, model_dir, rows(train, "train"), rows(val, "val"), args.threads, console)
    show(manifest, args.output, console)


def finished(output: Path, settings: dict) -> dict | None:
    """The manifest of an earlier run with the same settings, if all of its files are there."""
    path = output / "manifest.json"
    if not path.is_file() or not all((output / name).is_file() for name in FILES):
        return None
    manifest = json.loads(path.read_text())
    return manifest if manifest.get("settings") == json.loads(json.dumps(settings)) else None


def progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console)


def shipped(warm: WarmStart) -> Path:
    """Where the weights of this warm-started model are, if they are shipped; float32."""
    return SHIPPED / f"{warm.task}-{warm.key()}.safetensors"


def cached_model(warm: WarmStart, args: argparse.Namespace, console: Console) -> Path:
    """Folder of the warm-started model, made now unless it is in the cache."""
    train = args.train or not shipped(warm).is_file()
    cache, folder = args.cache, args.cache / (f"{warm.key()}-trained" if train else warm.key())
    if (folder / "model.safetensors").is_file():
        return folder
    import torch
    from safetensors.torch import load_file
    from transformers.utils import logging

    from verl_dots.cpu.arithmetic.model import build_model, build_tokenizer
    from verl_dots.cpu.arithmetic.warm_start import warm_start

    torch.set_num_threads(args.threads)
    logging.disable_progress_bar()
    if train:
        with progress(console) as bar:
            task = bar.add_task("warm start", total=warm.steps)
            model = warm_start(warm, lambda step, loss: bar.update(task, completed=step))
    else:
        model = build_model(warm.size, warm.seed)
        model.load_state_dict(load_file(shipped(warm)))
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as partial:  # whole or not at all, also with two runs at once
        model.save_pretrained(Path(partial) / "model")
        build_tokenizer().save_pretrained(Path(partial) / "model")
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(Path(partial) / "model", folder)
        except OSError:
            if not (folder / "model.safetensors").is_file():  # not another run that finished first
                raise
    return folder


def build(output: Path, settings: dict, model_dir: Path, train: list, val: list, threads: int, console: Console) -> dict:
    """Write all files, the manifest last, and return it."""
    import pandas as pd
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    from verl_dots.cpu.arithmetic.measure import embed_questions, success_histogram, success_rates
    from verl_dots.embeddings import write_embeddings

    logging.disable_progress_bar()
    # contents only: the weights in the cache may be readable by their owner alone
    shutil.copytree(model_dir, output / "model", dirs_exist_ok=True, copy_function=shutil.copyfile)
    for name, part in (("train", train), ("val", val)):
        with atomic_path(output / f"{name}.parquet") as path:
            pd.DataFrame(part).to_parquet(path)
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_dir, attn_implementation="sdpa").eval()
    both = [row["extra_info"] for row in train + val]
    write_embeddings(
        output / "embeddings.safetensors",
        [info["question_id"] for info in both],
        embed_questions(model, [info["question"] for info in both]),
        model=f"{DATA_SOURCE} warm start {settings['warm_start_key']}, mean-pooled last hidden states",
    )
    measured = {}
    with progress(console) as bar:
        for name, part in (("train", train[:MEASURED]), ("val", val[:MEASURED])):
            task = bar.add_task(f"success on {name}", total=len(part) * SAMPLES)
            rates = success_rates(
                model,
                [row["extra_info"]["question"] for row in part],
                [row["reward_model"]["ground_truth"] for row in part],
                SAMPLES,
                settings["seed"],
                lambda done, task=task: bar.update(task, completed=done),
            )
            measured[name] = {
                "questions": len(part),
                "samples": SAMPLES,
                "accuracy": float(rates.mean()),
                "histogram": success_histogram(rates),
            }
    parameters = sum(parameter.numel() for parameter in model.parameters())
    manifest = {"settings": settings, "parameters": parameters, "initial_success": measured}
    with atomic_path(output / "manifest.json") as path:
        path.write_text(json.dumps(manifest, indent=2))
    return manifest


def show(manifest: dict, output: Path, console: Console) -> None:
    title = f"{output}: pool {manifest['settings']['pool']}, {manifest['parameters']:,} parameters"
    table = Table(title=f"{title}, success at temperature 1", title_justify="left")
    measured = manifest["initial_success"]
    for heading in ("", *measured["train"]["histogram"], "mean"):
        table.add_column(heading, justify="right")
    for name, values in measured.items():
        table.add_row(name, *(f"{share:.2f}" for share in values["histogram"].values()), f"{values['accuracy']:.3f}")
    console.print(table)


if __name__ == "__main__":
    run_cli(main)
