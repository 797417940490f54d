"""Benchmarks: ``python -m bench``. Every figure is a ratio taken inside one run."""
