"""Reads tables of a server, for the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  (what everybody calls it)

from penstock.pipeline.remote import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_table", "server_options"]


def server_options(server: Server) -> dict[str, str]:
    """The options of ``format("penstock")`` for a server, its credential and certificates."""
    options = {
        "url": server.url,
        "credential": server.credential,
        "ca": server.ca,
        "cert": server.cert,
        "certKey": server.cert_key,
    }
    return {name: value for name, value in options.items() if value is not None}


def read_table(
    spark: SparkSession, server: Server, table: str, **options: str | int | bool
) -> DataFrame:
    """The current state of a table: ``read_table(spark, server, "log", startingOffsets=0)``.

    For the jobs, ``key`` is the key that replaces, as in the lake and in filters.
    """
    given = {
        name: str(value).lower() if value is True or value is False else str(value)
        for name, value in options.items()
    }
    reader = spark.read.format("penstock").options(**server_options(server), **given)
    rows = reader.option("table", table).load()
    if "replace_key" not in rows.columns:
        return rows
    names = [name for name in rows.columns if name != "replace_key"]
    return rows.select(
        *(F.col("replace_key").alias("key") if name == "key" else F.col(name) for name in names)
    )
