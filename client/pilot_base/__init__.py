"""What every TritonPilot package shares: the root of the errors, pinned downloads, and what the machine allows.

It imports nothing beyond the standard library, so that it costs nothing to depend on.
"""
