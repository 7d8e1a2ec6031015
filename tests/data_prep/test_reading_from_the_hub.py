"""sources.reading, the part that talks to the hub: with the libraries' own local stand-ins, since tests have no network.

``datasets`` reads a folder laid out like a hub repository; ``huggingface_hub`` finds files in its cache.
"""

import json
import shutil
from dataclasses import replace

import datasets
import huggingface_hub.constants
import pandas as pd
import pytest
from build_questions import main
from sources import reading
from sources.registry import DATA_SETS

from tests.data_prep.conftest import SAMPLES, read_json

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")


def repository(path, dataset, configs, splits):
    """A folder like a hub repository: one parquet file per configuration and split, declared in its README."""
    lines = (SAMPLES / f"{dataset}.jsonl").read_text(encoding="utf-8").splitlines()
    frame = pd.DataFrame([json.loads(line) for line in lines])
    card = ["---", "configs:"]
    for config in configs:
        card += [f"- config_name: {config or 'default'}", "  data_files:"]
        for split in splits:
            file = f"{config or 'data'}/{split}.parquet"
            (path / file).parent.mkdir(parents=True, exist_ok=True)
            frame.to_parquet(path / file)
            card += [f"  - split: {split}", f"    path: {file}"]
    (path / "README.md").write_text("\n".join([*card, "---", ""]))


@pytest.mark.parametrize("dataset", ["gsm8k", "math", "deepmath", "olympiadbench"])
def test_configurations_and_splits_are_read_in_order(tmp_path, dataset):
    data_set = replace(DATA_SETS[dataset], hub=str(tmp_path / "repository"), revision=COMMIT)
    repository(tmp_path / "repository", dataset, data_set.configs, data_set.splits)
    parts, source = reading.read_hub(data_set, data_set.splits, None)
    assert [split for split, _ in parts] == [split for split in data_set.splits for _ in data_set.configs]
    samples = len((SAMPLES / f"{dataset}.jsonl").read_text().splitlines())
    assert {len(rows) for _, rows in parts} == {samples}
    assert not any(name in row for name in data_set.ignored for _, rows in parts for row in rows)
    for split, rows in parts:
        assert data_set.convert(rows[0], split).split == split
    assert (source["commit"], source["revision"]) == (COMMIT, COMMIT)


def test_an_unknown_split(tmp_path):
    data_set = replace(DATA_SETS["gsm8k"], hub=str(tmp_path / "repository"), revision=COMMIT)
    repository(tmp_path / "repository", "gsm8k", data_set.configs, ["train"])
    with pytest.raises(ValueError, match=r"cannot be read from the hub .*validation.*--local-file"):
        reading.read_hub(data_set, ["validation"], None)


def test_other_columns_than_expected(tmp_path):
    data_set = replace(DATA_SETS["deepmath"], hub=str(tmp_path / "repository"), revision=COMMIT)
    repository(tmp_path / "repository", "minerva", data_set.configs, ["train"])
    with pytest.raises(ValueError, match="no column 'final_answer': it has answer, question"):
        reading.read_hub(data_set, ["train"], None)


def test_one_file_of_a_repository(run, tmp_path):
    """Open-Reasoner-Zero's JSON is a list of lists, which ``datasets`` does not read: the file is taken from the cache."""
    orz = DATA_SETS["orz"]
    snapshot = tmp_path / "hub" / f"datasets--{orz.hub.replace('/', '--')}" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    shutil.copy(SAMPLES / "orz.json", snapshot / orz.file)
    code, out, err = run(main, "orz", "--revision", COMMIT, "--output", tmp_path / "q.parquet")
    assert code == 0, err
    assert "3 of 5 rows" in out
    assert read_json(tmp_path / "q.json")["source"] == {
        "hub": orz.hub,
        "revision": COMMIT,
        "commit": COMMIT,
        "splits": ["train"],
    }
