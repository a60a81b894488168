"""Which ONNX files a release of Triton reads: each carries one onnxruntime, and that reads up to one opset.

Versions of onnxruntime are those of the release's build.py; opset and IR version were found by loading files into
those versions.
"""

from dataclasses import dataclass

from pilot_export.errors import TraceError

# The release of the embedded server.
DEFAULT_RELEASE = "24.10"


@dataclass(frozen=True)
class OnnxLimit:
    """The newest that an onnxruntime reads."""

    opset: int
    ir_version: int


# onnxruntime (major.minor) -> limit.
_LIMITS = {
    "1.16": OnnxLimit(19, 9),
    "1.17": OnnxLimit(20, 9),
    "1.18": OnnxLimit(21, 10),
    "1.19": OnnxLimit(21, 10),
    "1.20": OnnxLimit(21, 10),
    "1.21": OnnxLimit(22, 10),
    "1.22": OnnxLimit(22, 10),
    "1.23": OnnxLimit(23, 11),
    "1.24": OnnxLimit(25, 13),
    "1.27": OnnxLimit(26, 13),
    "1.28": OnnxLimit(26, 13),
}
# Release (year.month) -> onnxruntime.
_ONNXRUNTIME = {
    **dict.fromkeys(("24.01", "24.02"), "1.16"),
    **dict.fromkeys(("24.03", "24.04"), "1.17"),
    **dict.fromkeys(("24.05", "24.06", "24.07"), "1.18"),
    **dict.fromkeys(("24.08", "24.09", "24.10", "24.11"), "1.19"),
    **dict.fromkeys(("24.12", "25.01", "25.02"), "1.20"),
    **dict.fromkeys(("25.03", "25.04"), "1.21"),
    **dict.fromkeys(("25.05", "25.06", "25.07"), "1.22"),
    **dict.fromkeys(("25.08", "25.09", "25.10", "25.11", "25.12", "26.01"), "1.23"),
    **dict.fromkeys(("26.02", "26.03", "26.04", "26.05", "26.06"), "1.24"),
    "26.07": "1.27",
    "26.08": "1.28",
}
RELEASES = tuple(_ONNXRUNTIME)


def onnx_limit(release: str) -> OnnxLimit:
    """What the onnxruntime of `release` reads.

    Raises:
        TraceError: the release is not in the table.
    """
    if release not in _ONNXRUNTIME:
        raise TraceError(f"Triton release {release!r} is not in the table: {RELEASES[0]} to {RELEASES[-1]} are")
    return _LIMITS[_ONNXRUNTIME[release]]


def first_reader(opset: int, ir_version: int) -> str | None:
    """The first release that reads such a graph; None for none in the table."""
    limits = ((name, onnx_limit(name)) for name in RELEASES)
    return next((name for name, limit in limits if limit.opset >= opset and limit.ir_version >= ir_version), None)


def check_version(opset: int, ir_version: int, release: str) -> None:
    """Refuse a graph that is too new for `release`.

    Raises:
        TraceError: names what is too new, the first release that reads it, and how to make the file older.
    """
    limit = onnx_limit(release)
    if opset <= limit.opset and ir_version <= limit.ir_version:
        return
    first = first_reader(opset, ir_version)
    since = f"Triton {first} reads it first" if first else "no release in the table reads it"
    if opset > limit.opset:
        raise TraceError(
            f"the graph has opset {opset}, Triton {release} reads up to {limit.opset} ({since}): export it with a "
            f"lower opset, or convert it: onnx.version_converter.convert_version(model, {limit.opset})"
        )
    raise TraceError(
        f"the graph has IR version {ir_version}, Triton {release} reads up to {limit.ir_version} ({since}): "
        f"load it with onnx, set model.ir_version = {limit.ir_version}, and save it"
    )
