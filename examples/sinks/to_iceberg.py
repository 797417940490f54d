"""Consumes a queue into an Iceberg table, each message once.

    penstock flow apply examples/sinks/to_iceberg.py --once

The data files of a micro-batch and its number, a property of the table, are one commit of the
table, so a micro-batch that a killed query runs again is not written again. It needs
``pip install 'pyiceberg[sql-sqlite]'``; another catalog is another argument of ``load_catalog``.
"""

from __future__ import annotations

import os

from pyiceberg.catalog import Catalog, load_catalog
from pyspark.sql import DataFrame

from penstock.pipeline import Flow

FOLDER = os.environ.get("ICEBERG_FOLDER", "/lake/iceberg")
TABLE = ("shop", "orders")
#: A commit that lost to another one fails, and the flow runs the micro-batch again. Repeated by
#: the library it would not look at the number again.
PROPERTIES = {"commit.retry.num-retries": "0"}


def catalog() -> Catalog:
    return load_catalog(
        "lake", type="sql", uri=f"sqlite:///{FOLDER}/catalog.db", warehouse=f"file://{FOLDER}"
    )


def amounts(rows: DataFrame) -> DataFrame:
    orders = rows.selectExpr(
        "id", "from_json(CAST(value AS string), 'customer string, amount double') AS o"
    )
    return orders.selectExpr("id", "o.customer", "o.amount")


def write(frame: DataFrame, query: str, number: int) -> None:
    rows = frame.toArrow()
    found = catalog()
    found.create_namespace_if_not_exists(TABLE[0])
    table = found.create_table_if_not_exists(TABLE, schema=rows.schema, properties=PROPERTIES)
    written = f"penstock.{query}"
    if number <= int(table.properties.get(written, -1)):
        return
    with table.transaction() as transaction:
        transaction.append(rows)
        transaction.set_properties({written: str(number)})


orders = Flow(name="orders-to-iceberg", consume="orders", transform=amounts, write=write)
