"""Finds what makes a Triton server refuse a model, or load it and serve it wrongly, without starting one.

    repository.check_repository(folder) -> findings
        model.py       one model folder: its config as a message, and where in the text each field stands (source.py)
        rules/         one file per subject; a rule is a function (model, surroundings) -> findings
        graph.py       the tensors of an ONNX file, read without its weights

The rules are those of Triton's core (model_config_utils.cc, ensemble_utils.cc) and of its onnxruntime backend, and each
is held against the real server by the tests.
"""
