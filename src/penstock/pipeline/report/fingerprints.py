"""Fingerprints: errors that differ only in names and numbers count as the same error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["fingerprint", "pattern"]

#: Regular expressions (Java's) and their replacements, applied in this order.
_REPLACED: Final = (
    (r"0[xX][0-9a-fA-F]+", "<hex>"),
    (r"\b[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>"),
    (r"\b\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?", "<time>"),
    (r"'[^']*'", "'…'"),
    (r'"[^"]*"', '"…"'),
    (r"\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{12,}\b", "<hex>"),
    (r"[0-9]+([.,][0-9]+)*", "<n>"),
)
_MOST: Final = 300
_DIGITS: Final = 12


def pattern(error: Column) -> Column:
    """The first line of an error, with the variable parts replaced."""
    text = F.trim(F.split_part(F.coalesce(error, F.lit("")), F.lit("\n"), F.lit(1)))
    for found, instead in _REPLACED:
        text = F.regexp_replace(text, found, instead)
    return F.substring(F.when(text == "", "(no error was given)").otherwise(text), 1, _MOST)


def fingerprint(error: Column) -> Column:
    """A short name for the pattern, for selecting by it."""
    return F.substring(F.sha2(pattern(error), 256), 1, _DIGITS)
