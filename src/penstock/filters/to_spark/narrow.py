"""The columns of the ``log`` table that many filters read, and no others.

What goes to Python is written row by row and value by value, and a map of structs has many of
them: three headers take three times as long as the parts of them that matter in columns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f

from penstock.filters.to_arrow.batch import flat_name

if TYPE_CHECKING:
    from pyspark.sql import Column

    from penstock.filters.to_arrow.many import ManyFilters

__all__ = ["MOST_FLAT", "narrow"]

#: Headers that get columns of their own. Filters that name more read the map: a message has but a
#: few of them, and a column costs something in every row.
MOST_FLAT: Final = 8


def narrow(many: ManyFilters) -> list[Column]:
    """What ``many`` reads."""
    columns = [f.col("timestamp" if name == "published_at" else name) for name in many.fields]
    if len(many.headers) > MOST_FLAT:
        return [*columns, f.col("headers")]
    for number, (name, parts) in enumerate(many.headers.items()):
        value = f.try_element_at(f.col("headers"), f.lit(name))
        columns += [value.getField(part).alias(flat_name(number, part)) for part in parts]
    return columns
