"""Killing every job: compares what is left with an independent count.

``python -m bench.job_kills --kills 100`` kills each job a hundred times; ``--job archive`` one of
them. See ``child`` for what is killed and when, and ``scenarios`` for what is counted.
"""
