"""The ensemble minilm_text: sentences in, embeddings out, whatever else is in its batch."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pilot_cli.main import cli
from pilot_client import repository, statistics
from pilot_client.errors import BadRequestError, ModelNotReadyError
from pilot_client.infer import infer
from pilot_export.samples import minilm, sentences
from pilot_export.samples.probe import probe_task
from pilot_export.verify import onnx_runner
from pilot_server import model_repository_dir
from pilot_server.embedded import start_embedded
from pilot_server.running import RunningServer

pytestmark = pytest.mark.triton

STEPS = ("minilm_tokenizer", "minilm_encoder", "minilm_postprocess")
# From 2 tokens to more than the longest that is encoded, so that every padded length occurs.
TEXTS = ["", "Hi.", *[" ".join(["All of the words count"] * count) for count in (1, 2, 3, 4, 6, 9, 14, 130)]]


@pytest.fixture(scope="module")
def models(minilm_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    models = tmp_path_factory.mktemp("text") / "models"
    for name in (*STEPS, "minilm_text"):
        shutil.copytree(model_repository_dir() / name, models / name)
    shutil.copytree(minilm_repository / "minilm", models / "minilm")
    return models


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[RunningServer]:
    running = start_embedded(models, load=[*STEPS, "minilm_text"])
    yield running
    running.stop(drain_s=0.0)


def embed(server: RunningServer, *texts: Any) -> dict[str, np.ndarray]:
    return infer(server.grpc_url, "minilm_text", {"text": np.array(texts, dtype=np.object_).reshape(-1, 1)})


def test_a_sentence_is_the_same_alone_and_in_batches_of_other_lengths(server: RunningServer) -> None:
    alone = {text: embed(server, text)["embedding"][0] for text in TEXTS}
    before = statistics.read(server.grpc_url, "minilm_encoder")
    with ThreadPoolExecutor(16) as pool:
        # Neighbours in length follow each other: some differ in length, and are padded to one.
        asked = [text for text in TEXTS for _ in range(6)]
        together = list(pool.map(lambda text: (text, embed(server, text)["embedding"][0]), asked))
    ran = statistics.read(server.grpc_url, "minilm_encoder").since(before)
    assert ran.inference_count == len(asked)
    assert (ran.mean_batch_size or 0) > 1.2  # Requests of about equal length did go together.
    for text, embedding in together:
        assert np.allclose(embedding, alone[text], atol=1e-5), text


def test_the_embedding_is_the_encoder_s_own(server: RunningServer, models: Path) -> None:
    run = onnx_runner(models / "minilm" / "1" / "model.fp32.onnx")
    for text in TEXTS:
        answer = embed(server, text)
        assert np.allclose(answer["embedding"], run(minilm.tokenize([text]))[minilm.OUTPUT], atol=1e-5), text
        assert np.array_equal(answer["embedding_int8"], np.rint(answer["embedding"] * 127).astype(np.int8))


def test_texts_of_one_request_keep_their_order(server: RunningServer) -> None:
    answer = embed(server, *TEXTS)["embedding"]
    for text, embedding in zip(TEXTS, answer, strict=True):
        assert np.allclose(embedding, embed(server, text)["embedding"][0], atol=1e-5), text


def test_a_linear_probe_tells_sentiment_from_the_served_embeddings(server: RunningServer) -> None:
    clear = [item for item in sentences.rated_sentences() if abs(item.rating) >= 2 and len(item.text) < 60]
    chosen = [clear[index] for index in np.random.default_rng(0).permutation(len(clear))[:480]]
    labels = np.array([item.rating > 0 for item in chosen])
    batches = [[item.text for item in chosen[start : start + 32]] for start in range(0, len(chosen), 32)]
    embedded = [embed(server, *batch) for batch in batches]
    task = probe_task("sentiment", "embedding", labels[352:], (), labels[:352])
    assert task.fit(embedded[:11])(embedded[11:]).mean() > 0.75


def test_what_is_not_text_fails_alone(server: RunningServer) -> None:
    with ThreadPoolExecutor(8) as pool:
        good = pool.map(lambda _: embed(server, "Good.")["embedding"].shape, range(16))
        with pytest.raises(BadRequestError, match="text is not UTF-8"):
            embed(server, b"\xff\xfe")
        assert set(good) == {(1, 384)}


def test_plain_text_on_the_command_line_is_enough(server: RunningServer) -> None:
    result = CliRunner().invoke(cli, ["infer", "minilm_text", "The soup is cold.", "Hi", "--url", server.grpc_url])
    assert "embedding  float32[2, 384]" in result.output


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ("8, 16, 24", "0, 16", "whole numbers of at least 2"),
        ('key: "lengths"', 'key: "length"', "must be"),
        ("minilm/1/tokenizer.json", "nosuch.json", "is missing: make it with `tritonpilot export model minilm`"),
    ],
)
def test_a_wrong_parameter_fails_the_load_with_its_mend(
    server: RunningServer, models: Path, line: str, instead: str, message: str
) -> None:
    config = models / "minilm_tokenizer" / "config.pbtxt"
    right = config.read_text()
    assert line in right
    try:
        config.write_text(right.replace(line, instead))
        with pytest.raises(ModelNotReadyError, match=message):
            repository.load(server.grpc_url, "minilm_tokenizer")
    finally:
        config.write_text(right)
