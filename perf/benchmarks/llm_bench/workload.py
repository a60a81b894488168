"""Three workloads, drawn from a seed: token ids and output lengths, so that no tokenizer and no EOS differs.

W1    64 requests, all there at the start, 16 in flight: prompts 32..512 tokens (log-uniform), outputs 16..128
W2    the same requests behind one shared prefix of 256 tokens
W3    one request, 128 + 128 tokens
short, long    8 requests of 128 + 16 tokens, and one of 768 + 8, for what single ideas buy
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

IN_FLIGHT = 16
NAMES = ("W1", "W2", "W3")
_PREFIX_TOKENS = 256
# Ordinary tokens of SmolLM2's vocabulary: below are special ones.
_TOKEN_IDS = (17, 49_152)


@dataclass(frozen=True)
class Workload:
    """Requests by workload: {"id", "prompt" (token ids), "max_tokens"} each; `warm_up` shares no prefix with them."""

    requests: dict[str, list[dict[str, Any]]]
    warm_up: list[dict[str, Any]]

    def write(self, path: Path, names: tuple[str, ...]) -> None:
        workloads = {name: self.requests[name] for name in names}
        path.write_text(json.dumps({"in_flight": IN_FLIGHT, "workloads": workloads, "warm_up": self.warm_up}))

    def num_tokens(self, name: str) -> tuple[int, int]:
        """(prompt tokens, output tokens)."""
        rows = self.requests[name]
        return sum(len(row["prompt"]) for row in rows), sum(row["max_tokens"] for row in rows)


def draw_workload(seed: int = 20260101, num_requests: int = 64) -> Workload:
    """The same requests for everybody with this seed; fewer for a quick look."""
    random = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = random.integers(*_TOKEN_IDS, size=count).tolist()
        return drawn

    def request(index: int, prompt: list[int], max_tokens: int) -> dict[str, Any]:
        return {"id": index, "prompt": prompt, "max_tokens": max_tokens}

    prompt_lengths = np.exp(random.uniform(np.log(32), np.log(513), num_requests)).astype(int).tolist()
    output_lengths = random.integers(16, 129, num_requests).tolist()
    mixed = [
        request(index, tokens(prompt), output)
        for index, (prompt, output) in enumerate(zip(prompt_lengths, output_lengths, strict=True))
    ]
    prefix = tokens(_PREFIX_TOKENS)
    behind_prefix = [request(row["id"], prefix + row["prompt"], row["max_tokens"]) for row in mixed]
    single = [request(0, tokens(128), 128)]
    warm_up = [request(index, tokens(96), 8) for index in range(4)]
    short = [request(index, tokens(128), 16) for index in range(8)]
    long = [request(0, tokens(768), 8)]
    return Workload({"W1": mixed, "W2": behind_prefix, "W3": single, "short": short, "long": long}, warm_up)
