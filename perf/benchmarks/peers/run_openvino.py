"""OpenVINO GenAI: ContinuousBatchingPipeline on token ids."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from protocol import THREADS, Stamps, parse, report

arguments = parse(["fp32", "bf16", "int8", "int4"])

import numpy as np  # noqa: E402
import openvino  # noqa: E402
import openvino_genai  # noqa: E402

# Unless it is told otherwise, it computes in bfloat16 on a CPU that has that, whatever the weights are.
PROPERTIES = {"fp32": {"INFERENCE_PRECISION_HINT": "f32"}, "bf16": {"INFERENCE_PRECISION_HINT": "bf16"}}
WEIGHTS = {"bf16": "fp32"}


def main() -> None:
    if arguments.precision == "bf16" and "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise SystemExit("this CPU has no bfloat16 arithmetic")
    started_s = time.perf_counter()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = arguments.in_flight
    scheduler.max_num_batched_tokens = arguments.options.get("max_num_batched_tokens", 256)
    scheduler.cache_size = 2  # GB
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    pipeline = openvino_genai.ContinuousBatchingPipeline(
        str(arguments.data / WEIGHTS.get(arguments.precision, arguments.precision)),
        scheduler,
        "CPU",
        {"INFERENCE_NUM_THREADS": THREADS, **PROPERTIES.get(arguments.precision, {})},
    )
    load_s = time.perf_counter() - started_s
    num_rounds = 0

    def run(requests: Sequence[Mapping[str, Any]], name: str) -> Stamps:
        nonlocal num_rounds
        num_rounds += 1
        stamps, handles = Stamps(), {}
        for request in requests:
            wishes = openvino_genai.GenerationConfig()
            wishes.max_new_tokens = wishes.min_new_tokens = request["max_tokens"]
            wishes.ignore_eos, wishes.do_sample = True, False
            prompt = openvino.Tensor(np.array([request["prompt"]], dtype=np.int64))
            handles[request["id"]] = pipeline.add_request(num_rounds * 1_000_000 + request["id"], prompt, wishes)
        while pipeline.has_non_finished_requests():
            pipeline.step()
            for request_id, handle in handles.items():
                while handle.can_read():
                    for output in handle.read().values():
                        stamps.hit(request_id, len(output.generated_ids))
        return stamps

    report(arguments, run, engine=f"openvino-genai {openvino_genai.get_version()}", load_s=load_s)


main()
