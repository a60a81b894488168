"""Errors of an export: each is a step that failed. The repository is as it was before.

ExportError
  SpecError       the spec cannot be loaded, or lacks something
  TraceError      the module cannot be turned into an ONNX graph
  ConvertError    an LLM cannot be turned into the files that the backend loads
  VariantError    a precision variant cannot be made
  TensorRtError   TensorRT does not take the graph, or its shapes
  VerifyError     the variants cannot be compared with the original
  InstallError    the files cannot be put into the repository
"""

from pilot_base.errors import PilotError


class ExportError(PilotError):
    """A step of the export failed; `step` names it, in the message too."""

    step = "export"

    def __init__(self, message: str) -> None:
        super().__init__(f"{self.step}: {message}")


class SpecError(ExportError):
    step = "spec"


class TraceError(ExportError):
    step = "trace"


class ConvertError(ExportError):
    step = "convert"


class VariantError(ExportError):
    step = "variant"


class TensorRtError(ExportError):
    step = "tensorrt"


class VerifyError(ExportError):
    step = "verify"


class InstallError(ExportError):
    step = "install"
