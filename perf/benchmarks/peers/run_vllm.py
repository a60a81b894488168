"""vLLM on a CPU: the engine core in process, on token ids. Compiled, as vLLM runs by itself, for minutes at load;
`--set eager=true` leaves that out."""

import os
import time
from collections.abc import Mapping, Sequence
from typing import Any

from protocol import Stamps, parse, report

arguments = parse(["fp32", "bf16", "int8"])
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

import vllm  # noqa: E402


def main() -> None:
    started_s = time.perf_counter()
    is_int8 = arguments.precision == "int8"
    llm = vllm.LLM(
        model=str(arguments.data / "w8a8" if is_int8 else arguments.model),
        dtype="bfloat16" if arguments.precision == "bf16" else "float32",
        max_model_len=1024,
        max_num_seqs=arguments.in_flight,
        enable_prefix_caching=True,
        enforce_eager=arguments.options.get("eager", False),
        disable_log_stats=True,
    )
    load_s = time.perf_counter() - started_s
    engine = llm.llm_engine

    def run(requests: Sequence[Mapping[str, Any]], name: str) -> Stamps:
        stamps, seen = Stamps(), dict[str, int]()
        for request in requests:
            params = vllm.SamplingParams(
                temperature=0, max_tokens=request["max_tokens"], ignore_eos=True, detokenize=False
            )
            engine.add_request(f"{name}-{request['id']}", {"prompt_token_ids": request["prompt"]}, params)
        ids = {f"{name}-{request['id']}": request["id"] for request in requests}
        while engine.has_unfinished_requests():
            for output in engine.step():
                new = len(output.outputs[0].token_ids) - seen.get(output.request_id, 0)
                if new > 0:
                    seen[output.request_id] = len(output.outputs[0].token_ids)
                    stamps.hit(ids[output.request_id], new)
        return stamps

    report(arguments, run, engine=f"vllm {vllm.__version__}", load_s=load_s)


main()
