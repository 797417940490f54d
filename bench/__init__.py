"""Benchmarks: ``python -m bench``. Every figure is a ratio measured within one run."""
