"""A file of another model, in a version that the other one does not serve any more."""

from collections.abc import Iterator

from pilot_check.borrowed import borrowed_files
from pilot_check.finding import Finding
from pilot_check.model import Model, Surroundings


def check_borrowed_version(model: Model, surroundings: Surroundings) -> Iterator[Finding]:
    for found in borrowed_files(model.config):
        other = surroundings.models.get(found.model)
        if other is None or not other.versions or int(other.versions[-1].name) == found.version:
            continue
        place: tuple[str | int, ...] = ("default_model_filename",)
        if found.key is not None:
            place = ("parameters", model.source.entry("parameters", found.key), "value")
        latest = other.versions[-1].name
        yield model.warning(
            "borrowed-version",
            f"opens a file of version {found.version} of {found.model!r}, whose latest is {latest}",
            f"write {latest} in its place, and load the model again",
            *place,
        )
