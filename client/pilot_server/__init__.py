"""Finds a Triton server, starts it, and leaves nothing behind: embedded, in a container, or already running."""

from pilot_server.places import backends_dir, model_repository_dir

__all__ = ["backends_dir", "model_repository_dir"]
