"""Where a spec comes from, by what the command line names:

    minilm, module:function, file.py[:function]   spec.load_spec: a function that returns an ExportSpec
    folder with config.json                       huggingface.py: an encoder of transformers
    file.onnx                                     onnx_file.py
    file.pt, file.ts                              torchscript.py

The last two know no data: `--data rows.npz` gives it (arrays.py).
"""

from dataclasses import replace
from pathlib import Path

from pilot_export.errors import SpecError
from pilot_export.sources.given import Given
from pilot_export.spec import SAMPLES, ExportSpec, load_spec
from pilot_export.spec_check import check_spec

TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts", ".torchscript")


def load_source(name_or_path: str, given: Given | None = None) -> ExportSpec:
    """The spec of `name_or_path`, checked.

    Raises:
        SpecError: nothing there, it lacks something, or `given` holds what this kind of source does not take.
    """
    given = given or Given()
    path = Path(name_or_path)
    if path.suffix == ".onnx":
        from pilot_export.sources.onnx_file import onnx_spec

        spec = onnx_spec(path, given)
    elif path.suffix in TORCHSCRIPT_SUFFIXES:
        from pilot_export.sources.torchscript import torchscript_spec

        spec = torchscript_spec(path, given)
    elif path.is_dir() and name_or_path not in SAMPLES:
        from pilot_export.sources.huggingface import huggingface_spec

        spec = huggingface_spec(path, given)
    else:
        if options := [word for word in given.words() if word.startswith("--")]:
            raise SpecError(f"{', '.join(options)}: a spec in Python says this itself; leave the option out")
        return load_spec(name_or_path)
    check_spec(spec)
    return replace(spec, source_options=given.words())
