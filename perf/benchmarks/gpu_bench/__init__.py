"""Parts of `gpu.py`."""
