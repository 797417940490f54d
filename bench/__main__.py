"""``python -m bench``: run every benchmark and print the ratios."""

from __future__ import annotations

import argparse
import asyncio
import sys

from bench.depth import DEEP, depth
from bench.fairness import fairness
from bench.measuring import Figure
from bench.routing import routing
from bench.throughput import publish_by_many, publish_in_batches, whole_cycle

PARTS = ("engine", "bounds", "service", "sql", "pipeline")
#: A round of the pipeline takes minutes.
_MOST_PIPELINE_ROUNDS = 3
#: From this many messages on, the archiver is killed ten times; each kill costs a start of Spark.
_WORTH_KILLING = 100_000
#: Messages between processes per second of measuring.
_WHOLE_WAY_RATE = 20_000


async def run_service(seconds: float, rounds: int) -> list[Figure]:
    """The figures of the server, the client and the peer."""
    # Imported late: the engine's memory is one of the figures, and must not include these.
    from bench.service import (  # noqa: PLC0415
        batches_over_http,
        latency,
        many_tasks,
        publish_over_http,
        whole_way,
    )

    count = max(1_000, round(seconds * _WHOLE_WAY_RATE / 100) * 100)
    figures = [
        _show(publish_over_http(seconds, rounds)),
        _show(await batches_over_http(seconds, rounds)),
    ]
    figures += [_show(figure) for figure in whole_way(count, rounds)]
    figures.append(_show(many_tasks(seconds, rounds)))
    figures += [_show(figure) for figure in latency(seconds, rounds)]
    return figures


async def run_sql(seconds: float, rounds: int, deep: int) -> list[Figure]:
    """The figures of the SQL engine, on private servers."""
    # Imported late: see above.
    from bench.sql import consuming, publishing  # noqa: PLC0415
    from bench.sql_depth import depth as sql_depth  # noqa: PLC0415
    from bench.sql_reader import beside_a_reader  # noqa: PLC0415
    from bench.sql_servers import sharing  # noqa: PLC0415
    from bench.sql_stores import DIALECTS, database_server  # noqa: PLC0415

    figures: list[Figure] = []
    for dialect in DIALECTS:
        with database_server(dialect) as server:
            if dialect == "postgresql":
                figures += [_show(one) for one in await publishing(server, seconds, rounds)]
                figures += [_show(one) for one in await consuming(server, seconds, rounds)]
            figures.append(_show(await sharing(server, dialect, seconds, rounds)))
            figures.append(_show(await beside_a_reader(server, dialect, seconds, rounds)))
            figures += [_show(one) for one in await sql_depth(server, dialect, rounds, deep)]
    return figures


def run_pipeline(seconds: float, rounds: int, messages: int) -> list[Figure]:
    """The figures of the data pipeline, on private servers and Spark sessions."""
    # Imported late: see above, and Spark takes a while to load.
    from bench.pipeline_kills import KILLS, killing  # noqa: PLC0415
    from bench.pipeline_lake import archiving  # noqa: PLC0415
    from bench.pipeline_sink import publishing  # noqa: PLC0415
    from bench.pipeline_source import reading  # noqa: PLC0415
    from bench.pipeline_stream import consuming  # noqa: PLC0415
    from bench.routing_many import routing_many  # noqa: PLC0415

    figures = [_show(figure) for figure in reading(messages, rounds)]
    figures += [_show(figure) for figure in routing_many(rounds, messages)]
    figures.append(_show(publishing(messages, rounds)))
    figures += [_show(figure) for figure in archiving(messages, rounds)]
    figures.append(_show(killing(messages, KILLS if messages >= _WORTH_KILLING else 1)))
    figures.append(_show(consuming(seconds * 10)))
    return figures


async def run_engine(seconds: float, rounds: int, deep: int) -> list[Figure]:
    """The figures of the engine in this process."""
    figures = [
        _show(await publish_in_batches(seconds, rounds)),
        _show(await publish_by_many(seconds, rounds)),
        _show(await whole_cycle(seconds, rounds)),
        _show(await routing(seconds, rounds)),
    ]
    figures += [_show(figure) for figure in await fairness(seconds, rounds)]
    figures += [_show(figure) for figure in await depth(rounds, deep)]
    return figures


async def run_bounds(rounds: int) -> list[Figure]:
    """How long any callback may block the event loop, under load."""
    from bench.bounds import bounds  # noqa: PLC0415  (see above)

    return [_show(figure) for figure in await bounds(rounds)]


def _show(figure: Figure) -> Figure:
    bound = "at most" if figure.at_most else "at least"
    verdict = "holds" if figure.holds else "MISSED"
    sys.stdout.write(
        f"{figure.ratio:6.2f}  ({bound} {figure.target:.2f}, {verdict})  {figure.name}"
        f"  [{figure.ours} : {figure.reference}]\n"
    )
    sys.stdout.flush()
    return figure


def main() -> int:
    """Exit 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="per measurement")
    parser.add_argument("--rounds", type=int, default=5, help="a figure is the median of these")
    parser.add_argument("--deep", type=int, default=DEEP, help="messages waiting, or in the log")
    parser.add_argument("--only", choices=PARTS, help="run one part")
    arguments = parser.parse_args()
    try:
        import uvloop  # noqa: PLC0415
    except ImportError:
        runner = asyncio.run
    else:
        runner = uvloop.run
    figures: list[Figure] = []
    if arguments.only in (None, "engine"):
        figures += runner(run_engine(arguments.seconds, arguments.rounds, arguments.deep))
    if arguments.only in (None, "bounds"):
        # Not on uvloop, whose callbacks cannot be timed individually.
        figures += asyncio.run(run_bounds(arguments.rounds))
    if arguments.only in (None, "service"):
        figures += runner(run_service(arguments.seconds, arguments.rounds))
    if arguments.only in (None, "sql"):
        figures += runner(run_sql(arguments.seconds, arguments.rounds, arguments.deep))
    if arguments.only in (None, "pipeline"):
        rounds = min(arguments.rounds, _MOST_PIPELINE_ROUNDS)
        figures += run_pipeline(arguments.seconds, rounds, arguments.deep)
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
