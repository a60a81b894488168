import json
from pathlib import Path

import numpy as np
import pytest

from pilot_perf.errors import InputDataError
from pilot_perf.input_data import MAX_ROWS, prepare_file, write_rows


def test_a_row_has_no_batch_dimension(tmp_path: Path) -> None:
    samples = {"ids": np.arange(6, dtype=np.int64).reshape(2, 3), "text": np.array(["ä", "b"], dtype=np.object_)}
    content = json.loads(write_rows(samples, tmp_path / "rows.json").read_text())
    assert content["data"] == [
        {"ids": {"content": [0, 1, 2], "shape": [3]}, "text": {"content": ["ä"], "shape": [1]}},
        {"ids": {"content": [3, 4, 5], "shape": [3]}, "text": {"content": ["b"], "shape": [1]}},
    ]


def test_more_rows_than_are_useful_are_left_out(tmp_path: Path) -> None:
    path = write_rows({"x": np.zeros((MAX_ROWS + 5, 1))}, tmp_path / "rows.json")
    assert len(json.loads(path.read_text())["data"]) == MAX_ROWS


@pytest.mark.parametrize("samples", [{}, {"x": np.zeros((0, 2))}, {"x": np.zeros((1, 2)), "y": np.zeros((2, 2))}])
def test_inputs_without_equal_rows_are_refused(samples: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="same number of rows, at least one"):
        write_rows(samples, tmp_path / "rows.json")


def test_an_npz_becomes_json_and_json_stays_where_it_is(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.ones((2, 4), dtype=np.float32))
    made = prepare_file(tmp_path / "rows.npz", tmp_path)
    assert json.loads(made.read_text())["data"][1]["x"] == {"content": [1.0] * 4, "shape": [4]}
    assert prepare_file(made, tmp_path / "elsewhere") == made


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.npz", "no zip"), ("a.json", "{"), ("a.json", "[]"), ("a.json", '{"data": []}'), ("a.json", '{"data": {}}')],
)
def test_a_file_that_is_neither_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputDataError, match=r"cannot be read as input data|is no input data"):
        prepare_file(tmp_path / name, tmp_path)
