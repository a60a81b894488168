"""A checkpoint in vLLM's compressed-tensors format: int8 weights per output channel, int8 activations per token.

Run in vLLM's own environment: python convert_w8a8.py SOURCE TARGET
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file


def main(source: Path, target: Path) -> None:
    target.mkdir(parents=True)
    tensors: dict[str, torch.Tensor] = {}
    for name, weight in load_file(source / "model.safetensors").items():
        weight = weight.float()
        if name.endswith("_proj.weight"):
            scale = weight.abs().amax(dim=1, keepdim=True) / 127
            tensors[name] = (weight / scale).round().clamp(-127, 127).to(torch.int8)
            tensors[name.replace(".weight", ".weight_scale")] = scale
        else:
            tensors[name] = weight
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    for path in source.glob("*.json"):
        if path.name not in ("config.json", "model.json", "export.json"):
            shutil.copy(path, target)
    config = json.loads((source / "config.json").read_text())
    group = {
        "targets": ["Linear"],
        "weights": _scheme("channel", dynamic=False),
        "input_activations": _scheme("token", dynamic=True),
        "output_activations": None,
    }
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }
    (target / "config.json").write_text(json.dumps(config, indent=1))


def _scheme(strategy: str, *, dynamic: bool) -> dict[str, Any]:
    fixed = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}
    return {
        **fixed,
        "observer": "minmax",
        "observer_kwargs": {},
        "actorder": None,
        "strategy": strategy,
        "dynamic": dynamic,
    }


main(Path(sys.argv[1]), Path(sys.argv[2]))
