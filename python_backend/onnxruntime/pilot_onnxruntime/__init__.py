"""The parts of the onnxruntime backend; `model.py` beside this package is what Triton imports.

config (dict) -> settings.py, providers.py   how the session is opened     no Triton, no onnxruntime
graph         -> signature.py                what the graph takes and gives, and whether the config agrees
                 autocomplete.py             the config that the graph asks for
file          -> session.py                  the opened session, or one clear error
requests      -> batching.py                 arrays in, one run per equal shapes, arrays out
"""
