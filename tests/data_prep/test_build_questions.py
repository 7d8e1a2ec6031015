"""data_prep/build_questions.py: from every source format to a file that verl trains on; what is left out is told."""

import json
import os
import resource
import subprocess
import sys

import pandas as pd
import pyarrow.parquet as pq
import pytest
from build_questions import main
from sources import output
from sources.registry import DATA_SETS

from tests.data_prep.conftest import ROOT, SAMPLES, read_json
from verl_dots.rewards import compute_score
from verl_dots.types import question_id

# per data set: sample file, (start of the question, answer, kind, level, subject) of each row built from it
EXPECTED = {
    "math": (
        "math.jsonl",
        [
            ("How many ways", "6", "math", 3.0, "Counting & Probability"),
            ("Simplify", "\\frac{2}{3}", "math", 4.0, "Prealgebra"),
            ("Find all real", "(-3,3)", "math", 5.0, "Intermediate Algebra"),
        ],
    ),
    "deepscaler": (
        "deepscaler.json",
        [
            ("Compute $\\lim", "3", "math", None, None),
            ("The café’s", "\\frac{7}{12}", "math", None, None),
            ("The café’s", "\\frac{7}{12}", "math", None, None),
            ("The café’s", "\\frac{5}{12}", "math", None, None),
            ("The café's", "\\dfrac{7}{12}", "math", None, None),
            ("By what", "21\\%", "math", None, None),
            ("Describe", "3\\mid n", "math", None, None),
        ],
    ),
    "orz": (
        "orz.json",
        [
            ("If $x + y", "58", "math", None, None),
            ("Find the number", "24", "math", None, None),
            ("For which", "a=1", "math", None, None),
        ],
    ),
    "deepmath": (
        "deepmath.jsonl",
        [
            ("Evaluate", "1", "math", 4.5, "Mathematics -> Calculus -> Integral Calculus"),
            ("Is every", "Yes", "math", 6.0, "Mathematics -> Abstract Algebra -> Group Theory"),
            ("Find the radius", "\\infty", "math", 5.0, "Mathematics -> Calculus -> Series"),
        ],
    ),
    "scp25k": (
        "scp25k.jsonl",
        [
            ("A stone", "19.6\\,\\mathrm{m}", "math", None, "Physics"),
            ("How many moles", "2", "math", None, "Chemistry"),
            ("Which organelle", "B", "choice", None, "Biology"),
        ],
    ),
    "gsm8k": ("gsm8k.jsonl", [("Ava", "18", "math", None, None), ("A hall", "1500", "math", None, None)]),
    "math500": (
        "math500.jsonl",
        [
            ("How many ways", "6", "math", 3.0, "Counting & Probability"),
            ("Convert", "\\left( 3, \\frac{\\pi}{2} \\right)", "math", 2.0, "Precalculus"),
        ],
    ),
    "minerva": ("minerva.jsonl", [("A star", "10", "math", None, None), ("What is the energy", "1.0", "math", None, None)]),
    "olympiadbench": (
        "olympiadbench.jsonl",
        [
            ("Find all positive", "2,3", "math", None, "Algebra"),
            ("Let $T$ be the probability that a fair coin shows heads.\nDetermine $T$.", "\\frac{1}{2}", "math", None,
             "Combinatorics"),
        ],
    ),
    "aime24": ("aime24.jsonl", [("A bag", "204", "math", None, None), ("Find the remainder", "024", "math", None, None)]),
    "amc23": ("amc23.jsonl", [("Two runners", "72", "math", None, None), ("What is the sum", "25", "math", None, None)]),
}  # fmt: skip


def build(run, dataset, file, path, *options):
    code, out, err = run(main, dataset, "--local-file", SAMPLES / file, "--output", path, "--workers", 2, *options)
    assert code == 0, err
    return pq.read_table(path).to_pylist(), read_json(path.with_suffix(".json")), out


def test_every_data_set_has_a_sample():
    assert set(EXPECTED) == set(DATA_SETS)


@pytest.mark.parametrize("dataset", EXPECTED)
class TestEveryDataSet:
    def test_rows(self, run, tmp_path, dataset):
        file, expected = EXPECTED[dataset]
        rows, manifest, _ = build(run, dataset, file, tmp_path / "q.parquet")
        assert [
            (
                row["extra_info"]["question"][: len(start)],
                row["reward_model"]["ground_truth"],
                row["extra_info"]["answer_kind"],
                row["extra_info"]["level"],
                row["extra_info"]["subject"],
            )
            for row, (start, *_) in zip(rows, expected, strict=True)
        ] == expected
        for index, row in enumerate(rows):
            info = row["extra_info"]
            assert info["index"] == index
            assert info["question_id"] == question_id(info["question"])
            assert row["data_source"] == dataset
            assert row["ability"] == DATA_SETS[dataset].ability
            assert row["reward_model"]["style"] == "rule"
            assert row["prompt"] == [
                {"role": "system", "content": "Let's think step by step and output the final answer within \\boxed{}."},
                {"role": "user", "content": info["question"]},
            ]
        assert manifest["rows_out"] == len(rows)

    def test_the_manifest_accounts_for_every_row(self, run, tmp_path, dataset):
        file, _ = EXPECTED[dataset]
        _, manifest, _ = build(run, dataset, file, tmp_path / "q.parquet", "--drop-duplicates", "near")
        left_out = sum(manifest["unusable"].values())
        left_out += sum(step["dropped"] for step in manifest.values() if isinstance(step, dict) and "dropped" in step)
        assert manifest["rows_in"] == manifest["rows_out"] + left_out
        assert manifest["data_set"] == dataset
        assert manifest["source"]["files"][0]["sha256"]
        assert str(tmp_path) not in json.dumps(manifest["output"])

    def test_one_schema(self, run, tmp_path, dataset):
        build(run, dataset, EXPECTED[dataset][0], tmp_path / "q.parquet")
        assert pq.read_schema(tmp_path / "q.parquet").equals(output.SCHEMA)

    def test_the_right_answer_scores_one(self, run, tmp_path, dataset):
        rows, manifest, _ = build(run, dataset, EXPECTED[dataset][0], tmp_path / "q.parquet")
        unscorable = {each["question_id"] for each in manifest["unscorable_answers"]["examples"]}
        for row in rows:
            truth, info = row["reward_model"]["ground_truth"], row["extra_info"]
            if info["question_id"] not in unscorable:
                assert compute_score(dataset, f"So \\boxed{{{truth}}}.", truth, info)["score"] == 1.0
                assert compute_score(dataset, "So \\boxed{987654}.", truth, info)["score"] == 0.0


def test_twice_gives_the_same_bytes(run, tmp_path):
    build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    first = (tmp_path / "q.parquet").read_bytes(), (tmp_path / "q.json").read_bytes()
    build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    assert ((tmp_path / "q.parquet").read_bytes(), (tmp_path / "q.json").read_bytes()) == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.json", "q.parquet"]


def test_parquet_sources_read_like_json_ones(run, tmp_path):
    """The hub's own files are parquet; lists come back as arrays and missing values as NaN."""
    for dataset in ("olympiadbench", "amc23", "deepmath", "math"):
        file, expected = EXPECTED[dataset]
        lines = (SAMPLES / file).read_text(encoding="utf-8").splitlines()
        frame = pd.DataFrame([json.loads(line) for line in lines])
        if dataset == "amc23":
            frame["answer"] = frame["answer"].astype(float)
        source = tmp_path / f"{dataset}.parquet"
        frame.to_parquet(source)
        code, _, err = run(main, dataset, "--local-file", source, "--output", tmp_path / "q.parquet")
        assert code == 0, err
        truths = [row["reward_model"]["ground_truth"] for row in pq.read_table(tmp_path / "q.parquet").to_pylist()]
        assert truths == [answer for _, answer, *_ in expected]


def test_orz_as_the_datasets_library_shows_it(run, tmp_path):
    conversations = read_json(SAMPLES / "orz.json")
    with open(tmp_path / "orz.jsonl", "w") as stream:
        for turns in conversations[:2]:
            stream.write(json.dumps({"conversations": turns}) + "\n")
            stream.write(json.dumps({str(position): turn for position, turn in enumerate(turns)}) + "\n")
    code, _, err = run(main, "orz", "--local-file", tmp_path / "orz.jsonl", "--output", tmp_path / "q.parquet")
    assert code == 0, err
    truths = [row["reward_model"]["ground_truth"] for row in pq.read_table(tmp_path / "q.parquet").to_pylist()]
    assert truths == ["58", "58", "24", "24"]


def test_scp_with_extracted_answers(run, tmp_path):
    rows, _, _ = build(run, "scp25k", "scp25k_answers.jsonl", tmp_path / "q.parquet")
    assert [(row["reward_model"]["ground_truth"], row["extra_info"]["answer_kind"]) for row in rows] == [
        ("2 s", "math"),
        ("B", "choice"),
    ]


class TestOwnFiles:
    COLUMNS = ("--question-column", "meta.q", "--answer-column", "truth.value")

    def test_columns_are_named_by_the_user(self, run, tmp_path):
        rows, manifest, _ = build(
            run, "jsonl", "own.jsonl", tmp_path / "q.parquet", *self.COLUMNS,
            "--level-column", "difficulty", "--success-rate-column", "rate", "--answer-kind", "exact",
        )  # fmt: skip
        assert [row["extra_info"]["question"] for row in rows] == ["What is $2^5$?", "What is $3^3$?"]
        assert [row["reward_model"]["ground_truth"] for row in rows] == ["32", "27"]
        assert [row["extra_info"]["level"] for row in rows] == [1.0, 3.0]
        assert [row["extra_info"]["success_rate"] for row in rows] == [0.9, 0.25]
        assert {row["extra_info"]["answer_kind"] for row in rows} == {"exact"}
        assert {row["data_source"] for row in rows} == {"own"}
        assert manifest["unusable"] == {"no question": 1}

    def test_a_file_in_verls_schema_can_be_built_again(self, run, tmp_path):
        rows, _, _ = build(run, "deepmath", "deepmath.jsonl", tmp_path / "a.parquet")
        columns = ("--question-column", "extra_info.question", "--answer-column", "reward_model.ground_truth")
        code, _, err = run(
            main, "parquet", "--local-file", tmp_path / "a.parquet", "--output", tmp_path / "b.parquet", *columns
        )
        assert code == 0, err
        again = pq.read_table(tmp_path / "b.parquet").to_pylist()
        assert [row["extra_info"]["question_id"] for row in again] == [row["extra_info"]["question_id"] for row in rows]

    def test_a_success_rate_out_of_range(self, run, tmp_path):
        (tmp_path / "x.jsonl").write_text('{"q": "1+1", "a": "2", "rate": 40}\n')
        code, _, err = run(
            main, "jsonl", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet",
            "--question-column", "q", "--answer-column", "a", "--success-rate-column", "rate",
        )  # fmt: skip
        assert code == 2
        assert "between 0 and 1" in err

    @pytest.mark.parametrize("missing", ["--local-file", "--question-column", "--answer-column"])
    def test_what_it_needs(self, run, tmp_path, missing):
        given = {"--local-file": SAMPLES / "own.jsonl", "--question-column": "meta.q", "--answer-column": "truth.value"}
        del given[missing]
        options = [word for pair in given.items() for word in pair]
        code, _, err = run(main, "jsonl", "--output", tmp_path / "q.parquet", *options)
        assert (code, err.count("\n")) == (2, 1)
        assert missing in err


class TestCleaning:
    def test_duplicates_are_reported_and_kept(self, run, tmp_path):
        rows, manifest, out = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
        assert len(rows) == 7
        assert manifest["duplicates"]["exact"] == 2
        assert manifest["duplicates"]["exact_with_other_answers"] == 1
        assert manifest["duplicates"]["near"] == 1  # \frac and \dfrac are one answer
        assert manifest["duplicates"]["dropped"] == 0
        assert "2 exact, 1 near" in out

    @pytest.mark.parametrize(("what", "left"), [("exact", 5), ("near", 4)])
    def test_duplicates_can_be_dropped(self, run, tmp_path, what, left):
        rows, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", "--drop-duplicates", what)
        assert len(rows) == left
        assert manifest["duplicates"]["dropped"] == 7 - left
        assert rows[1]["reward_model"]["ground_truth"] == "\\frac{7}{12}"  # the first of several stays

    def test_variants_are_not_duplicates(self, run, tmp_path):
        shape = "What is the probability that two sides of a regular {} chosen at random without replacement are adjacent?"
        rows = [{"q": shape.format("pentagon"), "a": "1/2"}, {"q": shape.format("hexagon"), "a": "2/5"}]
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)))
        code, _, err = run(
            main, "jsonl", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet",
            "--question-column", "q", "--answer-column", "a", "--drop-duplicates", "near", "--near-threshold", "0.6",
        )  # fmt: skip
        assert code == 0, err
        duplicates = read_json(tmp_path / "q.json")["duplicates"]
        assert (duplicates["near"], duplicates["variants_with_other_answers"], duplicates["dropped"]) == (0, 1, 0)

    def test_unscorable_answers(self, run, tmp_path):
        _, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
        unscorable = manifest["unscorable_answers"]
        assert (unscorable["count"], unscorable["dropped"]) == (1, 0)
        assert unscorable["examples"][0]["answer"] == "3\\mid n"
        rows, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", "--unscorable", "drop")
        assert manifest["unscorable_answers"]["dropped"] == 1
        assert len(rows) == 6

    def test_levels(self, run, tmp_path):
        _, manifest, _ = build(run, "math", "math.jsonl", tmp_path / "q.parquet")
        assert manifest["levels"] == {"kept": [3, 5], "dropped": 2, "levels": {"1": 1, "3": 1, "4": 1, "5": 1, "none": 1}}
        rows, _, _ = build(run, "math", "math.jsonl", tmp_path / "q.parquet", "--levels", 1, 3)
        assert [row["extra_info"]["level"] for row in rows] == [1.0, 3.0]
        rows, _, _ = build(run, "deepmath", "deepmath.jsonl", tmp_path / "q.parquet", "--levels", 5, 9)
        assert [row["extra_info"]["level"] for row in rows] == [6.0, 5.0]

    def test_contamination(self, run, tmp_path):
        build(run, "math500", "math500.jsonl", tmp_path / "math500.parquet")
        options = ("--evaluation", tmp_path / "math500.parquet", "--ngram", 8)
        rows, manifest, out = build(run, "math", "math.jsonl", tmp_path / "q.parquet", *options)
        assert manifest["contamination"]["overlaps"] == {"math500": 1}
        assert len(rows) == 3
        assert "{'math500': 1}, 0 left out" in out
        rows, manifest, _ = build(run, "math", "math.jsonl", tmp_path / "q.parquet", *options, "--drop-contaminated")
        assert len(rows) == 2
        assert manifest["contamination"]["ids"] == [
            question_id("How many ways are there to arrange the letters of the word ABBA?")
        ]
        assert not any("ABBA" in row["extra_info"]["question"] for row in rows)

    def test_contamination_of_short_questions(self, run, tmp_path):
        """Fewer words than the n-gram: the question as a whole must be shared, layout apart."""
        others = ["Compute 1 + 2 please.", "Compute $1-1$.", "求 $1+1$。", "△ + ○", "..."]
        for name, texts in (("train", ["Compute $1+1$.", *others]), ("eval", ["compute 1 + 1", "?", "△ − ○"])):
            lines = [json.dumps({"q": text, "a": "2"}) for text in texts]
            (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
        columns = ("--question-column", "q", "--answer-column", "a")
        for name, extra in (("eval", ()), ("train", ("--evaluation", tmp_path / "q_eval.parquet", "--drop-contaminated"))):
            code, _, err = run(
                main, "jsonl", "--local-file", tmp_path / f"{name}.jsonl",
                "--output", tmp_path / f"q_{name}.parquet", *columns, *extra,
            )  # fmt: skip
            assert code == 0, err
        rows = pq.read_table(tmp_path / "q_train.parquet").to_pylist()
        assert [row["extra_info"]["question"] for row in rows] == others

    def test_questions_without_latin_letters_are_compared_by_their_own(self, run, tmp_path):
        texts = ["求最小的正整数", "小明有多少个苹果", "求最小的 正整数", "△ + ○", "○ + △", "△ + ○ "]
        (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"q": text, "a": "2"}) for text in texts))
        code, _, err = run(
            main, "jsonl", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet",
            "--question-column", "q", "--answer-column", "a", "--drop-duplicates", "near",
        )  # fmt: skip
        assert code == 0, err
        rows = pq.read_table(tmp_path / "q.parquet").to_pylist()
        assert [row["extra_info"]["question"] for row in rows] == [*texts[:2], texts[2], *texts[3:5]]

    def test_overlong_prompts_are_counted_as_verl_counts(self, run, tmp_path, tokenizer_path):
        rows, manifest, _ = build(
            run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet", "--filter-overlong", tokenizer_path, 38,
        )  # fmt: skip
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(tokenizer_path)
        everything, _, _ = build(run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet")
        lengths = [
            len(tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False))
            for row in everything
        ]
        assert min(lengths) <= 38 < max(lengths)
        assert len(rows) == sum(length <= 38 for length in lengths)
        assert (manifest["overlong"]["limit"], manifest["overlong"]["longest"]) == (38, max(lengths))

    def test_sampling_is_seeded_and_keeps_the_order(self, run, tmp_path):
        def texts(*options):
            rows, _, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", *options)
            return [row["extra_info"]["question"] + row["reward_model"]["ground_truth"] for row in rows]

        everything = texts()
        three = texts("--max-questions", 3, "--seed", 7)
        assert three == texts("--max-questions", 3, "--seed", 7)
        assert three == [text for text in everything if text in three][:3]
        assert len({tuple(texts("--max-questions", 3, "--seed", seed)) for seed in range(5)}) > 1
        assert texts("--max-questions", 100) == everything


@pytest.mark.parametrize(("given", "written"), [("qwen", output.SYSTEM_PROMPTS["qwen"]), ("Be brief.", "Be brief.")])
def test_the_system_prompt_can_be_chosen(run, tmp_path, given, written):
    rows, manifest, _ = build(run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet", "--system-prompt", given)
    assert rows[0]["prompt"][0] == {"role": "system", "content": written}
    assert manifest["system_prompt"] == written


def test_no_system_prompt(run, tmp_path):
    rows, _, _ = build(run, "gsm8k", "gsm8k.jsonl", tmp_path / "q.parquet", "--system-prompt", "none")
    assert [message["role"] for message in rows[0]["prompt"]] == ["user"]


def test_one_question_has_one_id_whatever_the_file(run, tmp_path):
    train, _, _ = build(run, "math", "math.jsonl", tmp_path / "a.parquet")
    evaluation, _, _ = build(run, "math500", "math500.jsonl", tmp_path / "b.parquet", "--system-prompt", "qwen")
    assert train[0]["extra_info"]["question_id"] == evaluation[0]["extra_info"]["question_id"]


def refused(run, tmp_path, *arguments):
    """The one line of a refusal; nothing may be left behind."""
    before = sorted(tmp_path.rglob("*"))
    code, _, err = run(main, *arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
    return err


class TestRefusals:
    def test_an_unknown_data_set(self, run, tmp_path):
        err = refused(run, tmp_path, "maths", "--output", tmp_path / "q.parquet")
        assert "'maths' is unknown" in err
        assert all(name in err for name in [*DATA_SETS, "jsonl", "parquet"])

    def test_a_missing_column(self, run, tmp_path):
        err = refused(
            run, tmp_path, "deepmath", "--local-file", SAMPLES / "amc23.jsonl", "--output", tmp_path / "q.parquet"
        )
        assert "no column 'final_answer': it has answer, id, question, url" in err

    def test_a_missing_column_of_ones_own(self, run, tmp_path):
        err = refused(
            run, tmp_path, "jsonl", "--local-file", SAMPLES / "own.jsonl", "--output", tmp_path / "q.parquet",
            "--question-column", "prompt", "--answer-column", "truth.value",
        )  # fmt: skip
        assert "no column 'prompt': it has difficulty, meta, rate, truth" in err

    @pytest.mark.parametrize(
        ("name", "content", "words"),
        [
            ("x.jsonl", b"", "is empty"),
            ("x.json", b"[]", "has no rows"),
            ("x.parquet", b"", "is empty"),
            ("x.parquet", b"not parquet at all", "not a readable parquet file"),
            ("x.json", b"[{]", "is not JSON"),
            ("x.jsonl", b'{"question": "q", "answer": "a"}\n{"question":', "line 2 is not JSON"),
            ("x.jsonl", b"\xff\xfe\x00", "not UTF-8"),
            ("x.jsonl", b"[1, 2]\n", "not objects"),
            ("x.csv", b"question,answer\n", "ends in .csv"),
            ("x.jsonl", b'{"question": "", "answer": "1"}\n', "no question of gsm8k is left"),
        ],
    )
    def test_a_broken_file(self, run, tmp_path, name, content, words):
        (tmp_path / name).write_bytes(content)
        err = refused(run, tmp_path, "gsm8k", "--local-file", tmp_path / name, "--output", tmp_path / "q.parquet")
        assert words in err

    def test_half_a_surrogate_pair_is_left_out(self, run, tmp_path):
        rows = ['{"question": "\\ud800?", "answer": "#### 1"}', '{"question": "q", "answer": "#### 1"}']
        (tmp_path / "x.jsonl").write_text("\n".join(rows))
        code, _, err = run(main, "gsm8k", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet")
        assert code == 0, err
        assert read_json(tmp_path / "q.json")["unusable"] == {"half a surrogate pair: not valid Unicode": 1}

    def test_a_missing_file(self, run, tmp_path):
        err = refused(run, tmp_path, "gsm8k", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet")
        assert "no such file" in err

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--max-questions", 0), "--max-questions 0: must be at least 1"),
            (("--ngram", 0), "--ngram 0"),
            (("--near-threshold", 1.5), "--near-threshold 1.5"),
            (("--levels", 5, 3), "--levels 5 3"),
            (("--drop-contaminated",), "needs --evaluation"),
            (("--filter-overlong", "nowhere", "many"), "'many'"),
            (("--filter-overlong", "/nowhere", 10), "the tokenizer of '/nowhere' cannot be loaded"),
            (("--question-column", "q"), "goes with jsonl and parquet only"),
            (("--unscorable", "maybe"), "invalid choice: 'maybe'"),
            (("--evaluation", "/nowhere/x.parquet"), "no such file"),
        ],
    )
    def test_bad_options(self, run, tmp_path, options, words):
        err = refused(
            run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", tmp_path / "q.parquet", *options
        )
        assert words in err

    def test_no_network(self, run, tmp_path, monkeypatch):
        import datasets
        import huggingface_hub.constants

        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        for dataset in ("gsm8k", "minerva", "orz"):  # pinned, not pinned, one file
            err = refused(run, tmp_path, dataset, "--output", tmp_path / "q.parquet")
            assert DATA_SETS[dataset].hub in err
            assert "--local-file" in err

    def test_a_hub_that_does_not_answer(self, tmp_path):
        """A real refusal of the system, as behind a firewall: nothing listens on port 9. Retries do not show."""
        done = subprocess.run(
            [sys.executable, ROOT / "data_prep" / "build_questions.py", "minerva", "--output", tmp_path / "q.parquet"],
            capture_output=True, text=True, env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=120,
        )  # fmt: skip
        assert done.returncode == 2
        assert done.stderr.count("\n") == 1, done.stderr
        assert "math-ai/minervamath" in done.stderr and "--local-file" in done.stderr
        assert list(tmp_path.iterdir()) == []

    def test_no_permission(self, run, tmp_path):
        err = refused(run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", "/sys/q.parquet")
        assert "no permission" in err

    def test_an_output_that_is_a_directory(self, run, tmp_path):
        err = refused(run, tmp_path, "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", tmp_path)
        assert "is a directory" in err

    @pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files as Linux does")
    def test_a_full_disk_leaves_nothing_half_written(self, tmp_path):
        """A real failure in the middle of writing: the kernel refuses bytes beyond the limit."""

        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        done = subprocess.run(
            [sys.executable, ROOT / "data_prep" / "build_questions.py", "gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl",
             "--output", tmp_path / "q.parquet", "--workers", "1"],
            capture_output=True, text=True, preexec_fn=small_files,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert done.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_the_script_runs_as_a_script(tmp_path):
    script = ROOT / "data_prep" / "build_questions.py"
    arguments = ["gsm8k", "--local-file", SAMPLES / "gsm8k.jsonl", "--output", "q.parquet"]
    done = subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "q.parquet: 2 of 3 rows of gsm8k" in done.stdout
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert all(name in done.stdout for name in DATA_SETS)


@pytest.mark.verl
def test_verl_loads_all_of_them_together(run, tmp_path, tokenizer_path):
    """verl's own data set class: several files at once, which needs one schema."""
    from omegaconf import OmegaConf
    from torch.utils.data import DataLoader
    from transformers import AutoTokenizer
    from verl.utils.dataset.rl_dataset import RLHFDataset, collate_fn

    paths = []
    for dataset, (file, _) in EXPECTED.items():
        build(run, dataset, file, tmp_path / f"{dataset}.parquet")
        paths.append(str(tmp_path / f"{dataset}.parquet"))
    config = OmegaConf.create(
        {"max_prompt_length": 1024, "cache_dir": str(tmp_path / "cache"), "filter_overlong_prompts_workers": 1}
    )
    loaded = RLHFDataset(paths, AutoTokenizer.from_pretrained(tokenizer_path), config)
    assert len(loaded) == sum(len(rows) for _, rows in EXPECTED.values())
    batch = next(iter(DataLoader(loaded, batch_size=len(loaded), collate_fn=collate_fn)))
    for info, messages, truth in zip(batch["extra_info"], batch["raw_prompt"], batch["reward_model"], strict=True):
        assert question_id(messages[-1]["content"]) == info["question_id"]
        assert truth["ground_truth"]
