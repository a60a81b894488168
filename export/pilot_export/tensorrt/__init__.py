"""TensorRT plans from the variants that are made for a GPU.

    profile.py    shapes that an engine is built for (pure)
    library.py    `tensorrt`, or `tensorrt_rtx` where there is no GPU: one API, one code
    build.py      parse, check the profile, build, keep engine and timing cache
    runner.py     run a plan on a GPU, to compare it with the original
    deploy.py     model folders and scripts for a GPU box, beside the variant

Precision lives in the graph (fp16, bf16, QDQ) and the network is strongly typed: TensorRT 11 has no other way, and 10
takes this one too. A plan of TensorRT-RTX proves that NVIDIA's parser and builder take the graph and its profile; it
is not a file that Triton's tensorrt backend loads.
"""
