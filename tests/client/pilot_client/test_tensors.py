"""What a person types becomes the array that the model wants, or a refusal that helps."""

from pathlib import Path

import numpy as np
import pytest

from pilot_client.errors import BadRequestError
from pilot_client.repository import ModelMetadata, TensorMetadata
from pilot_client.tensors import as_array, from_arguments

MODEL = ModelMetadata(
    "m",
    ("1",),
    "onnxruntime_onnx",
    (TensorMetadata("x", "FP32", (-1, 3)), TensorMetadata("s", "BYTES", (-1, 1)), TensorMetadata("n", "INT8", (2,))),
    (),
)


def test_json_takes_the_models_type_and_gets_a_batch_dimension() -> None:
    arrays = from_arguments(("x=[1, 2, 3]", 's=[["ü"], ["b"]]', "n=[1, -1]"), MODEL)
    assert arrays["x"].dtype == np.float32
    assert arrays["x"].shape == (1, 3)
    assert arrays["s"].shape == (2, 1)
    assert arrays["n"].tolist() == [1, -1]


def test_files_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3)))
    np.savez(tmp_path / "all.npz", x=np.ones((2, 3), np.float32), n=np.array([1, 2], np.int8))
    assert from_arguments((f"x=@{tmp_path / 'x.npy'}",), MODEL)["x"].dtype == np.float32
    assert set(from_arguments((f"@{tmp_path / 'all.npz'}",), MODEL)) == {"x", "n"}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("y=[1]", r"no input 'y'\. m takes x FP32 \[-1, 3\]; s BYTES"),
        ("x", "NAME=JSON"),
        ("x=[1,", "x: not JSON"),
        ("x=[[1, 2], [3]]", "rows have different lengths"),
        ('x=["a"]', "input 'x' is FP32"),
        ("n=[1.5, 2]", "cannot hold all the given values"),
        ("n=[300, 1]", "cannot hold all the given values"),
        ("x=[1, 2, 1e40]", "cannot hold all the given values"),
        ("x=[1, 2, null]", "which has no null"),
        ("x=@nowhere.npy", r"nowhere\.npy is no"),
        ("@nowhere.npz", r"nowhere\.npz is no"),
    ],
)
def test_what_does_not_fit_is_refused(argument: str, message: str) -> None:
    with pytest.raises(BadRequestError, match=message):
        from_arguments((argument,), MODEL)


def test_an_input_that_is_given_twice_is_refused() -> None:
    with pytest.raises(BadRequestError, match="'n' is given twice"):
        from_arguments(("n=[1, 2]", "n=[3, 4]"), MODEL)


def test_nan_and_infinity_that_were_meant_are_sent() -> None:
    assert from_arguments(("x=[NaN, Infinity, 1]",), MODEL)["x"].tolist()[0][1:] == [float("inf"), 1.0]


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(BadRequestError, match="allow_pickle"):
        from_arguments((f"x=@{tmp_path / 'x.npy'}",), MODEL)


def test_bytes_stay_bytes() -> None:
    assert as_array(np.array([[b"\xff"]]), MODEL.inputs[1]).tolist() == [[b"\xff"]]
