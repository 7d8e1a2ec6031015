"""verl_dots.embeddings: what was written comes back by id, and every bad file is one line."""

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from verl_dots.embeddings import EmbeddingTable, write_embeddings
from verl_dots.types import question_id

IDS = [question_id(f"question {i}") for i in range(50)]


def vectors(count: int = 50, dim: int = 7) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, dim)).astype(np.float32)


def one_line(error: pytest.ExceptionInfo) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.fixture
def path(tmp_path):
    write_embeddings(tmp_path / "x.safetensors", IDS, vectors(), model="a-model", extra={"pooling": "mean"})
    return tmp_path / "x.safetensors"


def test_rows_come_back_in_the_order_asked_for_as_float16_kept_them(path):
    table = EmbeddingTable.open(path)
    assert (table.dim, table.model, len(table)) == (7, "a-model", 50)
    assert table.question_ids == IDS
    assert table.manifest["pooling"] == "mean"
    asked = [IDS[9], IDS[0], IDS[9]]
    rows = table.rows(asked)
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, vectors().astype(np.float16).astype(np.float32)[[9, 0, 9]])
    assert isinstance(table.vectors, np.memmap)


def test_ids_that_end_in_zero_bytes_are_told_apart(tmp_path):
    ids = ["ab" * 15 + "00", "ab" * 14 + "0000", "ab" * 15 + "01"]
    write_embeddings(tmp_path / "x.safetensors", ids, vectors(3), model="m")
    assert EmbeddingTable.open(tmp_path / "x.safetensors").index(ids[::-1]).tolist() == [2, 1, 0]


@pytest.mark.parametrize("stranger", ["f" * 32, "f" * 31, "not hex", "F" * 32, ""])
def test_a_missing_question_is_named_with_the_command_that_helps(path, stranger):
    with pytest.raises(ValueError) as error:
        EmbeddingTable.open(path).rows([IDS[3], stranger, stranger])
    line = one_line(error)
    assert f"lacks 2 of the 3 questions, first {stranger}" in line
    assert "python data_prep/embed_questions.py --questions FILE --output" in line


def corrupt(path, how):
    """Break a good file in one way."""
    ids = np.frombuffer(bytes.fromhex("".join(IDS)), np.uint8).reshape(-1, 16)
    good = {"embeddings": vectors().astype(np.float16), "question_id": ids}
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        path.write_bytes(path.read_bytes()[:-10])
    elif how == "text":
        path.write_text("this is no safetensors file")
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "no manifest":
        path.with_suffix(".json").unlink()
    elif how == "manifest of another":
        manifest = json.loads(path.with_suffix(".json").read_text())
        path.with_suffix(".json").write_text(json.dumps(manifest | {"dim": 8}))
    elif how == "float32":
        save_file(good | {"embeddings": vectors()}, path)
    elif how == "rows":
        save_file(good | {"embeddings": vectors(49).astype(np.float16)}, path)
    elif how == "names":
        save_file({"vectors": good["embeddings"]}, path)
    elif how in ("NaN", "inf"):
        good["embeddings"][30, 2] = float(how)
        save_file(good, path)
    elif how == "duplicates":
        save_file(good | {"question_id": np.concatenate([ids[:49], ids[:1]])}, path)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("missing", "no embeddings file"),
        ("cut off", "not a whole safetensors file"),
        ("text", "not a whole safetensors file"),
        ("empty", "not a whole safetensors file"),
        ("no manifest", "has no manifest"),
        ("manifest of another", "of dimension 8"),
        ("float32", "F32"),
        ("rows", r"\[49, 7\]"),
        ("names", "'vectors'"),
        ("NaN", "NaN or infinite values, first in row 30"),
        ("inf", "NaN or infinite values, first in row 30"),
        ("duplicates", f"1 duplicate question ids, first {IDS[0]}"),
    ],
)
def test_a_bad_file_is_one_line_with_its_name(path, how, says):
    corrupt(path, how)
    with pytest.raises(ValueError, match=says) as error:
        EmbeddingTable.open(path)
    assert "x.safetensors" in one_line(error)
    assert "embed_questions.py" in str(error.value)


@pytest.mark.parametrize(
    ("ids", "rows", "says"),
    [
        (IDS[:3], vectors(4), "do not fit 3 questions"),
        ([IDS[0], IDS[0]], vectors(2), "not distinct"),
        (["xyz"], vectors(1), "not 32 hex digits"),
        (IDS[:2], np.array([[1.0], [1e6]]), "beyond float16"),
        (IDS[:2], np.array([[1.0], [np.nan]]), "NaN"),
        ([], np.zeros((0, 3)), "do not fit"),
    ],
)
def test_what_cannot_be_read_back_is_not_written(tmp_path, ids, rows, says):
    with pytest.raises(ValueError, match=says):
        write_embeddings(tmp_path / "x.safetensors", ids, rows, model="m")
    assert list(tmp_path.iterdir()) == []


def test_another_suffix_is_refused(tmp_path):
    with pytest.raises(ValueError, match="must end in .safetensors"):
        write_embeddings(tmp_path / "x.npy", IDS, vectors(), model="m")


def test_side_features_come_back_with_their_gaps(tmp_path):
    side = np.random.default_rng(1).random((50, 2)).astype(np.float32)
    side[4, 1] = np.nan
    write_embeddings(tmp_path / "x.safetensors", IDS, vectors(), model="m", side=side, side_names=("level", "pass_rate"))
    table = EmbeddingTable.open(tmp_path / "x.safetensors")
    assert table.side_names == ("level", "pass_rate")
    np.testing.assert_array_equal(table.side[table.index([IDS[4], IDS[0]])], side[[4, 0]])


def test_without_side_features_there_are_none(path):
    table = EmbeddingTable.open(path)
    assert table.side_names == () and table.side.shape == (50, 0)


def test_a_file_that_is_replaced_while_it_is_open_changes_nothing(path):
    table = EmbeddingTable.open(path)
    before = table.rows(IDS)
    write_embeddings(path, IDS[:10], vectors(10) + 1, model="another")
    np.testing.assert_array_equal(table.rows(IDS), before)
    assert len(EmbeddingTable.open(path)) == 10
