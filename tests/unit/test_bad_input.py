"""One table of users' mistakes: each ends in one line that names the thing, the value and the remedy, in exit code 2, and
leaves nothing written. Three of them go through verl's own command line in tests/integration.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pandas as pd
import pytest

from tests.unit.bad_input import Case, config, contents, good_files, script, tool

LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
CORRECTION = "algorithm.rollout_correction"
SAMPLER = "trainer.v1.sampler.custom_sampler"
OVERLONG = "reward.reward_kwargs.overlong_buffer_cfg"
STRATEGY = "actor_rollout_ref.actor.strategy"
EMBEDDINGS = "dots.predictor.embeddings"


def wrong_value(override: str, allowed: str) -> Case:
    """A key of the dots block with a value that is not allowed."""
    key, _, value = override.partition("=")
    return Case(override, config(override), (key, "is not allowed: use", allowed))


CONFIG = [
    wrong_value("dots.seed=-1", "a whole number >= 0"),
    wrong_value("dots.seed=1.5", "a whole number"),
    wrong_value("dots.seed=one", "a whole number"),
    wrong_value("dots.stall_timeout_s=0", "null or seconds above 0"),
    wrong_value("dots.reward_range=[1,0]", "[lowest, highest] reward"),
    wrong_value("dots.reward_range=[0]", "a list of 2 numbers"),
    wrong_value("dots.reward_range=[0,.inf]", "[lowest, highest] reward"),
    wrong_value("dots.reward_range=1", "a list of 2 numbers"),
    wrong_value("dots.selection.enable=maybe", "true or false"),
    wrong_value("dots.selection.target=2", "a failure rate in [0, 1]"),
    wrong_value("dots.selection.target=half", "a number"),
    wrong_value("dots.selection.target=null", "a number"),
    wrong_value("dots.selection.temperature=0", "a number above 0"),
    wrong_value("dots.selection.temperature=.inf", "a number above 0"),
    wrong_value("dots.selection.temperature=.nan", "a number"),
    wrong_value("dots.selection.refresh_every=0", "a whole number >= 1"),
    wrong_value("dots.selection.refresh_every=2.5", "a whole number"),
    wrong_value("dots.selection.explore_fraction=1.5", "a share of the fresh batch in [0, 1]"),
    wrong_value("dots.reference.mode=windows", "window or overlap or fresh"),
    wrong_value("dots.reference.window=some", "all or explored"),
    wrong_value("dots.reference.size=1", "null or a whole number >= 2"),
    wrong_value("dots.reference.min_size=1", "a whole number >= 2"),
    wrong_value("dots.reference.timeout_s=0", "seconds above 0"),
    wrong_value("dots.predictor.checkpoint=p.safetensors", "it together with predictor.embeddings"),
    wrong_value("dots.predictor.posterior=2", "true or false"),
    wrong_value("dots.replay.fresh_fraction=0", "a share in (0, 1]"),
    wrong_value("dots.replay.fresh_fraction=1.5", "a share in (0, 1]"),
    wrong_value("dots.replay.capacity=0", "null or a whole number >= 1"),
    wrong_value("dots.replay.max_age=0", "null or a whole number >= 1"),
    wrong_value("dots.replay.max_weight=0.5", "null or a number >= 1"),
    wrong_value("dots.replay.behaviour=engine", "trainer or rollout"),
    wrong_value("dots.replay.draw=random", "uniform or informative"),
    wrong_value("dots.replay.fill=all", "informative or none"),
    wrong_value("dots.replay.warmup_steps=-1", "a whole number >= 0"),
    wrong_value("dots.replay.newest_per_question=1", "true or false"),
    wrong_value("dots.replay=5", "a block of keys"),
    Case(
        "min_size above size", config("dots.reference.size=16"), ("dots.reference.min_size=32", "at most reference.size=16")
    ),
    Case("dots is a list", config(dots=[1]), ("dots", "use a block of keys")),
    Case(
        "misspelt key",
        config("dots.selection.temprature=1"),
        ("dots.selection.temprature", "did you mean dots.selection.temp"),
    ),
    Case("unknown key", config("dots.delta=.5"), ("dots.delta does not exist", "known keys: predictor")),
    Case("interpolation to nothing", config(dots__seed="${no.such.key}"), ("no.such.key", "not found")),
    Case("old trainer", config("trainer.use_v1=false"), ("trainer.use_v1=False", "set it to True")),
    Case(
        "verl's own mode", config("trainer.v1.trainer_mode=sync"), ("trainer_mode=sync", "set trainer.v1.trainer_mode=dots")
    ),
    Case("keys in the wrong block", config("trainer.v1.dots.seed=1"), ("trainer.v1.dots does not exist", "the block dots")),
    Case("prefetching", config("data.dataloader_num_workers=8"), ("num_workers=8", "set data.dataloader_num_workers=0")),
    Case("no batch size", config("data.train_batch_size=null"), ("data.train_batch_size=None", "a whole number >= 1")),
    Case("empty batch", config("data.train_batch_size=0"), ("data.train_batch_size=0", "a whole number >= 1")),
    Case("no rollouts", config("actor_rollout_ref.rollout.n=1"), ("actor_rollout_ref.rollout.n=1", "2 or more")),
    Case("loss without correction", config(f"{LOSS}=vanilla"), (f"{LOSS}=vanilla", "set", "dots_decoupled")),
    Case("verl's weights over ours", config(f"{CORRECTION}.rollout_is=token"), ("rollout_is=token", "set them to null")),
    Case("bypass over ours", config(f"{CORRECTION}.bypass_mode=true"), ("bypass_mode=True", "set them to null")),
    Case("masks rewritten", config(f"{CORRECTION}.rollout_rs=token_k1"), ("rollout_rs=token_k1", "set it to null")),
    Case(
        "no engine log-probs",
        config("dots.replay.behaviour=rollout"),
        ("dots.replay.behaviour=rollout", "calculate_log_probs=True"),
    ),
    *(
        Case(f"advantages of {name}", config(f"algorithm.adv_estimator={name}"), (f"adv_estimator={name}", "use grpo"))
        for name in ("gae", "reinforce_plus_plus")
    ),
    *(
        Case(f"{name} workers", config(f"{STRATEGY}={name}"), (f"{STRATEGY}={name}", "set it to fsdp or fsdp2"))
        for name in ("megatron", "veomni", "torchtitan")
    ),
    Case(
        "a sampler of one's own",
        config(f"{SAMPLER}.path=mine.py", f"{SAMPLER}.name=Mine"),
        (f"{SAMPLER}.path=mine.py", f"set {SAMPLER}.path=null"),
    ),
    Case(
        "several updates a step",
        config("trainer.v1.sync.parameter_sync_step=2"),
        ("parameter_sync_step=2", "set trainer.v1.sync.parameter_sync_step=1"),
    ),
    Case(
        "penalty for length below the range",
        config(f"{OVERLONG}.enable=true", f"{OVERLONG}.penalty_factor=.5"),
        ("overlong_buffer_cfg.enable=True", "set dots.reward_range=[-0.5,1]"),
    ),
    Case(
        "store too small",
        config("transfer_queue.backend.SimpleStorage.total_storage_size=100"),
        ("total_storage_size=100", "raise it, or lower dots.replay.capacity"),
    ),
    Case(
        "verl's filter",
        config("algorithm.filter_groups.enable=true"),
        ("filter_groups.enable=True", "use dots.replay.fill=inform"),
    ),
    Case(
        "labels too late",
        config("dots.reference.mode=fresh", "reward.reward_model.enable=true"),
        ("dots.reference.mode=fresh", "use dots.reference.mode=window"),
    ),
]


def embeddings(name: str, prepare, *says: str) -> Case:
    """An embeddings file that is damaged first."""
    remedy = ("embeddings.safetensors", "run python data_prep/embed_questions.py", *says)
    return Case(f"embeddings {name}", config(f"{EMBEDDINGS}=embeddings.safetensors"), remedy, prepare)


def cut(path: str, size: int):
    return lambda: Path(path).write_bytes(Path(path).read_bytes()[:size])


def edit_manifest(**fields):
    def edit() -> None:
        path = Path("embeddings.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return edit


DATA = [
    Case(
        "no embeddings",
        config(f"{EMBEDDINGS}=none.safetensors"),
        ("no embeddings file 'none.safetensors'", "embed_questions.py"),
    ),
    Case("embeddings are a folder", config(f"{EMBEDDINGS}=taken"), ("no embeddings file 'taken'", "embed_questions.py")),
    Case(
        "embeddings are parquet",
        config(f"{EMBEDDINGS}=labels.parquet"),
        ("'labels.parquet' is not a whole safetensors", "embed_q"),
    ),
    embeddings("empty", cut("embeddings.safetensors", 0), "not a whole safetensors file"),
    embeddings("cut off", cut("embeddings.safetensors", 200), "not a whole safetensors file"),
    embeddings("without manifest", lambda: os.remove("embeddings.json"), "has no manifest"),
    embeddings("with the manifest of another", edit_manifest(count=9), "9 questions"),
    Case(
        "embeddings with half a manifest",
        config(f"{EMBEDDINGS}=embeddings.safetensors"),
        ("manifest 'embeddings.json' is no JSON", "make embeddings.safetensors again"),
        cut("embeddings.json", 30),
    ),
    Case(
        "no predictor checkpoint",
        config(f"{EMBEDDINGS}=embeddings.safetensors", "dots.predictor.checkpoint=none.safetensors"),
        ("dots.predictor.checkpoint=none.safetensors", "no such file"),
    ),
]


def build(*arguments: str):
    return tool("build_questions", *arguments)


OWN = ("jsonl", "--local-file", "own.jsonl", "--question-column", "q", "--answer-column", "a")
OUT = ("--output", "out.parquet")
MESSAGES, TEXTS = ("--question-column", "prompt"), ("--question-column", "extra_info.question")

BUILD_QUESTIONS = [
    Case("data set unknown", build("maths", *OUT), ("'maths' is unknown", "choose one of", "math500")),
    Case("no output", build("math500"), ("--output", "--help")),
    Case("option misspelt", build(*OWN, *OUT, "--seeed", "1"), ("--seeed", "--help")),
    Case("no own file", build("jsonl", *OUT), ("jsonl needs --local-file",)),
    Case("no question column", build(*OWN[:3], *OUT), ("jsonl needs --question-column",)),
    Case(
        "columns for a known set",
        build("math500", *OUT, "--answer-column", "a"),
        ("--answer-column goes with jsonl", "math500"),
    ),
    Case("own file missing", build("jsonl", "--local-file", "no.jsonl", *OWN[3:], *OUT), ("no such file", "no.jsonl")),
    Case("own file empty", build(*OWN, *OUT), ("'own.jsonl' is empty",), cut("own.jsonl", 0)),
    Case("own file cut off", build(*OWN, *OUT), ("'own.jsonl', line 2 is not JSON",), cut("own.jsonl", 30)),
    Case("own file binary", build(*OWN, *OUT), ("'own.jsonl'", "UTF-8"), lambda: Path("own.jsonl").write_bytes(b"\xff\xfe")),
    Case(
        "column missing",
        build(*OWN[:3], "--question-column", "x", "--answer-column", "a", *OUT),
        ("no column 'x'", "it has a, q"),
    ),
    Case(
        "suffix unknown",
        build("jsonl", "--local-file", "taken", *OWN[3:], *OUT),
        ("'taken' ends in no suffix", "give a .parquet"),
    ),
    Case("output is a folder", build(*OWN, "--output", "taken"), ("output 'taken' is a directory", "give a file name")),
    Case(
        "output is a manifest", build(*OWN, "--output", "x.json"), ("output 'x.json' ends in .json", "choose another suffix")
    ),
    Case(
        "manifest's name taken",
        build(*OWN, "--output", "embeddings.parquet"),
        ("embeddings.json", "give the output", "another name"),
    ),
    Case("none kept", build(*OWN, *OUT, "--max-questions", "0"), ("--max-questions 0", "at least 1")),
    Case("threshold", build(*OWN, *OUT, "--near-threshold", "0"), ("--near-threshold 0", "above 0")),
    Case("levels reversed", build(*OWN, *OUT, "--levels", "5", "3"), ("--levels 5 3", "must not be larger")),
    Case(
        "length no number", build(*OWN, *OUT, "--filter-overlong", "t", "long"), ("--filter-overlong", "'long'", "above 0")
    ),
    Case("nothing to compare with", build(*OWN, *OUT, "--drop-contaminated"), ("--drop-contaminated needs --evaluation",)),
    Case("evaluation missing", build(*OWN, *OUT, "--evaluation", "no.parquet"), ("no such file", "no.parquet")),
    Case(
        "evaluation cut off",
        build(*OWN, *OUT, "--evaluation", "questions.parquet"),
        ("'questions.parquet'", "make it again"),
        cut("questions.parquet", 99),
    ),
    Case(
        "own parquet cut off",
        build("parquet", "--local-file", "labels.parquet", *OWN[3:], *OUT),
        ("'labels.parquet'", "make it again"),
        cut("labels.parquet", 500),
    ),
    Case("no permission", build(*OWN, "--output", "/sys/q.parquet"), ("no permission: '/sys/q.parquet'", "another place")),
    Case("revision of a file", build(*OWN, *OUT, "--revision", "main"), ("--revision main and --local-file exclude",)),
    Case(
        "objects for text",
        build("parquet", "--local-file", "questions.parquet", *MESSAGES, "--answer-column", "reward_model", *OUT),
        ("column 'prompt' holds lists of objects with content, role", "written as column.field"),
    ),
    Case(
        "object for an answer",
        build("parquet", "--local-file", "questions.parquet", *TEXTS, "--answer-column", "reward_model", *OUT),
        ("column 'reward_model' holds objects with ground_truth, style", "written as column.field"),
    ),
    Case("level for a known set", build("math500", *OUT, "--level-column", "l"), ("--level-column goes with jsonl",)),
    Case(
        "not conversations",
        build("orz", "--local-file", "pairs.json", *OUT),
        ("no question of orz is left", "two turns"),
        lambda: Path("pairs.json").write_text('[[1, 2], ["a", "b"], "c", {"0": 1}]'),
    ),
    Case("workers", build(*OWN, *OUT, "--workers", "0"), ("--workers 0", "at least 1")),
]


def rates(*arguments: str):
    return tool("collect_pass_rates", *arguments)


ROLL = ("--questions", "questions.parquet", "--model", "no/model", "--engine", "transformers", *OUT)
IMPORT = ("--import", "labels.parquet", *OUT)
IMPORTED = (*IMPORT, "--policy", "m", "--failures-column", "f", "--attempts", "8")

PASS_RATES = [
    Case("no questions", rates("--model", "m", *OUT), ("--questions is missing",)),
    Case("no model", rates("--questions", "questions.parquet", *OUT), ("--model is missing",)),
    Case("rollouts", rates(*ROLL, "--rollouts", "0"), ("--rollouts 0", "at least 1")),
    Case("rollouts no number", rates(*ROLL, "--rollouts", "eight"), ("--rollouts", "'eight'")),
    Case("top-p", rates(*ROLL, "--top-p", "0"), ("--top-p 0", "above 0")),
    Case("temperature", rates(*ROLL, "--temperature", "-1"), ("--temperature -1", "must not be negative")),
    Case("reward range", rates(*ROLL, "--reward-range", "1", "0"), ("--reward-range", "the first must be smaller")),
    Case("reward without colon", rates(*ROLL, "--reward", "score"), ("--reward 'score'", "no colon")),
    Case("reward module missing", rates(*ROLL, "--reward", "no_such:f"), ("--reward 'no_such:f'", "No module named")),
    Case("shard", rates(*ROLL, "--shard", "3/2"), ("3/2",)),
    Case("engine", rates(*ROLL[:5], "magic", *OUT), ("--engine", "magic", "transformers")),
    Case("question file missing", rates("--questions", "no.parquet", *ROLL[2:]), ("no such file", "no.parquet")),
    Case(
        "no question file",
        rates("--questions", "labels.parquet", *ROLL[2:]),
        ("'labels.parquet' has no column 'prompt'", "it has"),
    ),
    Case("import without policy", rates(*IMPORT, "--failures-column", "f", "--attempts", "8"), ("--import needs --policy",)),
    Case(
        "import of both",
        rates(*IMPORT, "--policy", "m", "--attempts", "8"),
        ("exactly one of --failures-column and --successes",),
    ),
    Case("question file empty", rates(*ROLL), ("'questions.parquet' is empty",), cut("questions.parquet", 0)),
    Case("question file cut off", rates(*ROLL), ("'questions.parquet'", "make it again"), cut("questions.parquet", 99)),
    Case("model that is none", rates(*ROLL, "--model", "taken"), ("the tokenizer of 'taken' cannot be loaded",)),
    Case("no permission for labels", rates(*ROLL, "--output", "/sys/l.parquet"), ("no permission: '/sys/l.parquet'",)),
    Case("import empty", rates(*IMPORTED), ("'labels.parquet' is empty",), cut("labels.parquet", 0)),
    Case("import cut off", rates(*IMPORTED), ("'labels.parquet'", "make it again"), cut("labels.parquet", 500)),
    Case(
        "import without column",
        rates(*IMPORTED, "--question-column", "q"),
        ("labels.parquet", "'q'"),
    ),
]


def arithmetic(*arguments: str):
    return tool("build_arithmetic", "--output", "task", "--cache", "cache", *arguments)


OTHERS = [
    Case("pool", arithmetic("--pool", "w"), ("--pool", "'w'", "choose from")),
    Case("size no number", arithmetic("--train-size", "many"), ("--train-size", "'many'")),
    Case("size 0", arithmetic("--train-size", "0"), ("--train-size 0", "must be 1 to 1000000")),
    Case("more than there are", arithmetic("--train-size", "99999999"), ("--train-size 99999999", "must be 1 to 1000000")),
    Case("heads", arithmetic("--width", "64", "--heads", "5"), ("width 64", "heads (5)", "change one")),
    Case("output is a file", tool("build_arithmetic", "--output", "own.jsonl"), ("--output 'own.jsonl'", "give a folder")),
    Case("no permission for a task", tool("build_arithmetic", "--output", "/sys/task"), ("no permission: '/sys/task'",)),
    Case("threads", arithmetic("--threads", "0"), ("--threads 0", "must be 1 to")),
    Case(
        "watch nothing", tool("verl_dots.cpu.watch", "--out", "o", "--steps", "1"), ("no command given", "put it after --")
    ),
    Case("watch steps", tool("verl_dots.cpu.watch", "--out", "o", "--steps", "x", "--", "true"), ("--steps", "'x'")),
    Case(
        "method",
        script("recipes/quickstart_cpu.sh", METHOD="dapo"),
        ("METHOD 'dapo' is unknown", "use grpo, dots, rr or dots_rr"),
    ),
    Case(
        "preset",
        script("recipes/quickstart_cpu.sh", PRESET="best"),
        ("PRESET 'best' is unknown", "use default, paper or released"),
    ),
]


def embed(*arguments: str):
    return tool("embed_questions", "--questions", "questions.parquet", "--output", "vectors.safetensors", *arguments)


def fit(*arguments: str):
    files = ("--labels", "labels.parquet", "--embeddings", "embeddings.safetensors", "--output", "predictor.safetensors")
    return tool("fit_predictor", *files, *arguments)


def evaluate(*arguments: str):
    return tool("evaluate_predictor", "--labels", "labels.parquet", "--embeddings", "embeddings.safetensors", *arguments)


def bad_labels(**column):
    def write() -> None:
        frame = pd.read_parquet("labels.parquet")
        pd.DataFrame({**frame, **column}).to_parquet("labels.parquet")

    return write


def other_questions() -> None:
    frame = pd.read_parquet("labels.parquet")
    frame["question_id"] = [text[::-1] for text in frame["question_id"]]
    frame.to_parquet("labels.parquet")


PREDICTOR = [
    Case("embed nothing", embed(), ("--model", "--features")),
    Case("embed features", embed("--features", "magic"), ("--features", "magic")),
    Case(
        "embed questions missing",
        embed("--features", "lexical", "--questions", "no.parquet"),
        ("no such file", "no.parquet"),
    ),
    Case(
        "embed no questions",
        embed("--features", "lexical", "--questions", "labels.parquet"),
        ("'labels.parquet' has neither a column 'prompt' nor 'question'", "it has"),
    ),
    Case("embed empty", embed("--features", "lexical"), ("'questions.parquet' is empty",), cut("questions.parquet", 0)),
    Case(
        "embed cut off",
        embed("--features", "lexical"),
        ("'questions.parquet'", "make it again"),
        cut("questions.parquet", 99),
    ),
    Case("embed with no model", embed("--model", "taken", "--devices", "cpu"), ("--model 'taken' cannot be loaded",)),
    Case(
        "embed no permission",
        embed("--features", "lexical", "--output", "/sys/v.safetensors"),
        ("no permission: '/sys/v.safetensors'",),
    ),
    Case("embed suffix", embed("--features", "lexical", "--output", "x.npy"), ("'x.npy' must end in .safetensors",)),
    Case("embed side column", embed("--features", "lexical", "--side", "extra_info.rate"), ("extra_info.rate",)),
    Case("fit labels missing", fit("--labels", "no.parquet"), ("no such file", "no.parquet")),
    Case("fit labels cut off", fit(), ("'labels.parquet'", "make it again"), cut("labels.parquet", 500)),
    Case("fit no labels", fit("--labels", "questions.parquet"), ("'questions.parquet' has no column", "it has")),
    Case("fit impossible labels", fit(), ("labels.parquet", "successes"), bad_labels(successes=9.0)),
    Case("fit no trials", fit(), ("labels.parquet", "trials"), bad_labels(trials=0)),
    Case("fit other questions", fit(), ("'embeddings.safetensors' lacks 8 of the 8", "embed_questions.py"), other_questions),
    Case("fit no permission", fit("--output", "/sys/p.safetensors"), ("no permission: '/sys/p.safetensors'",)),
    Case("fit no permission for labels", fit("--holdout-labels", "/sys/l.parquet"), ("no permission: '/sys/l.parquet'",)),
    Case("fit suffix", fit("--output", "p.pt"), ("--output 'p.pt' must end in .safetensors",)),
    Case("fit epochs", fit("--epochs", "0"), ("--epochs 0", "at least 1")),
    Case("fit rate", fit("--learning-rate", "nan"), ("--learning-rate nan", "must not be negative")),
    Case("fit dropout", fit("--dropout", "1"), ("--dropout 1", "below 1")),
    Case("fit holdout", fit("--holdout-questions", "1.5"), ("--holdout-questions 1.5", "between 0 and 1")),
    Case(
        "fit policy unknown", fit("--holdout-policies", "x"), ("--holdout-policies 'x' is not in the labels", "they have m")
    ),
    Case("fit all policies held out", fit("--holdout-policies", "m"), ("names every policy", "leave one")),
    Case("evaluate labels empty", evaluate(), ("'labels.parquet' is empty",), cut("labels.parquet", 0)),
    Case(
        "evaluate checkpoint missing",
        evaluate("--checkpoint", "p.safetensors"),
        ("no predictor checkpoint", "fit_predictor.py"),
    ),
    Case(
        "evaluate embeddings as checkpoint",
        evaluate("--checkpoint", "embeddings.safetensors"),
        ("is not a difficulty predictor",),
    ),
    Case("evaluate too few", evaluate("--reference-size", "8"), ("'labels.parquet' has 8 questions", "--reference-size 8")),
    Case("evaluate policies", evaluate("--reference-size", "4", "--policy", "m", "x"), ("--policy 'x'", "it has m")),
    Case("evaluate policy", evaluate("--reference-size", "4", "--policy", "x"), ("--policy 'x'", "labels.parquet", "m")),
]

REPORTS = [
    Case("report of nothing", tool("verl_dots.report", "no_run"), ("no such file or folder: 'no_run'",)),
    Case(
        "report of a folder without metrics",
        tool("verl_dots.report", "taken"),
        ("no metrics in 'taken'", "give a run folder"),
    ),
    Case(
        "report of text",
        tool("verl_dots.report", "x.jsonl"),
        ("x.jsonl, line 1: not JSON",),
        lambda: Path("x.jsonl").write_text("x\ny\n"),
    ),
    Case("report of questions", tool("verl_dots.report", "own.jsonl"), ("own.jsonl, line 1: no step", "step")),
    Case("report without run", tool("verl_dots.report"), ("RUN", "--help")),
]

CASES = [*CONFIG, *DATA, *BUILD_QUESTIONS, *PASS_RATES, *OTHERS, *PREDICTOR, *REPORTS]


def test_the_table_has_what_it_promises():
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_mistake_is_one_line_and_exit_code_2_and_nothing_is_written(case, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    good_files()
    if case.prepare:
        case.prepare()
    before = contents(tmp_path)
    with pytest.raises(SystemExit) as caught:
        case.run()
    line = capsys.readouterr().err
    assert caught.value.code == 2, line
    assert line.endswith("\n") and line.count("\n") == 1, line
    for part in case.says:
        assert part in line
    assert contents(tmp_path) == before


def test_the_good_files_are_good(tmp_path, monkeypatch):
    """Otherwise a case could be refused for another reason than its own."""
    monkeypatch.chdir(tmp_path)
    good_files()
    config(f"{EMBEDDINGS}=embeddings.safetensors")()
    with pytest.raises(SystemExit) as caught:
        build(*OWN, *OUT, "--workers", "1")()
    assert not caught.value.code
    assert len(pd.read_parquet("out.parquet")) == 2
