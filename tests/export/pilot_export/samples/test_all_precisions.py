"""Every precision of every sample, in one export each: what is not served says why."""

from pathlib import Path

import pytest

from pilot_export import export_model, load_spec
from pilot_export.judging import INSTALLED_TARGETS
from pilot_export.recipes import RECIPES
from pilot_export.spec import SAMPLES


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SAMPLES)
def test_all_precisions_of_a_sample_are_made_or_say_why_not(name: str, tmp_path: Path) -> None:
    report = export_model(
        load_spec(name), tmp_path / "repository", build_dir=tmp_path / "build", precisions=list(RECIPES)
    )
    rows = {variant.precision: variant for variant in report.variants}
    assert set(rows) == set(RECIPES)
    assert rows["fp32"].status == "installed"
    for precision, row in rows.items():
        assert (row.status in ("failed gate", "not made")) == bool(row.reasons), (precision, row.reasons)
        assert (row.manifest is None) == (row.status == "not made"), precision
        if row.target not in INSTALLED_TARGETS:
            assert row.status != "installed", precision
            assert row.speed is None or row.manifest is not None, precision
    # bf16 of a convolution needs a newer Triton than the embedded one.
    made = {precision for precision, row in rows.items() if row.status != "not made"}
    assert {"fp32", "fp32-opt", "fp16", "int8-trt"} <= made
