"""PyTorch module -> verified ONNX variants -> an installed model of a Triton repository.

    spec.py         what a person says about the model            spec_check.py  what it lacks
    trace.py        PyTorch -> fp32 ONNX
    pipeline.py     the steps in order                            recipes.py     fp32 ONNX -> other precisions
    steps.py        status, duration and log of each step         verify.py      original against variant, real data
    gate.py         may it be installed? (pure)                   measures.py    cosine, agreement, paired interval
    install.py      all or nothing into the repository            speed.py       rows/s side by side
    config_file.py  config.pbtxt: written once, then checked      manifest.py    the record beside each variant
    samples/        the models that TritonPilot ships

Importing it loads neither torch nor onnxruntime.
"""

from pilot_export.pipeline import export_model
from pilot_export.spec import ExportSpec, load_spec

__all__ = ["ExportSpec", "export_model", "load_spec"]
