"""One table of users' mistakes: each ends in one line that names the thing, the value and the remedy, in exit code 2, and
leaves nothing written. Its rows are in bad_input/, a file per area. Three of them go through verl's own command line in
tests/integration.
"""

from __future__ import annotations

import pandas as pd
import pytest

from tests.unit.bad_input.build_questions import BUILD_QUESTIONS, OWN, build
from tests.unit.bad_input.case import EMBEDDINGS, OUT, config, contents, good_files
from tests.unit.bad_input.collect_pass_rates import PASS_RATES
from tests.unit.bad_input.configuration import CONFIG
from tests.unit.bad_input.embeddings import EMBEDDING_FILES
from tests.unit.bad_input.predictor import PREDICTOR
from tests.unit.bad_input.quickstart_and_report import QUICKSTART, REPORTS

CASES = [*CONFIG, *EMBEDDING_FILES, *BUILD_QUESTIONS, *PASS_RATES, *QUICKSTART, *PREDICTOR, *REPORTS]


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
