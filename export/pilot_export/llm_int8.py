"""Weights of an LLM's layers in 8 bit, stored once: the format that vLLM's W8A8 models have too.

    x.weight          [N, K] int8       layers' projections only; embeddings, norms and lm_head stay as they are
    x.weight_scale    [N, 1] float32    weight = int8 * scale of its row; largest magnitude of the row / 127

config.json says so in `quantization_config` (compressed-tensors, "int-quantized"): activations are quantised when they
are computed. The inflight backend computes in 8 bit where model.json asks for it and its CPU kernels run.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pilot_export.errors import SpecError
from pilot_export.llm_verify import logits_of
from pilot_llm.tokenizer import Tokenizer

_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class Int8Comparison:
    """8 bit against float32 on the prompts that exports are compared on; `mean_loss` is per token, in nats."""

    num_positions: int
    num_agreeing: int
    mean_loss: float
    float32_mean_loss: float


def write_int8_folder(source: Path, target: Path, weights: Sequence[Path]) -> list[Path]:
    """Copy the model in `source` to `target` with 8-bit layers; gives the new weight files.

    Raises:
        SpecError: it is quantised already.
    """
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if config.get("quantization_config"):
        raise SpecError(f"{source} is quantised already (quantization_config in config.json)")
    for path in source.iterdir():
        if path.is_file() and path not in weights and path.name != _INDEX:
            shutil.copy(path, target)
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": _QUANTIZATION}, indent=2))
    file_of_tensor: dict[str, str] = {}
    for path in weights:
        tensors: dict[str, torch.Tensor] = {}
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                tensors.update(_stored(name, file.get_tensor(name)))
        save_file(tensors, target / path.name, {"format": "pt"})
        file_of_tensor |= dict.fromkeys(tensors, path.name)
    if (source / _INDEX).is_file():
        (target / _INDEX).write_text(json.dumps({"metadata": {}, "weight_map": file_of_tensor}, indent=2))
    return [target / path.name for path in weights]


def compare(float_folder: Path, int8_folder: Path, tokenizer: Tokenizer) -> Int8Comparison:
    """
    Raises:
        VerifyError: one of the two does not run here; 8 bit needs the backend's CPU kernels.
    """
    exact, targets = logits_of(float_folder, tokenizer)
    ours, _ = logits_of(int8_folder, tokenizer, quantization="int8")
    is_last = targets < 0
    losses = [float(torch.nn.functional.cross_entropy(logits[~is_last], targets[~is_last])) for logits in (ours, exact)]
    return Int8Comparison(
        num_positions=len(targets),
        num_agreeing=int((ours.argmax(dim=1) == exact.argmax(dim=1)).sum()),
        mean_loss=losses[0],
        float32_mean_loss=losses[1],
    )


def _stored(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    if not name.endswith("_proj.weight") or tensor.dim() != 2:
        return {name: tensor}
    weight = tensor.float()
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    values = (weight / torch.where(scale > 0, scale, 1)).round()
    return {name: values.to(torch.int8), f"{name}_scale": scale}


def _scheme(**differences: Any) -> dict[str, Any]:
    return {"num_bits": 8, "type": "int", "symmetric": True, **differences}


_QUANTIZATION: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": _scheme(strategy="channel", dynamic=False),
            "input_activations": _scheme(strategy="token", dynamic=True),
        }
    },
}
