"""Filters: SQL boolean expressions over message metadata that decide routing (R1).

``parse`` checks a text and gives a :class:`Filter`; the language is in docs/filters.md.
A filter's tree (``tree``) has one meaning (``values``) and several compilers: ``to_python``
for one message, ``to_arrow`` for batches; ``to_sql`` and ``to_spark`` belong here when they
come, each a function of the tree and held to the golden cases in ``cases``. pyarrow is
imported by ``to_arrow`` only, so that importing this package stays cheap.
"""

from __future__ import annotations

from penstock.filters.explain import Blame, Explanation, explain
from penstock.filters.filter import Filter, parse
from penstock.filters.index import FilterIndex

__all__ = ["Blame", "Explanation", "Filter", "FilterIndex", "explain", "parse"]
