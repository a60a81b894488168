"""Where guessing the next tokens pays: texts that repeat their prompt and texts that do not, one at a time and many."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from llm_bench.race import OURS, Entrant

_GUESSES = (None, 2, 4, 8)
_MANY = 16
_TOKENS = 96
_SAMPLED = {"temperature": 0.8, "seed": 1}

_NOTES = (
    "The bridge over the river was closed in March after the flood had damaged two of its four piers.",
    "The library opens at nine in the morning and closes at eight in the evening, except on Sundays.",
    "Water that freezes in a bottle can break the glass, since ice takes more room than water does.",
    "The train to the coast leaves every hour from platform six and takes about two hours and a half.",
)
_SUBJECTS = ("a lighthouse", "a lost letter", "the first snow", "a clever fox", "an old clock", "a long road")


def text_requests(checkpoint: Path) -> dict[str, list[dict[str, Any]]]:
    """Workloads by name, each for one request and for many at once; prompts as the chat template puts them."""
    from pilot_client.chat_template import ChatTemplate
    from pilot_llm.tokenizer import HfTokenizer

    tokenizer, template = HfTokenizer.from_folder(checkpoint), ChatTemplate.from_path(checkpoint)

    def request(index: int, question: str, params: dict[str, Any]) -> dict[str, Any]:
        text = template.render([{"role": "user", "content": question}])
        prompt = tokenizer.encode(text, add_special_tokens=False)
        return {"id": index, "prompt": prompt, "max_tokens": _TOKENS, "params": params}

    repeat = [f"Repeat this text word by word, three times:\n{note}" for note in _NOTES]
    tell = [f"Write a short story about {subject}." for subject in _SUBJECTS]
    workloads = {}
    for name, questions, params in (("repeating", repeat, {}), ("plain", tell, {}), ("plain sampled", tell, _SAMPLED)):
        for count in (1, _MANY):
            chosen = [questions[index % len(questions)] for index in range(count)]
            workloads[f"{name} x {count}"] = [request(index, text, params) for index, text in enumerate(chosen)]
    return workloads


def speculation_entrants(precisions: Sequence[str], workloads: Sequence[str]) -> list[Entrant]:
    return [
        Entrant(OURS, precision, _options(guess), (workload,))
        for precision in precisions
        for workload in workloads
        for guess in _GUESSES
    ]


def speculation_table(rows: Sequence[dict[str, Any]]) -> str:
    """Tokens/s over that without guesses, medians over the runs; accepted is the share of the guessed tokens."""
    lines = [
        f"{'text':20}{'precision':10}{'guessed':>8}{'tokens/s':>10}{'ratio':>7}{'accepted':>10}{'tokens a step':>15}"
    ]
    for workload, precision in dict.fromkeys((row.get("workload"), row["precision"]) for row in rows):
        plain = None
        for guess in _GUESSES:
            chosen = [
                row
                for row in rows
                if (row.get("workload"), row["precision"], row["options"]) == (workload, precision, _options(guess))
            ]
            if workload is None or not chosen:
                continue
            rate = median(row["output_tokens_per_s"] for row in chosen)
            plain = plain or rate
            counts = chosen[0]["speculation"]
            accepted = f"{counts['accepted'] / counts['guessed']:.0%}" if counts["guessed"] else "-"
            a_step = f"{1 + counts['accepted'] / counts['drafts']:.2f}" if counts["drafts"] else "-"
            lines.append(
                f"{workload:20}{precision:10}{guess or 0:8}{rate:10.1f}{rate / plain:7.2f}{accepted:>10}{a_step:>15}"
            )
    return "\n".join(lines)


def _options(guess: int | None) -> dict[str, Any]:
    if guess is None:
        return {}
    lookup = {"method": "ngram", "num_speculative_tokens": guess, "prompt_lookup_max": 4, "prompt_lookup_min": 2}
    return {"speculative_config": lookup}
