"""Who attends on a GPU: the first that says it can and agrees with the reference; the log says why no other does."""

import logging

import pytest
import torch

from pilot_llm.attention.choose import choose_flat_kernel, first_that_serves, why_wrong
from pilot_llm.attention.flat_paged import FlatKernel
from pilot_llm.attention.scores import ScoreRule
from pilot_llm.attention.torch_paged import CacheShape
from pilot_llm.attention.varlen_paged import VarlenKernel
from pilot_llm.step_inputs import StepInputs
from pilot_testing.flat_attention import varlen_by_the_book

SHAPE = CacheShape(num_blocks=8, block_size=4, num_kv_heads=2, head_dim=8, windows=(None, 100))


class Broken:
    """A kernel with one fault."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._kernel = VarlenKernel(varlen_by_the_book)

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, inputs: StepInputs, window: int | None
    ) -> torch.Tensor:
        if self._fault == "no window":
            return self._kernel(query, keys, values, inputs, None)
        if self._fault == "reads garbage":
            return self._kernel(query, keys, values, inputs, window) + 0 * values.sum()
        output = self._kernel(query, keys, values, inputs, window)
        if self._fault == "many keys":
            return output * 1.1 if inputs.max_context_len > 1000 else output
        if self._fault == "wide windows":
            return self._kernel(query, keys, values, inputs, 64 if window is not None and window > 64 else window)
        return output * 1.1 if inputs.num_decodes == inputs.num_sequences else output  # wrong in decodes only


def verdict(kernel: FlatKernel, dtype: torch.dtype = torch.float32) -> str | None:
    return why_wrong(kernel, SHAPE, compute_dtype=dtype, cache_dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_right_kernel_passes_the_probe(dtype: torch.dtype) -> None:
    assert verdict(VarlenKernel(varlen_by_the_book), dtype) is None


@pytest.mark.parametrize(
    ("fault", "dtype"),
    [
        ("no window", torch.float32),
        ("reads garbage", torch.float32),
        ("decodes", torch.float32),
        ("many keys", torch.bfloat16),  # where the tolerance is wide and the values are small
        ("wide windows", torch.float32),
    ],
)
def test_wrong_kernel_does_not_pass(fault: str, dtype: torch.dtype) -> None:
    reason = verdict(Broken(fault), dtype)
    assert reason is not None
    assert "differs from the reference by" in reason


def test_first_that_serves_is_chosen_and_the_log_says_why_not_the_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def compiler_fails() -> FlatKernel:
        raise RuntimeError("no compiler")

    good = VarlenKernel(varlen_by_the_book)
    chosen = first_that_serves(
        {
            "absent": lambda: "is not installed",
            "failing": compiler_fails,
            "wrong": lambda: Broken("decodes"),
            "good": lambda: good,
            "late": lambda: pytest.fail("asked although another one serves"),
        },
        verdict,
    )
    assert chosen is good
    assert [record.getMessage().partition(" by 0")[0] for record in caplog.records] == [
        "attention not by absent: is not installed",
        "attention not by failing: RuntimeError: no compiler",
        "attention not by wrong: on a probe it differs from the reference",
        "attention by good",
    ]


def test_nobody_serves() -> None:
    assert first_that_serves({"absent": lambda: "is not installed"}, verdict) is None


def test_model_that_changes_its_scores_gets_the_plain_one_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    chosen = choose_flat_kernel(
        SHAPE,
        compute_dtype=torch.bfloat16,
        cache_dtype=torch.bfloat16,
        device=torch.device("cuda"),
        score_rules=(None, ScoreRule(softcap=1.0)),
    )
    assert chosen is None
    assert "plain gather attention: the model does something to its scores" in caplog.text
