"""The parts of the torch_pipeline backend; `model.py` beside this package is what Triton imports.

config (dict) -> settings.py       what config.pbtxt says, unknown keys are errors        no torch
file          -> module_source.py  the module in eval mode, and never a pickle
                 machine.py        the CPUs that the process may use
                 archive.py        whether a torch.export package may be opened
                 signature.py      types of tensors; the config that a package asks for
requests      -> pipeline.py       pre | compute | post, several batches on their way at once
                 cancellation.py   who has been cancelled while waiting, and is not computed
                 grouping.py       requests of one shape -> one batch, and back
                 device.py         where the module runs: CPU, or CUDA with copy streams
                 buffers.py        the pool of (pinned) buffers
                 timeline.py       when each stage of each batch began and ended
"""
