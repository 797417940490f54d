"""Filters: SQL boolean expressions over message metadata that decide routing (R1).

``parse`` checks a text and returns a :class:`Filter`; docs/filters.md describes the language.
A filter's tree (``tree``) has one meaning (``values``) and several compilers, each a function
of the tree that has to pass the golden cases in ``cases``: ``to_python`` for one message,
``to_arrow`` for a batch, ``to_arrow.many`` for many filters over a batch, ``to_spark`` for a
Spark column. Only ``to_arrow`` imports pyarrow and numpy, and only ``to_spark`` imports pyspark,
so importing this package stays cheap.
"""

from __future__ import annotations

from penstock.filters.editor import Completion, Completions, Diagnosis, complete, validate
from penstock.filters.explain import Blame, Explanation, explain
from penstock.filters.filter import Filter, Selection, parse, topic_test
from penstock.filters.index import FilterIndex

__all__ = [
    "Blame",
    "Completion",
    "Completions",
    "Diagnosis",
    "Explanation",
    "Filter",
    "FilterIndex",
    "Selection",
    "complete",
    "explain",
    "parse",
    "topic_test",
    "validate",
]
