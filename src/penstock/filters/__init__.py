"""Filters: SQL boolean expressions over message metadata that decide routing (R1).

``parse`` checks a text and gives a :class:`Filter`; the language is in docs/filters.md.
A filter's tree (``tree``) has one meaning (``values``) and several compilers, each a function
of the tree and held to the golden cases in ``cases``: ``to_python`` for one message,
``to_arrow`` for a batch, ``to_arrow.many`` for many filters over a batch, ``to_spark`` for a
Spark column; ``to_sql`` belongs here when it comes. pyarrow and numpy are imported by
``to_arrow`` only and pyspark by ``to_spark`` only, so that importing this package stays cheap.
"""

from __future__ import annotations

from penstock.filters.explain import Blame, Explanation, explain
from penstock.filters.filter import Filter, Selection, parse, topic_test
from penstock.filters.index import FilterIndex

__all__ = [
    "Blame",
    "Explanation",
    "Filter",
    "FilterIndex",
    "Selection",
    "explain",
    "parse",
    "topic_test",
]
