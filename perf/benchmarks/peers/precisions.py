"""What each precision of ours is, as fields of model.json."""

from collections.abc import Mapping
from typing import Any

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "fp32": {},
    # float32 arithmetic on a KV cache of float16, as OpenVINO and llama.cpp have it behind float32 weights.
    "fp32-kv16": {"kv_cache_dtype": "fp16"},
    "int8": {"quantization": "int8"},
    # On a KV cache of 8 bit, as OpenVINO has it unless it is told otherwise.
    "int8-kv8": {"quantization": "int8", "kv_cache_dtype": "int8"},
}
