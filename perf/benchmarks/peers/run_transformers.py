"""transformers: its continuous batching, or with `--set static=true` its `generate` on left-padded batches."""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from protocol import THREADS, Stamps, in_static_batches, parse, report

arguments = parse(["fp32", "bf16"])

import torch  # noqa: E402
import transformers  # noqa: E402

_PADDING = 2
_DTYPE = torch.bfloat16 if arguments.precision == "bf16" else torch.float32


class _Stamper(transformers.StoppingCriteria):  # type: ignore[misc]
    """Called by `generate` after each token of the whole batch."""

    def __init__(self, stamps: Stamps, requests: Sequence[Mapping[str, Any]]) -> None:
        self._stamps, self._requests, self._num_tokens = stamps, requests, 0

    def __call__(self, token_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        self._num_tokens += 1
        for request in self._requests:
            if self._num_tokens <= request["max_tokens"]:
                self._stamps.hit(request["id"])
        return torch.zeros(len(token_ids), dtype=torch.bool)


@torch.inference_mode()
def _run_batch(model: Any, batch: Sequence[Mapping[str, Any]], stamps: Stamps) -> None:
    width, length = (max(len(row["prompt"]) for row in batch), max(row["max_tokens"] for row in batch))
    prompts = torch.full((len(batch), width), _PADDING)
    mask = torch.zeros_like(prompts)
    for index, row in enumerate(batch):
        prompts[index, width - len(row["prompt"]) :] = torch.tensor(row["prompt"])
        mask[index, width - len(row["prompt"]) :] = 1
    wishes = transformers.GenerationConfig(
        max_new_tokens=length, min_new_tokens=length, do_sample=False, eos_token_id=None, pad_token_id=_PADDING
    )
    stamper = transformers.StoppingCriteriaList([_Stamper(stamps, batch)])
    model.generate(prompts, attention_mask=mask, generation_config=wishes, stopping_criteria=stamper)


def _run_continuous(manager: Any, requests: Sequence[Mapping[str, Any]], name: str) -> Stamps:
    stamps, seen, num_finished = Stamps(), dict[str, int](), 0
    ids = {f"{name}-{request['id']}": request["id"] for request in requests}
    for request in requests:
        manager.add_request(
            request["prompt"],
            request_id=f"{name}-{request['id']}",
            max_new_tokens=request["max_tokens"],
            eos_token_id=-1,
            streaming=True,
        )
    while num_finished < len(requests):
        output = manager.get_result(timeout=120)
        if output is None:
            raise SystemExit("continuous batching stands still")
        new = len(output.generated_tokens) - seen.get(output.request_id, 0)
        if new > 0:
            seen[output.request_id] = len(output.generated_tokens)
            stamps.hit(ids[output.request_id], new)
        num_finished += output.is_finished()
    return stamps


def main() -> None:
    from transformers.generation.configuration_utils import ContinuousBatchingConfig

    torch.set_num_threads(THREADS)
    started_s = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        arguments.model, dtype=_DTYPE, attn_implementation="sdpa"
    ).eval()
    name = f"transformers {transformers.__version__}"
    if arguments.options.get("static", False):
        load_s = time.perf_counter() - started_s
        run = in_static_batches(arguments.in_flight, partial(_run_batch, model))
        report(arguments, run, engine=f"{name} static", load_s=load_s)
        return
    wishes = transformers.GenerationConfig(max_new_tokens=128, do_sample=False, eos_token_id=-1, pad_token_id=_PADDING)
    batching = ContinuousBatchingConfig(
        page_size=64, num_blocks=256, max_batch_tokens=512, max_requests_per_batch=arguments.in_flight
    )
    with (
        torch.inference_mode(),
        model.continuous_batching_context_manager(
            generation_config=wishes, continuous_batching_config=batching, block=True, timeout=5
        ) as manager,
    ):
        load_s = time.perf_counter() - started_s
        report(
            arguments,
            lambda requests, workload: _run_continuous(manager, requests, workload),
            engine=f"{name} continuous batching",
            load_s=load_s,
        )


main()
