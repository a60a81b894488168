"""Finds the fastest configuration of a served model within a latency budget, with perf_analyzer, and proves it."""
