"""Filters as Spark columns over the pipeline's ``log`` table (R1).

``to_spark`` returns TRUE, FALSE or NULL for every row, ``matches`` TRUE or FALSE. The table needs
the columns that the filter reads, of ``topic``, ``key``, ``partition_key``, ``priority``,
``timestamp`` (``published_at``), ``size``, ``content_type`` and ``headers``, whose values are
``struct<s, i, d, b>``. It is meant for one filter or a few; use ``to_arrow.many`` for many, with
the columns that ``narrow`` selects. pyspark comes with the extra ``spark``; of the filters, only
this package imports it.
"""

from __future__ import annotations

from penstock.filters.to_spark.verdict import matches, narrow, to_spark

__all__ = ["matches", "narrow", "to_spark"]
