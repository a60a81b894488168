"""Which shapes an engine is built for: smallest, usual and largest of each input, from the spec's own data."""

from collections.abc import Mapping
from dataclasses import dataclass

from pilot_export.spec import ExportSpec

USUAL_BATCH_SIZE = 8

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """Shapes by input. TensorRT tunes for `usual`, and refuses what is not between `smallest` and `largest`."""

    smallest: Mapping[str, Shape]
    usual: Mapping[str, Shape]
    largest: Mapping[str, Shape]


def profile_of(spec: ExportSpec) -> Profile:
    """Batches of 1 to the spec's most; other free axes from the shortest to the longest that the spec's data holds."""
    batches = [spec.samples, spec.example, *spec.evaluation, *spec.edge_cases.values()]
    smallest, usual, largest = {}, {}, {}
    for name, sample in spec.samples.items():
        shapes = [batch[name].shape[1:] for batch in batches]
        smallest[name] = (1, *map(min, *shapes))
        usual[name] = (min(USUAL_BATCH_SIZE, spec.max_batch_size), *sample.shape[1:])
        largest[name] = (spec.max_batch_size, *map(max, *shapes))
    return Profile(smallest, usual, largest)


def shapes_text(shapes: Mapping[str, Shape]) -> str:
    """As trtexec and onnxruntime write them: ids:1x16,mask:1x16."""
    return ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes.items())
