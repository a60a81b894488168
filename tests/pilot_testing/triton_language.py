"""Kernels in Triton's language, on a CPU."""

import importlib.util
import os

import pytest

needs_interpreter = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs the wheel triton, and its interpreter (tests/conftest.py asks for it where there is no GPU)",
)
