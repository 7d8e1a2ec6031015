"""Build a question file: a published data set, or your own file -> a parquet file that verl trains on.

    python data_prep/build_questions.py math500 --output data/math500.parquet
    python data_prep/build_questions.py math --output data/math.parquet --evaluation data/math500.parquet --drop-contaminated
    python data_prep/build_questions.py deepscaler --output data/deepscaler.parquet --max-questions 10240 --seed 1
    python data_prep/build_questions.py jsonl --local-file my.jsonl --question-column q --answer-column a --output my.parquet

Beside X.parquet it writes X.json: source and commit, rows in and out, what was left out and why, what looks doubtful.
Without access to the hub, give the data set's own files with --local-file.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common.options import check_at_least, flag
from common.quiet import quieten
from common.tokens import load_tokenizer, prompt_ids
from sources import cleaning, output, reading
from sources.converters import own_file
from sources.progress import bar
from sources.question import Question, Unusable
from sources.registry import DATA_SETS, OWN_FILES, DataSet

from verl_dots.files import Parser, atomic_path, read_parquet, run_cli
from verl_dots.manifests import check_output, write_manifest
from verl_dots.rewards import KINDS

OWN_COLUMNS = ("question_column", "answer_column", "level_column", "subject_column", "success_rate_column")
"""Options that name the columns of a user's own file."""


def main(argv: Sequence[str] | None = None) -> None:
    """Read, convert, clean, write."""
    args = parser().parse_args(argv)
    check_output(args.output)
    data_set = chosen_data_set(args)
    parts, source = read(data_set, args)
    questions, unusable = convert(data_set, parts)
    rows_in = sum(len(rows) for _, rows in parts)
    questions, reports = clean(data_set, questions, args)
    if not questions:
        raise ValueError(f"no question of {args.dataset} is left: {rows_in} rows read, left out {unusable or reports}")
    system_prompt = output.SYSTEM_PROMPTS.get(args.system_prompt, args.system_prompt)
    name = args.data_source or data_set.name
    with atomic_path(args.output) as temporary:
        output.write(temporary, questions, data_source=name, ability=data_set.ability, system_prompt=system_prompt)
    write_manifest(
        args.output,
        stage="build_questions",
        data_set=args.dataset,
        data_source=name,
        source=source,
        rows_in=rows_in,
        rows_out=len(questions),
        unusable=unusable,
        **reports,
        system_prompt=system_prompt,
        max_questions=args.max_questions,
        seed=args.seed,
    )
    report(args, rows_in, len(questions), unusable, reports)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    known = "\n".join(f"  {each.name:14s} {each.hub}: {each.paper}" for each in DATA_SETS.values())
    own = "\n".join(f"  {name:14s} your own file: --local-file, --question-column, --answer-column" for name in OWN_FILES)
    result = Parser(
        description=__doc__,
        epilog=f"data sets, and what the paper (arXiv 2506.05316) does with them:\n{known}\n{own}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    result.add_argument("dataset", metavar="DATASET", help="one of the data sets listed below")
    result.add_argument("--output", required=True, type=Path, help="parquet file to write")
    where = result.add_argument_group("source")
    where.add_argument("--local-file", nargs="+", help="read these files (.parquet, .jsonl, .json) instead of the hub")
    where.add_argument("--revision", help="commit, tag or branch of the hub repository (default: the pinned commit)")
    where.add_argument("--split", nargs="+", help="splits to read (default: as the paper does)")
    own_group = result.add_argument_group("your own file (columns inside others are written a.b)")
    own_group.add_argument("--question-column", help="column of the question's text")
    own_group.add_argument("--answer-column", help="column of the ground truth")
    own_group.add_argument("--level-column", help="column of a difficulty, larger is harder")
    own_group.add_argument("--subject-column", help="column of a topic")
    own_group.add_argument("--success-rate-column", help="column of a published success rate, 0 to 1")
    own_group.add_argument("--answer-kind", choices=KINDS, help="how answers are compared (default: math)")
    keep = result.add_argument_group("what is kept")
    keep.add_argument("--levels", nargs=2, type=float, metavar=("LOWEST", "HIGHEST"), help="difficulty levels to keep")
    keep.add_argument("--max-questions", type=int, help="draw this many at random, after everything else is left out")
    keep.add_argument("--seed", type=int, default=1, help="of that draw (default: %(default)s)")
    keep.add_argument(
        "--filter-overlong", nargs=2, metavar=("TOKENIZER", "LENGTH"), help="leave out prompts of more than LENGTH tokens"
    )
    keep.add_argument(
        "--drop-duplicates", choices=("none", "exact", "near"), default="none", help="leave out repeats (always reported)"
    )
    keep.add_argument("--near-threshold", type=float, default=0.8, help="similarity of near duplicates (default: 0.8)")
    keep.add_argument("--unscorable", choices=("keep", "drop"), help="questions whose answer cannot be scored")
    keep.add_argument("--evaluation", nargs="+", default=[], help="evaluation files built by this script, to compare with")
    keep.add_argument("--ngram", type=int, default=13, help="words in a row that count as overlap (default: 13)")
    keep.add_argument("--drop-contaminated", action="store_true", help="leave out questions that overlap with --evaluation")
    rows = result.add_argument_group("rows")
    rows.add_argument(
        "--system-prompt",
        default="paper",
        help=f"{', '.join(output.SYSTEM_PROMPTS)}, or a text of your own (default: paper: {output.SYSTEM_PROMPTS['paper']})",
    )
    rows.add_argument("--data-source", help="data_source of the rows (default: DATASET)")
    rows.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that check answers")
    return result


def chosen_data_set(args: argparse.Namespace) -> DataSet:
    """The registry's entry, or one made from the columns of a user's file.

    Raises:
        ValueError: the name is unknown, an option does not go with it, or its value is out of range.
    """
    check_ranges(args)
    if args.revision and args.local_file:
        raise ValueError(f"--revision {args.revision} and --local-file exclude each other: a file has no revisions")
    if args.dataset in DATA_SETS:
        named = [name for name in OWN_COLUMNS if getattr(args, name)]
        if named:
            raise ValueError(f"{flag(named[0])} goes with jsonl and parquet only: {args.dataset} has its own columns")
        return DATA_SETS[args.dataset]
    if args.dataset not in OWN_FILES:
        raise ValueError(f"data set {args.dataset!r} is unknown: choose one of {', '.join([*DATA_SETS, *OWN_FILES])}")
    for needed in ("local_file", "question_column", "answer_column"):
        if not getattr(args, needed):
            raise ValueError(f"{args.dataset} needs {flag(needed)}")
    return DataSet(
        name=Path(args.local_file[0]).stem,
        hub="",
        splits=("train",),
        convert=own_file(
            question=args.question_column,
            answer=args.answer_column,
            level=args.level_column,
            subject=args.subject_column,
            success_rate=args.success_rate_column,
        ),
        columns=tuple((getattr(args, name).split(".")[0],) for name in OWN_COLUMNS if getattr(args, name)),
    )


def check_ranges(args: argparse.Namespace) -> None:
    """Refuse numbers out of range before anything is read."""
    check_at_least(args, 1, "max_questions", "ngram", "workers")
    if not 0 < args.near_threshold <= 1:
        raise ValueError(f"--near-threshold {args.near_threshold:g}: must lie above 0 and be at most 1")
    if args.levels and args.levels[0] > args.levels[1]:
        raise ValueError(f"--levels {args.levels[0]:g} {args.levels[1]:g}: the first must not be larger")
    if args.filter_overlong and not (args.filter_overlong[1].isdecimal() and int(args.filter_overlong[1]) > 0):
        raise ValueError(f"--filter-overlong length {args.filter_overlong[1]!r}: must be a number of tokens above 0")
    if args.drop_contaminated and not args.evaluation:
        raise ValueError("--drop-contaminated needs --evaluation: the files to compare with")


def read(data_set: DataSet, args: argparse.Namespace) -> tuple[list[tuple[str, list[Any]]], dict[str, Any]]:
    """The rows by split, and the manifest's account of where they come from."""
    if args.local_file:
        return reading.read_files(data_set, args.local_file, "+".join(args.split or data_set.splits[:1]))
    quieten()
    return reading.read_hub(data_set, args.split or data_set.splits, args.revision)


def convert(data_set: DataSet, parts: list[tuple[str, list[Any]]]) -> tuple[list[Question], dict[str, int]]:
    """The questions in the order of the source, and how many rows were unusable for which reason."""
    questions: list[Question] = []
    unusable: Counter[str] = Counter()
    for split, rows in parts:
        for row in bar(rows, f"{data_set.name} {split}"):
            try:
                questions.append(data_set.convert(row, split))
            except Unusable as reason:
                unusable[str(reason)] += 1
    return questions, dict(sorted(unusable.items()))


def clean(data_set: DataSet, questions: list[Question], args: argparse.Namespace) -> tuple[list[Question], dict[str, Any]]:
    """Leave out what the options say; the order of the steps is the order of the manifest."""
    if args.answer_kind:
        questions = [replace(question, kind=args.answer_kind) for question in questions]
    reports: dict[str, Any] = {}
    if levels := args.levels or data_set.levels:
        questions, reports["levels"] = cleaning.check_levels(questions, *levels)
    drop_unscorable = (args.unscorable or ("drop" if data_set.drop_unscorable else "keep")) == "drop"
    questions, reports["unscorable_answers"] = cleaning.check_answers(
        questions, drop=drop_unscorable, workers=args.workers, progress=bar
    )
    questions, reports["duplicates"] = cleaning.check_duplicates(
        questions, drop=args.drop_duplicates, threshold=args.near_threshold, progress=bar
    )
    if args.evaluation:
        texts = {Path(path).stem: evaluation_texts(path) for path in args.evaluation}
        questions, reports["contamination"] = cleaning.check_contamination(
            questions, texts, size=args.ngram, drop=args.drop_contaminated
        )
    if args.filter_overlong:
        tokenizer, limit = args.filter_overlong
        system_prompt = output.SYSTEM_PROMPTS.get(args.system_prompt, args.system_prompt)
        loaded = load_tokenizer(tokenizer)
        prompts = (output.messages(question, system_prompt) for question in bar(questions, "lengths"))
        lengths = [len(prompt_ids(loaded, prompt)) for prompt in prompts]
        questions, reports["overlong"] = cleaning.check_lengths(questions, lengths, int(limit))
        reports["overlong"]["tokenizer"] = tokenizer
    if args.max_questions is not None:
        questions = cleaning.sample(questions, args.max_questions, args.seed)
    return questions, reports


def evaluation_texts(path: str) -> list[str]:
    """The questions of a file that this script has built."""
    frame = read_parquet(path, ["extra_info"])
    texts = [info.get("question") for info in frame["extra_info"]]
    if not all(texts):
        raise ValueError(f"{path!r} has rows without extra_info.question: build it with this script")
    return texts


def report(args: argparse.Namespace, rows_in: int, rows_out: int, unusable: dict, reports: dict[str, Any]) -> None:
    """What a person wants to know before training on the file."""
    print(f"{args.output}: {rows_out} of {rows_in} rows of {args.dataset}")
    for reason, count in unusable.items():
        print(f"  left out, {reason}: {count}")
    duplicates = reports["duplicates"]
    print(f"  duplicates: {duplicates['exact']} exact, {duplicates['near']} near, {duplicates['dropped']} left out")
    unscorable = reports["unscorable_answers"]
    print(f"  answers that cannot be scored: {unscorable['count']}, {unscorable['dropped']} left out")
    for name in ("levels", "overlong"):
        if name in reports:
            print(f"  left out, {name}: {reports[name]['dropped']}")
    if "contamination" in reports:
        overlaps = reports["contamination"]
        print(f"  overlap with evaluation sets: {overlaps['overlaps'] or 'none'}, {overlaps['dropped']} left out")
    elif args.dataset == "math" and not args.local_file:
        print("  warning: MATH's test split contains MATH-500: build math500 and give it with --evaluation")


if __name__ == "__main__":
    run_cli(main)
