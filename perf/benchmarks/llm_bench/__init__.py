"""Parts of the benchmark `perf/benchmarks/llm.py`."""
