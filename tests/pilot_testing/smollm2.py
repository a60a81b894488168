"""SmolLM2-135M-Instruct for tests: exported once into the cache, and transformers' greedy answers to real prompts.

What is kept has a key of what it is made from, so that a change of the export makes it anew.
"""

import hashlib
import json
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pilot_base.packages import cache_dir
from pilot_testing.hf_models import reference_greedy
from pilot_testing.made_once import one_process_at_a_time

NUM_TOKENS = 24

QUESTIONS = (
    "Why is the sky blue?",
    "Name three planets of the solar system and say one thing about each.",
    "Write a short poem about the sea.",
    "What is the capital of France, and what is it known for?",
    "Explain to a child how a plane flies.",
    "Translate into French: I would like a cup of coffee, please.",
    "List the ingredients of a simple tomato soup.",
    "What is 17 times 3? Show how you get there.",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet, and when?",
    "Summarise in one sentence: The old bridge was closed in 1998 after a flood had damaged two of its four piers. "
    "The town could not pay for repairs, so people used the ferry for nine years, until a new bridge was opened.",
    "Give me five words that rhyme with light.",
    "How do I politely decline an invitation?",
    "What happens to water when it freezes?",
    "Tell me a joke about a cat and a computer.",
    "Describe the colour red to somebody who has never seen it.",
)


def model_folder() -> Path:
    """The exported model's version folder; the first call of a machine takes a minute or two."""
    from pilot_export import gguf_model, llm

    sources = [Path(str(module.__file__)) for module in (gguf_model, llm)]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    folder = cache_dir() / "tests" / f"smollm2-{key}"
    with one_process_at_a_time("smollm2"):
        if not (folder / "smollm2" / "1" / "export.json").exists():
            llm.export_llm("smollm2", folder, is_verified=False)
    return folder / "smollm2" / "1"


def prompts(folder: Path) -> list[list[int]]:
    """The questions as the chat template puts them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=False
        )
        for question in QUESTIONS
    ]
    return [list(tokenizer(text, add_special_tokens=False).input_ids) for text in texts]


def reference_model(folder: Path) -> Any:
    """The model as transformers loads it, in float32."""
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def reference_answer(folder: Path, model: Any, prompt: list[int]) -> list[int]:
    """What transformers' own generate gives for the prompt alone, whether it ends or not. Kept in the cache."""
    weights_sha256 = json.loads((folder / "export.json").read_text())["weights_sha256"]
    made_from = [prompt, NUM_TOKENS, weights_sha256, version("transformers")]
    key = hashlib.sha256(json.dumps(made_from).encode()).hexdigest()[:16]
    path = cache_dir() / "tests" / "smollm2-answers" / f"{key}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(reference_greedy(model, prompt, NUM_TOKENS)))
    stored: list[int] = json.loads(path.read_text())
    return stored


def best_after(model: Any, prompt: list[int], answer: list[int]) -> list[int]:
    """transformers' best token behind the prompt and each part of the answer: the answer itself, if it is greedy.

    One forward instead of one per token.
    """
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
    return [int(token) for token in logits.argmax(dim=-1)]
