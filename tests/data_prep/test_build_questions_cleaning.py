"""data_prep/build_questions.py on duplicates, contamination, levels and long prompts: counted, and left out if asked."""

import json

import pyarrow.parquet as pq
import pytest
from build_questions import main

from tests.data_prep.conftest import build, read_json
from verl_dots.types import question_id


def test_duplicates_are_reported_and_kept(run, tmp_path):
    rows, manifest, out = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    assert len(rows) == 7
    assert manifest["duplicates"]["exact"] == 2
    assert manifest["duplicates"]["exact_with_other_answers"] == 1
    assert manifest["duplicates"]["near"] == 1  # \frac and \dfrac are one answer
    assert manifest["duplicates"]["dropped"] == 0
    assert "2 exact, 1 near" in out


@pytest.mark.parametrize(("what", "left"), [("exact", 5), ("near", 4)])
def test_duplicates_can_be_dropped(run, tmp_path, what, left):
    rows, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", "--drop-duplicates", what)
    assert len(rows) == left
    assert manifest["duplicates"]["dropped"] == 7 - left
    assert rows[1]["reward_model"]["ground_truth"] == "\\frac{7}{12}"  # the first of several stays


def test_variants_are_not_duplicates(run, tmp_path):
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


def test_unscorable_answers(run, tmp_path):
    _, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet")
    unscorable = manifest["unscorable_answers"]
    assert (unscorable["count"], unscorable["dropped"]) == (1, 0)
    assert unscorable["examples"][0]["answer"] == "3\\mid n"
    rows, manifest, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", "--unscorable", "drop")
    assert manifest["unscorable_answers"]["dropped"] == 1
    assert len(rows) == 6


def test_levels(run, tmp_path):
    _, manifest, _ = build(run, "math", "math.jsonl", tmp_path / "q.parquet")
    assert manifest["levels"] == {"kept": [3, 5], "dropped": 2, "levels": {"1": 1, "3": 1, "4": 1, "5": 1, "none": 1}}
    rows, _, _ = build(run, "math", "math.jsonl", tmp_path / "q.parquet", "--levels", 1, 3)
    assert [row["extra_info"]["level"] for row in rows] == [1.0, 3.0]
    rows, _, _ = build(run, "deepmath", "deepmath.jsonl", tmp_path / "q.parquet", "--levels", 5, 9)
    assert [row["extra_info"]["level"] for row in rows] == [6.0, 5.0]


def test_contamination(run, tmp_path):
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


def test_contamination_of_short_questions(run, tmp_path):
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


def test_questions_without_latin_letters_are_compared_by_their_own(run, tmp_path):
    texts = ["求最小的正整数", "小明有多少个苹果", "求最小的 正整数", "△ + ○", "○ + △", "△ + ○ "]
    (tmp_path / "x.jsonl").write_text("\n".join(json.dumps({"q": text, "a": "2"}) for text in texts))
    code, _, err = run(
        main, "jsonl", "--local-file", tmp_path / "x.jsonl", "--output", tmp_path / "q.parquet",
        "--question-column", "q", "--answer-column", "a", "--drop-duplicates", "near",
    )  # fmt: skip
    assert code == 0, err
    rows = pq.read_table(tmp_path / "q.parquet").to_pylist()
    assert [row["extra_info"]["question"] for row in rows] == [*texts[:2], texts[2], *texts[3:5]]


def test_overlong_prompts_are_counted_as_verl_counts(run, tmp_path, tokenizer_path):
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


def test_sampling_is_seeded_and_keeps_the_order(run, tmp_path):
    def texts(*options):
        rows, _, _ = build(run, "deepscaler", "deepscaler.json", tmp_path / "q.parquet", *options)
        return [row["extra_info"]["question"] + row["reward_model"]["ground_truth"] for row in rows]

    everything = texts()
    three = texts("--max-questions", 3, "--seed", 7)
    assert three == texts("--max-questions", 3, "--seed", 7)
    assert three == [text for text in everything if text in three][:3]
    assert len({tuple(texts("--max-questions", 3, "--seed", seed)) for seed in range(5)}) > 1
    assert texts("--max-questions", 100) == everything
