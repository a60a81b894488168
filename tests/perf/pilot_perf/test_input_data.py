import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilot_client.model_config import parse
from pilot_perf.errors import InputDataError
from pilot_perf.input_data import MAX_ROWS, cut, random_rows, read_raw_rows, read_rows, write_rows
from pilot_perf.lengths import parse_lengths

TEXT_MODEL = parse(
    """
    name: "encoder" max_batch_size: 8
    input { name: "ids" data_type: TYPE_INT64 dims: [ -1 ] }
    input { name: "mask" data_type: TYPE_INT64 dims: [ -1 ] }
    input { name: "scale" data_type: TYPE_FP32 dims: [ 2 ] optional: true }
    """
)
PLAIN = parse('name: "m" max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }')


def test_a_row_has_no_batch_dimension(tmp_path: Path) -> None:
    samples = {"ids": np.arange(6, dtype=np.int64).reshape(2, 3), "text": np.array(["ä", "b"], dtype=np.object_)}
    content = json.loads(write_rows(samples, tmp_path / "rows.json").read_text())
    assert content["data"] == [
        {"ids": {"content": [0, 1, 2], "shape": [3]}, "text": {"content": ["ä"], "shape": [1]}},
        {"ids": {"content": [3, 4, 5], "shape": [3]}, "text": {"content": ["b"], "shape": [1]}},
    ]


def test_more_rows_than_are_useful_are_left_out(tmp_path: Path) -> None:
    path = write_rows({"x": np.zeros((MAX_ROWS + 5, 4))}, tmp_path / "rows.json")
    assert len(json.loads(path.read_text())["data"]) == MAX_ROWS
    np.savez(tmp_path / "rows.npz", x=np.zeros((MAX_ROWS + 5, 4)))
    assert len(read_rows(tmp_path / "rows.npz", PLAIN)) == MAX_ROWS


@pytest.mark.parametrize("samples", [{}, {"x": np.zeros((0, 2))}, {"x": np.zeros((1, 2)), "y": np.zeros((2, 2))}])
def test_inputs_without_equal_rows_are_refused(samples: dict[str, np.ndarray], tmp_path: Path) -> None:
    with pytest.raises(InputDataError, match="same number of rows, at least one"):
        write_rows(samples, tmp_path / "rows.json")


def test_bytes_that_are_no_text_are_refused_when_they_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", IMAGE=np.array([b"text", b"\xff\xd8\xff\xe0"]))
    with pytest.raises(InputDataError, match=r"holds bytes that are no UTF-8 text .*Let the model take TYPE_UINT8"):
        read_raw_rows(tmp_path / "rows.npz")


def test_an_npz_and_the_json_that_is_made_of_it_hold_the_same_rows(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", x=np.arange(8, dtype=np.float32).reshape(2, 4))
    rows = read_rows(tmp_path / "rows.npz", PLAIN)
    assert [row["x"].tolist() for row in rows] == [[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0]]
    made = write_rows({"x": np.stack([row["x"] for row in rows])}, tmp_path / "rows.json")
    assert [row["x"].tolist() for row in read_rows(made, PLAIN)] == [row["x"].tolist() for row in rows]


def test_values_take_the_type_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"data": [{"ids": [1, 2], "mask": {"content": [1, 0], "shape": [2]}}]}')
    (row,) = read_rows(tmp_path / "rows.json", TEXT_MODEL)
    assert {name: array.dtype for name, array in row.items()} == {"ids": np.int64, "mask": np.int64}


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.npz", "no zip"), ("a.json", "{"), ("a.json", "[]"), ("a.json", '{"data": []}'), ("a.json", '{"data": {}}')],
)
def test_a_file_that_is_neither_is_refused(name: str, content: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputDataError, match=r"cannot be read as input data|is no input data"):
        read_rows(tmp_path / name, PLAIN)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"y": [1.0]}, r"row 1: no input 'y'. The model takes x FP32 \[4\]"),
        ({}, "row 1: input 'x' is missing"),
        ({"x": [1.0, 2.0]}, r"input 'x' has shape \[2\], the model takes x FP32 \[4\]"),
        ({"x": {"content": [1.0] * 4, "shape": [1, 4]}}, r"has shape \[1, 4\].*without a batch dimension"),
        ({"x": {"content": [1.0] * 4, "shape": [3]}}, "cannot reshape"),
        ({"x": ["a", "b", "c", "d"]}, "input 'x' is FP32"),
        ({"x": {"b64": "AAAA"}}, "b64 is not read here"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input 'x': "),
    ],
)
def test_a_row_that_does_not_fit_the_model_is_one_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps({"data": [row]}))
    with pytest.raises(InputDataError, match=message) as error:
        read_rows(tmp_path / "rows.json", PLAIN)
    assert "\n" not in str(error.value)


def test_a_fraction_for_a_whole_number_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", ids=np.full((1, 3), 1.5), mask=np.ones((1, 3)))
    with pytest.raises(InputDataError, match="input 'ids' is INT64"):
        read_rows(tmp_path / "rows.npz", TEXT_MODEL)


def test_rows_are_cut_and_repeated_to_lengths_that_are_the_same_for_all_inputs(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", ids=np.tile([5, 6, 7], (50, 1)), mask=np.ones((50, 3), dtype=np.int64))
    rows = cut(read_rows(tmp_path / "rows.npz", TEXT_MODEL), TEXT_MODEL, parse_lengths("2-7"), seed=1)
    assert {len(row["ids"]) for row in rows} == set(range(2, 8))
    assert all(len(row["ids"]) == len(row["mask"]) for row in rows)
    longest = next(row for row in rows if len(row["ids"]) == 7)
    assert longest["ids"].tolist() == [5, 6, 7, 5, 6, 7, 5]


def test_lengths_need_a_free_dimension() -> None:
    with pytest.raises(InputDataError, match="lengths need an input with one free dimension"):
        cut([{"x": np.zeros(4)}], PLAIN, parse_lengths("3"), seed=0)


def test_random_rows_have_the_models_shapes_and_only_what_must_be_there() -> None:
    (row, *_) = random_rows(PLAIN, seed=0)
    assert (row["x"].shape, row["x"].dtype) == ((4,), np.float32)
    with pytest.raises(InputDataError, match=r"input ids INT64 \[-1\] has no fixed shape .*--input-data"):
        random_rows(TEXT_MODEL, seed=0)


def test_random_text_has_the_shape_of_its_input() -> None:
    config = parse('name: "m" input { name: "t" data_type: TYPE_STRING dims: [ 2, 3 ] }', "here")
    (first, *others) = random_rows(config, seed=1)
    assert first["t"].shape == (2, 3)
    assert {len(text) for text in first["t"].reshape(-1)} == {128}
    assert len({text for row in others for text in row["t"].reshape(-1)}) == 15 * 6
