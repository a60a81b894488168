"""PyTorch module -> verified ONNX variants -> an installed model of a Triton repository.

    spec.py         what a person says about the model            spec_check.py  what it lacks
    sources/        specs of model folders and files              samples/       the models that TritonPilot ships
    pipeline.py     the steps in order                            making.py      makes the variants
    judging.py      what each is worth                            onnx_original.py  an ONNX file in a module's place
    trace.py        PyTorch -> fp32 ONNX                          recipes/       fp32 ONNX -> other precisions
    verify.py       original against variant, real data           measures.py    cosine, agreement, paired interval
    speed.py        rows/s side by side                           gate.py        may it be installed? (pure)
    plan.py         what an installation would change             install.py     all or nothing into the repository
    config_file.py  config.pbtxt from the graph, checked          config_merge.py  with a person's own edits
    manifest.py     the record beside each variant                versions.py    versions beside each other
    steps.py        status, duration and log of each step         report.py      what came of it
    graph_digest.py what a graph computes, as a digest
    onnx_files.py   graphs, with weights beside them over 2 GB    triton_releases.py  what each release reads
    tensorrt/       profiles, plans, and their configurations     torch_package.py  the module itself as a file

Importing it loads neither torch nor onnxruntime.
"""

from pilot_export.pipeline import export_model
from pilot_export.spec import ExportSpec, load_spec

__all__ = ["ExportSpec", "export_model", "load_spec"]
