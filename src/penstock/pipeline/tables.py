"""Reads tables of a server, for the jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.pipeline.remote import Server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["read_table", "server_options"]


def server_options(server: Server) -> dict[str, str]:
    """The options of ``format("penstock")`` for a server and its credential."""
    options = {"url": server.url}
    if server.credential is not None:
        options["credential"] = server.credential
    if server.ca is not None:
        options["ca"] = server.ca
    return options


def read_table(
    spark: SparkSession, server: Server, table: str, **options: str | int | bool
) -> DataFrame:
    """The current state of a table: ``read_table(spark, server, "log", startingOffsets=0)``."""
    given = {
        name: str(value).lower() if value is True or value is False else str(value)
        for name, value in options.items()
    }
    reader = spark.read.format("penstock").options(**server_options(server), **given)
    return reader.option("table", table).load()
