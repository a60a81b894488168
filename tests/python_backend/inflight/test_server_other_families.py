"""A model that runs through transformers, in the real backend: the stub finds transformers, and streams its answers."""

from pathlib import Path
from typing import Any

import pytest

from pilot_client.generate import generate, stream
from pilot_llm.tokenizer import HfTokenizer
from pilot_testing.hf_models import reference_greedy, save_random
from pilot_testing.tiny_llm import make_repository

pytestmark = [pytest.mark.triton, pytest.mark.slow]


def test_a_model_of_another_family_answers_as_transformers_does(tmp_path: Path, start_server: Any) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_repository(tmp_path, max_model_len=128) / "tiny" / "1"
    tokenizer = HfTokenizer.from_folder(folder)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 256}
    save_random(folder, "gpt_neox", {"vocab_size": tokenizer.vocab_size, **sizes})
    model = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer.encode("Once upon a time")
    # An answer that ends inside a character gives one replacement for what is left, decoding at once may give more.
    expected = tokenizer.decode(reference_greedy(model, prompt, 12)).rstrip("\ufffd")
    server = start_server(tmp_path, log_file=tmp_path / "server.log", ready_timeout_s=300.0)
    params = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    answer = generate(server.grpc_url, "tiny", prompt, params)
    assert answer.text.rstrip("\ufffd") == expected
    assert "".join(piece.text for piece in stream(server.grpc_url, "tiny", prompt, params)) == answer.text
    assert "gpt_neox through transformers on cpu" in (tmp_path / "server.log").read_text()
