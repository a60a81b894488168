"""Texts of a request -> token ids and attention mask, padded to one of a few lengths.

    lengths 8, 16, 24, ...
    request A  "Hi"                      4 tokens -> [1, 8]   \\ one batch of the encoder
    request B  "Good morning"            6 tokens -> [1, 8]   /
    request C  "One.", "Two, and three"  8 tokens -> [2, 8]   also in it: rows of a request have one length
    request D  a long sentence          19 tokens -> [1, 24]    a batch of its own

Triton calls execute() of an instance from a single thread; nothing is shared.
"""

import json
import os
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

# The texts of a request are few: threads of its own would only take the encoder's cores.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
_PARAMETERS = ("tokenizer", "lengths")


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        if set(parameters) != set(_PARAMETERS):
            raise pb_utils.TritonModelException(f"parameters are {sorted(parameters)}, must be {sorted(_PARAMETERS)}")
        _check_that_arrays_pass()
        version_dir = Path(args["model_repository"]) / args["model_version"]
        self._lengths = _lengths(parameters["lengths"])
        self._tokenizer = _load((version_dir / parameters["tokenizer"]).resolve(), self._lengths[-1])

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        texts = pb_utils.get_input_tensor_by_name(request, "text").as_numpy().reshape(-1)
        try:
            rows = self._tokenizer.encode_batch([text.decode() for text in texts])
        except UnicodeDecodeError as error:
            message = f"text is not UTF-8: {error.reason} at byte {error.start}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
        longest = max(len(row.ids) for row in rows)
        length = next(length for length in self._lengths if length >= longest)
        # Token 0 is padding, as in training.
        input_ids, attention_mask = (np.zeros((len(rows), length), dtype=np.int64) for _ in range(2))
        for index, row in enumerate(rows):
            input_ids[index, : len(row.ids)] = row.ids
            attention_mask[index, : len(row.ids)] = 1
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("input_ids", input_ids), pb_utils.Tensor("attention_mask", attention_mask)]
        )


def _lengths(text):
    """The padded lengths, shortest first."""
    try:
        lengths = sorted(int(word) for word in text.split(","))
    except ValueError:
        lengths = []
    if not lengths or lengths[0] < 2:
        raise pb_utils.TritonModelException(
            f"parameters {{ key: 'lengths' }} is {text!r}: whole numbers of at least 2 are needed, as in '16, 32, 64'"
        )
    return lengths


def _load(path, max_tokens):
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise pb_utils.TritonModelException(
            "the package tokenizers is not installed in the Python of this server: pip install tokenizers"
        ) from error
    if not path.is_file():
        raise pb_utils.TritonModelException(f"{path} is missing: make it with `tritonpilot export model minilm`")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer


def _check_that_arrays_pass():
    """Refuse a numpy that this server's stub was not built for: it would answer with garbage, and not say so."""
    sent = np.arange(1, 7, dtype=np.int64).reshape(2, 3)
    received = pb_utils.Tensor.from_dlpack("probe", pb_utils.Tensor("probe", sent)).as_numpy()
    if not np.array_equal(sent, received):
        raise pb_utils.TritonModelException(
            f'this server\'s Python stub cannot read arrays of numpy {np.__version__}: install "numpy<2"'
        )
