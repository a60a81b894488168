"""A real model on the real server, end to end: it answers a question as anybody would."""

import json
from pathlib import Path
from typing import Any

import pytest

from pilot_client.chat_template import ChatTemplate
from pilot_client.generate import generate, stream
from pilot_testing.smollm2 import model_folder

pytestmark = pytest.mark.triton


def test_smollm2_knows_the_capital_of_france(tmp_path: Path, start_server: Any) -> None:
    folder = model_folder()
    version_dir = tmp_path / "smollm2" / "1"
    version_dir.mkdir(parents=True)
    (tmp_path / "smollm2" / "config.pbtxt").write_text('backend: "inflight"\n')
    settings = {"model": str(folder), "max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 64 << 20}
    (version_dir / "model.json").write_text(json.dumps(settings))
    url = start_server(tmp_path).grpc_url
    prompt = ChatTemplate.from_path(folder).render([{"role": "user", "content": "What is the capital of France?"}])
    params = {"temperature": 0, "max_tokens": 40}
    answer = generate(url, "smollm2", prompt, params, timeout_s=120)
    assert "Paris" in answer.text
    assert answer.finish_reasons == ("stop",)
    assert "".join(piece.text for piece in stream(url, "smollm2", prompt, params, timeout_s=120)) == answer.text
