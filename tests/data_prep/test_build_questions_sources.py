"""data_prep/build_questions.py: every source format becomes the rows it should, in one schema that verl loads."""

import json

import pandas as pd
import pyarrow.parquet as pq
import pytest
from build_questions import main
from sources import output
from sources.registry import DATA_SETS

from tests.data_prep.conftest import SAMPLES, build, read_json
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
