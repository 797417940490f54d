"""The parts of ``python -m bench``: each yields its figures as they are measured.

What a part measures is imported when it runs: the memory of the engine's process is one of the
figures, and must not include the other parts.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from bench.measuring import Figure

__all__ = ["PARTS", "Sizes"]

#: A round of the pipeline takes minutes.
_MOST_PIPELINE_ROUNDS: Final = 3
#: From this many messages on, the archiver is killed ten times; each kill costs a start of Spark.
_WORTH_KILLING: Final = 100_000
#: Messages that commits may be ahead of their files.
_BURST: Final = 50_000
#: The deepest store of all, as a multiple of the others.
_DEEPEST: Final = 10


class Sizes(Struct, frozen=True, kw_only=True):
    """How much is measured."""

    #: Per measurement.
    seconds: float
    #: A figure is the median of these.
    rounds: int
    #: Messages waiting, or in the log.
    deep: int


async def engine(sizes: Sizes) -> AsyncIterator[Figure]:
    """The engine in this process."""
    from bench.depth import depth
    from bench.fairness import fairness
    from bench.routing import routing
    from bench.throughput import publish_by_many, publish_in_batches, whole_cycle

    seconds, rounds = sizes.seconds, sizes.rounds
    for measure in (publish_in_batches, publish_by_many, whole_cycle, routing):
        yield await measure(seconds, rounds)
    for figure in await fairness(seconds, rounds):
        yield figure
    for figure in await depth(rounds, sizes.deep):
        yield figure


async def files(sizes: Sizes) -> AsyncIterator[Figure]:
    """A store in files."""
    from bench.files import files as measure

    for figure in await measure(sizes.rounds, min(_BURST, sizes.deep)):
        yield figure


async def object_store(sizes: Sizes) -> AsyncIterator[Figure]:
    """A store on an object store with latency."""
    from bench.object_store import object_store as measure

    async for figure in measure(sizes.seconds, _DEEPEST * sizes.deep):
        yield figure


async def bounds(sizes: Sizes) -> AsyncIterator[Figure]:
    """How long any callback may block the event loop, under load."""
    from bench.bounds import sweeping
    from bench.heavy import heavy_messages
    from bench.hostile import requests
    from bench.hostile_doors import hostile_doors

    for measure in (sweeping, requests, hostile_doors, heavy_messages):
        for figure in await measure(sizes.rounds):
            yield figure


async def service(sizes: Sizes) -> AsyncIterator[Figure]:
    """The server and the client."""
    from bench.service import batches_over_http, publish_over_http

    yield publish_over_http(sizes.seconds, sizes.rounds)
    yield await batches_over_http(sizes.seconds, sizes.rounds)


def sqs(sizes: Sizes) -> Iterator[Figure]:
    """The SQS door."""
    from bench.sqs import sqs_door

    yield from sqs_door(sizes.seconds, sizes.rounds)


async def sql(sizes: Sizes) -> AsyncIterator[Figure]:
    """The SQL engine, on private servers."""
    from bench.sql import consuming, publishing
    from bench.sql_depth import depth
    from bench.sql_reader import beside_a_reader
    from bench.sql_servers import sharing
    from bench.sql_stores import DIALECTS, database_server

    seconds, rounds = sizes.seconds, sizes.rounds
    for dialect in DIALECTS:
        with database_server(dialect) as server:
            if dialect == "postgresql":
                for measure in (publishing, consuming):
                    for figure in await measure(server, seconds, rounds):
                        yield figure
            yield await sharing(server, dialect, seconds, rounds)
            yield await beside_a_reader(server, dialect, seconds, rounds)
            for figure in await depth(server, dialect, rounds, sizes.deep):
                yield figure


async def scale(sizes: Sizes) -> AsyncIterator[Figure]:
    """Stores that are deep or wide, crowds of callers, and starting."""
    from bench.crowd import connections, waiting_consumers
    from bench.depth import DEEPEST, depth
    from bench.partitions import partitions
    from bench.routing import routing
    from bench.startup import startup
    from bench.wide import QUEUES, wide

    seconds, rounds = sizes.seconds, sizes.rounds
    for figure in (
        *startup(rounds),
        *await depth(rounds, _DEEPEST * sizes.deep, DEEPEST),
        await routing(seconds, rounds, QUEUES),
        *await wide(),
        *await partitions(rounds),
        *await waiting_consumers(rounds),
        *await connections(seconds, rounds),
    ):
        yield figure


async def console(sizes: Sizes) -> AsyncIterator[Figure]:
    """The console."""
    from bench.console import console as measure

    async for figure in measure(5 * sizes.seconds, sizes.deep):
        yield figure


def pipeline(sizes: Sizes) -> Iterator[Figure]:
    """The data pipeline, on private servers and Spark sessions."""
    from bench.pipeline_kills import KILLS, killing
    from bench.pipeline_lake import archiving
    from bench.pipeline_sink import publishing
    from bench.pipeline_source import reading
    from bench.pipeline_stream import consuming
    from bench.routing_many import routing_many

    messages, rounds = sizes.deep, min(sizes.rounds, _MOST_PIPELINE_ROUNDS)
    yield from reading(messages, rounds)
    yield from routing_many(rounds, messages)
    yield publishing(messages, rounds)
    yield from archiving(messages, rounds)
    yield killing(messages, KILLS if messages >= _WORTH_KILLING else 1)
    yield consuming(sizes.seconds * 10)


Part: TypeAlias = Callable[[Sizes], AsyncIterator[Figure] | Iterator[Figure]]

PARTS: Final[dict[str, Part]] = {
    "engine": engine,
    "files": files,
    "object-store": object_store,
    "bounds": bounds,
    "service": service,
    "sqs": sqs,
    "sql": sql,
    "scale": scale,
    "console": console,
    "pipeline": pipeline,
}
