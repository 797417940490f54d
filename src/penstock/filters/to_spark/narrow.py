"""The columns of the ``log`` table that many filters read, and no others.

Data for Python is written row by row and value by value, and a map of structs has many values:
three headers take three times as long as separate columns of the parts that matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from penstock.filters.to_arrow.batch import flat_name

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.filters.to_arrow.many import ManyFilters

__all__ = ["MOST_FLAT", "narrow"]

#: The most headers that get separate columns. Filters that name more read the map: a message has
#: only a few of them, and every column costs something in every row.
MOST_FLAT: Final = 8


def narrow(many: ManyFilters) -> list[Column]:
    """The columns that ``many`` reads."""
    columns = [f.col("timestamp" if name == "published_at" else name) for name in many.fields]
    if len(many.headers) > MOST_FLAT:
        return [*columns, f.col("headers")]
    for number, (name, parts) in enumerate(many.headers.items()):
        value = f.try_element_at(f.col("headers"), f.lit(name))
        columns += [value.getField(part).alias(flat_name(number, part)) for part in parts]
    return columns
