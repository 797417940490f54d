"""Consumes a queue into a table of PostgreSQL, each message once.

    penstock flow apply examples/sinks/to_postgresql.py --once

The rows of a micro-batch and its number are one transaction, so a micro-batch that a killed query
runs again is not written again. The number counts per query: a query with another checkpoint
begins at 0, and must not find the number of the one before. A message that was replayed has the
same id, so its row is replaced. It needs ``pip install 'psycopg[binary]'``, and
``CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount double precision)``.
"""

from __future__ import annotations

import os

import psycopg
from pyspark.sql import DataFrame

from penstock.pipeline import Flow

DSN = os.environ.get("ORDERS_DSN", "postgresql://localhost/shop")
TABLE = "CREATE TABLE IF NOT EXISTS penstock_written (query text PRIMARY KEY, number bigint)"
#: Changes no row if the number, or a later one, is there.
BATCH = """
INSERT INTO penstock_written AS had VALUES (%s, %s)
ON CONFLICT (query) DO UPDATE SET number = excluded.number WHERE had.number < excluded.number
"""
UPSERT = """
INSERT INTO orders (id, customer, amount) VALUES (%s, %s, %s)
ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, amount = excluded.amount
"""


def amounts(rows: DataFrame) -> DataFrame:
    orders = rows.selectExpr(
        "id", "from_json(CAST(value AS string), 'customer string, amount double') AS o"
    )
    return orders.selectExpr("id", "o.customer", "o.amount")


def write(frame: DataFrame, query: str, number: int) -> None:
    rows = frame.toArrow()
    with psycopg.connect(DSN) as connection:  # one transaction: all of it, or nothing
        connection.execute(TABLE)
        if connection.execute(BATCH, (query, number)).rowcount:
            values = zip(*(column.to_pylist() for column in rows.columns), strict=True)
            connection.cursor().executemany(UPSERT, values)


orders = Flow(name="orders-to-postgresql", consume="orders", transform=amounts, write=write)
