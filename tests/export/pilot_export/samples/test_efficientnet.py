"""The sample classifier: the published network, judged on labelled photos, and served under its configuration."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pilot_base.errors import PilotError
from pilot_base.packages import PinnedPackage, fetch
from pilot_cli.main import cli
from pilot_export.pipeline import export_model
from pilot_export.samples import efficientnet, photos
from pilot_export.spec import load_spec
from pilot_server import model_repository_dir
from pilot_server.running import RunningServer

# The publisher's own code, to compare with.
PUBLISHED = PinnedPackage(
    "efficientnet-lite-pytorch", "0.1.0", "ce0fe869b0e829aceafc32f84275a40c0e3418d19216401b03f695f5f20cbc41", 1
)


def test_the_module_is_the_published_network(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.syspath_prepend(fetch(PUBLISHED))
    from efficientnet_lite_pytorch import EfficientNet  # type: ignore[import-not-found]

    published = EfficientNet.from_name("efficientnet-lite0")
    published.load_state_dict(torch.load(efficientnet.weights_file(), weights_only=True))
    image = torch.from_numpy(photos.cuts(photos.labelled_photos()[:2], 1, efficientnet.IMAGE_SIZE)[0])
    with torch.inference_mode():
        expected = published.eval()(((image.float() - 127) / 128).permute(0, 3, 1, 2))
        assert torch.allclose(efficientnet.classifier()(image), expected, atol=1e-4)


def test_it_names_most_of_the_labelled_photos() -> None:
    import torch

    labelled = photos.labelled_photos()
    images = np.stack([photos.read_photo(photo.path, efficientnet.IMAGE_SIZE) for photo in labelled])
    with torch.inference_mode():
        found = efficientnet.classifier()(torch.from_numpy(images)).argmax(dim=1).tolist()
    right = sum(label == photo.label for label, photo in zip(found, labelled, strict=True))
    assert len(labelled) == 20
    assert right >= 16


def test_no_photo_judges_that_has_calibrated() -> None:
    spec = efficientnet.spec(cuts_per_photo=15)
    judged = {row.tobytes() for batch in spec.evaluation for row in batch["image"]}
    calibrated = {row.tobytes() for batch in spec.calibration for row in batch["image"]}
    assert len(judged) == 16 * 15
    assert not judged & calibrated


def test_a_picture_that_a_telephone_has_turned_is_turned_back(tmp_path: Path) -> None:
    from PIL import Image

    upright = photos.labelled_photos()[0].path
    with Image.open(upright) as image:
        exif = image.getexif()
        exif[0x0112] = 6  # Orientation: a quarter to the right, to be seen as it was taken.
        image.rotate(90, expand=True).save(tmp_path / "turned.png", exif=exif)
    assert np.array_equal(photos.read_photo(tmp_path / "turned.png", 64), photos.read_photo(upright, 64))


def test_what_is_no_picture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    for path in (tmp_path / "notes.txt", tmp_path / "nosuch.jpg"):
        with pytest.raises(PilotError, match="is no picture that can be read"):
            efficientnet.answer(dict, [str(path)])


def test_the_committed_labels_are_the_spec_s() -> None:
    committed = (model_repository_dir() / "efficientnet" / "labels.logits.txt").read_text().splitlines()
    assert tuple(committed) == photos.class_names()


@pytest.mark.slow
@pytest.mark.triton
@pytest.mark.timeout(1500)
def test_the_whole_export_is_served_and_names_a_photo(
    tmp_path: Path, start_server: Callable[..., RunningServer]
) -> None:
    shutil.copytree(model_repository_dir() / "efficientnet", tmp_path / "models" / "efficientnet")
    report = export_model(load_spec("efficientnet"), tmp_path / "models", build_dir=tmp_path / "build")
    fp32 = report.variants[0].quality
    assert fp32 is not None
    assert fp32.task is not None
    assert fp32.task.original > 0.8
    server = start_server(tmp_path / "models")

    def infer(*arguments: str) -> str:
        return CliRunner().invoke(cli, ["infer", "efficientnet", *arguments, "--url", server.grpc_url]).output

    (dalmatian,) = [photo for photo in photos.labelled_photos() if photo.label == 251]
    assert "Dalmatian" in infer(str(dalmatian.path)).splitlines()[1]
    image = photos.read_photo(dalmatian.path, efficientnet.IMAGE_SIZE)
    np.save(tmp_path / "image.npy", image)
    assert ":251:Dalmatian" in infer("--input", f"image=@{tmp_path / 'image.npy'}", "--classes", "3")
