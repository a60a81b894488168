"""A server's command line tells whether its models may unload themselves."""

import pytest

from pilot_llm.triton_control import is_explicit


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], False),
        (["--model-control-mode=explicit", "--load-model=*"], True),
        (["--model-control-mode", "explicit"], True),
        (["--model-control-mode=EXPLICIT"], True),
        (["--model-control-mode=poll"], False),
        (["--model-control-mode=explicit", "--model-control-mode=none"], False),
        (["--model-control-mode"], False),
    ],
)
def test_only_explicit_model_control_lets_a_model_unload_itself(options: list[str], expected: bool) -> None:
    assert is_explicit(["tritonserver", "--model-repository=/models", *options]) is expected
