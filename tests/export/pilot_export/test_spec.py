"""Specs are found, and what they lack is named before anything slow runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pilot_export.errors import SpecError
from pilot_export.spec import load_spec
from pilot_export.spec_check import check_spec
from pilot_testing.specs import doubler_spec, rows

SPEC_FILE = """\
from neighbour import VALUE
from pilot_testing.specs import doubler_spec

def spec():
    return doubler_spec(name="from_" + VALUE)

def broken():
    raise KeyError("weights")

def undone():
    raise RuntimeError("two\\nlines")

def leaving():
    raise SystemExit(3)

def nothing():
    return 3
"""


@pytest.fixture
def spec_file(tmp_path: Path) -> Path:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "neighbour.py").write_text('VALUE = "file"\n')
    (folder / "my_spec.py").write_text(SPEC_FILE)
    return folder / "my_spec.py"


def test_a_file_is_a_spec_and_may_import_its_neighbours(spec_file: Path) -> None:
    assert load_spec(str(spec_file)).name == "from_file"
    assert load_spec(f"{spec_file}:spec").source == f"{spec_file}:spec"


def test_a_module_and_function_are_a_spec() -> None:
    assert load_spec("pilot_testing.specs:doubler_spec").name == "doubler"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nosuch", r"'nosuch' is neither a sample \(minilm, .*\), nor file\.py"),
        ("nowhere/nosuch.py", r"no file nowhere/nosuch\.py"),
        ("pilot_testing.specs:nosuch", "has no function 'nosuch'"),
        ("{file}:broken", r"broken\(\) failed: KeyError: 'weights'"),
        ("{file}:undone", r"undone\(\) failed: RuntimeError: two lines$"),
        ("{file}:leaving", r"leaving\(\) failed: SystemExit: 3"),
        (":spec", "nor a module that can be imported"),
        ("{file}:nothing", r"returned int, not pilot_export\.ExportSpec"),
    ],
)
def test_what_is_no_spec_is_named(spec_file: Path, name: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(name.format(file=spec_file))


def test_a_file_with_a_syntax_error_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def spec(:\n")
    with pytest.raises(SpecError, match=r"bad\.py cannot be imported: SyntaxError"):
        load_spec(str(tmp_path / "bad.py"))


def _with_nan() -> np.ndarray[Any, Any]:
    data = rows()
    data[7, 2] = np.nan
    return data


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "a/b"}, "name 'a/b'"),
        ({"name": 5}, "name 5"),
        ({"outputs": "y"}, r"outputs is the text 'y': give a tuple"),
        ({"example": {"x": [[1.0, 2.0]]}}, r"example: x is no numpy array .* but \[\[1\.0, 2\.0\]\]"),
        ({"samples": {"x": rows(0)}}, "samples has no rows"),
        ({"free_axes": {"mask": {1: "length"}}}, r"free_axes names \['mask'\], example has \['x'\]"),
        ({"assets": {"vocab.txt": Path("/nowhere/vocab.txt")}}, "asset 'vocab.txt': no file /nowhere/vocab.txt"),
        ({"outputs": ("x",)}, "differently from the inputs"),
        ({"example": {"x": rows(1)}}, "example has 1 row"),
        ({"evaluation": [{"x": rows(50)}]}, "50 rows, too few .* at least 200"),
        ({"evaluation": [{"x": _with_nan()}, {"x": rows(3)}]}, "evaluation batch 0: x holds NaN"),
        ({"evaluation": [{"x": rows().astype(np.float64)}]}, "x is float64 .* example is float32"),
        ({"evaluation": [{"z": rows()}]}, r"inputs \['z'\], example has \['x'\]"),
        ({"evaluation": [{"x": rows()[:, :3]}]}, "axis 1 of x is 3, example has 4; name it in free_axes"),
        ({"evaluation": [{"x": rows(2)}] * 150}, "never varies 'batch'"),
        ({"free_axes": {"x": {1: "length"}}}, "never varies 'length'"),
        ({"samples": {"x": rows().astype(np.int32)}}, "samples: x is int32"),
        ({"max_batch_size": 0}, "max_batch_size is 0"),
        ({"calibration": [{"x": rows(99)}]}, "calibration has 99 rows, too few .* at least 100"),
        ({"calibration": [{"x": _with_nan()}]}, "calibration batch 0: x holds NaN or infinity; clean the data"),
        ({"labels": {"z": ("a",)}}, "labels are given for 'z', outputs are y"),
        ({"labels": {"y": ("a", "b\nc")}}, r"labels of 'y': 'b\\nc' cannot be a line"),
        ({"config_extra": "max_batch_size: 3"}, "config_extra sets max_batch_size, which comes from the graph"),
        ({"config_extra": "dynamic_batchin { }"}, 'config_extra:1: .* no field named "dynamic_batchin"'),
    ],
)
def test_what_a_spec_lacks_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_spec(doubler_spec(**changes))


def test_axes_of_one_name_have_one_length() -> None:
    two = {"x": rows(), "m": rows(299)}
    example = {"x": rows(2), "m": rows(2)}
    with pytest.raises(SpecError, match="'batch' is 300 and 299 in one batch"):
        check_spec(doubler_spec(example=example, evaluation=[two], samples=example))
