"""What 8 bit costs in quality: perplexity of real text, and how often the best token stays that of float32.

    python perf/benchmarks/llm_quality.py MODEL_FOLDER [--windows 8] [--tokens 512] [--json FILE]

MODEL_FOLDER is what `tritonpilot export llm` made (build/model_repository/smollm2/1). The text is Python's own language
reference (pydoc_data.topics, part of the standard library), in windows at seeded places. All columns see the same
tokens. A ratio's interval is over windows: twice the standard error of the mean difference of their losses.
"""

import argparse
import json
import math
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from pilot_llm.batch import SequenceStep, build_batch
from pilot_llm.config import EngineConfig
from pilot_llm.runner import load_runner
from pilot_llm.tokenizer import HfTokenizer

BLOCK_SIZE = 16
VARIANTS: dict[str, dict[str, str]] = {
    "float32": {},
    "int8 products": {"quantization": "int8", "kv_cache_dtype": "float32"},
    "float16 KV": {"kv_cache_dtype": "fp16"},
    "int8 KV": {"kv_cache_dtype": "int8"},
    "int8 products, float16 KV": {"quantization": "int8"},
    "int8 products, int8 KV": {"quantization": "int8", "kv_cache_dtype": "int8"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=512, help="of each window")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    windows = text_windows(arguments.model, arguments.windows, arguments.tokens)
    rows = []
    reference: tuple[np.ndarray, np.ndarray] | None = None
    for name, settings in VARIANTS.items():
        losses, best = measure(arguments.model, windows, settings)
        reference = reference or (losses, best)
        difference = losses - reference[0]
        row = {
            "variant": name,
            "perplexity": math.exp(losses.mean()),
            "ratio": math.exp(difference.mean()),
            "ratio_interval": 2 * float(difference.std(ddof=1)) / math.sqrt(len(difference)),
            "agreement": float((best == reference[1]).mean()),
        }
        rows.append(row)
        print(
            f"{name:28} perplexity {row['perplexity']:7.3f}  {100 * (row['ratio'] - 1):+6.2f}% "
            f"+- {100 * row['ratio_interval']:.2f}  same best token {100 * row['agreement']:.1f}%",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def text_windows(folder: Path, num_windows: int, num_tokens: int) -> list[list[int]]:
    ids = HfTokenizer.from_folder(folder).encode("\n".join(topics[name] for name in sorted(topics)))
    starts = np.random.default_rng(0).integers(0, len(ids) - num_tokens, num_windows)
    return [list(ids[start : start + num_tokens]) for start in starts]


def measure(folder: Path, windows: list[list[int]], settings: dict[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Mean loss of each window, and the best token at every position of all windows."""
    num_blocks = -(-len(windows[0]) // BLOCK_SIZE)
    runner = load_runner(
        EngineConfig(
            model=folder,
            tokenizer=folder,
            device="cpu",
            block_size=BLOCK_SIZE,
            num_gpu_blocks_override=num_blocks,
            **settings,  # type: ignore[arg-type]
        )
    )
    losses, best = [], []
    for window in windows:
        step = SequenceStep(window, 0, range(num_blocks), range(len(window)))
        logits = runner.forward(build_batch([step], BLOCK_SIZE))
        losses.append(cross_entropy(logits[:-1], torch.tensor(window[1:])).item())
        best.append(logits.argmax(dim=1).numpy())
    return np.array(losses), np.concatenate(best)


if __name__ == "__main__":
    main()
