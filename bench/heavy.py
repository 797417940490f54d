"""Heavy messages: how long a callback blocks the loop if messages have all their headers, or if
one message goes to 10,000 queues, or while a large commit is written.

Every way in (embedded, JSON, MessagePack, Arrow) and every way out (claim, browse, log, histories,
replay) is used once per round, with as many messages as one call may have. Publishers and consumers
of ordinary messages use the store meanwhile.
"""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pyarrow as pa

import penstock
from bench.bounds import HOLD_MS, Longest, loop_holds, of_bound
from bench.hostile import ARROW, BATCH_JSON, BATCH_MSGPACK, call, live_load, open_application
from bench.measuring import Figure, payloads, scratch
from penstock.broker import Broker, BrokerOptions
from penstock.model.delivery import Ack
from penstock.model.limits import MAX_CLAIM, MAX_HEADERS, MAX_HEADERS_BYTES
from penstock.model.message import NewMessage
from penstock.model.queue import QueuePolicy, Start
from penstock.model.states import State
from penstock.server.app import Application
from penstock.server.memory import uncollected

COUNT = MAX_CLAIM
QUEUES = 10_000
#: The messages of a large commit, and the size of each.
LARGE_COUNT = 256
LARGE_BYTES = 64 * 1024
#: Queues that are created together, while others are still being committed.
_CREATED_TOGETHER = 1_000
WAYS_IN = ("embedded", "json", "msgpack", "arrow")
READS = (
    "/v1/queues/json/deliveries?limit=1000",
    "/v1/queues/json/deliveries?format=arrow",
    "/v1/log?limit=1000",
    "/v1/log?limit=1000&payloads=true",
    "/v1/log?format=arrow&payloads=true",
    "/v1/history?format=arrow",
)


def heavy() -> list[NewMessage]:
    """Messages whose headers are at their limit."""
    size = MAX_HEADERS_BYTES // MAX_HEADERS - len("header-00")
    return [
        NewMessage(b"x", {f"header-{name:02}": f"{number}".rjust(size) for name in range(64)})
        for number in range(COUNT)
    ]


def bodies(messages: Sequence[NewMessage]) -> dict[str, tuple[str, bytes]]:
    """The messages in every format: content type and body."""
    rows = [{"payload": "x", "headers": one.headers} for one in messages]
    packed = [{"payload": b"x", "headers": one.headers} for one in messages]
    batch = pa.record_batch(
        {
            "payload": pa.array([one.payload for one in messages], pa.binary()),
            "headers": [json.dumps(one.headers) for one in messages],
        }
    )
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {
        "json": (BATCH_JSON, json.dumps({"messages": rows}).encode()),
        "msgpack": (BATCH_MSGPACK, msgspec.msgpack.encode({"messages": packed})),
        "arrow": (ARROW, sink.getvalue()),
    }


@asynccontextmanager
async def loaded(folder: Path) -> AsyncIterator[tuple[Broker, Application]]:
    """A store that publishers and consumers of ordinary messages use."""
    async with penstock.open(f"rocksdb://{folder}/store", options=BrokerOptions()) as broker:
        app = await open_application(broker)
        stop = asyncio.Event()
        load = asyncio.ensure_future(live_load(broker, stop))
        try:
            with uncollected():
                yield broker, app
        finally:
            stop.set()
            await load


async def ask(
    app: Application, method: str, target: str, media: str = "", body: bytes = b""
) -> None:
    """Send a request, which must succeed."""
    status = await call(app, (method, target, media, body))
    if status >= 300:
        raise RuntimeError(f"{method} {target} was answered {status}")


async def publish(
    broker: Broker,
    app: Application,
    messages: Sequence[NewMessage],
    encoded: Mapping[str, tuple[str, bytes]],
) -> None:
    """Publish the messages in every way."""
    await broker.publish_batch("embedded", messages)
    for name, (media, body) in encoded.items():
        await ask(app, "POST", f"/v1/topics/{name}/messages", media, body)


async def read(broker: Broker, app: Application) -> None:
    """Read and consume the messages in every way."""
    for target in READS:
        await ask(app, "GET", target)
    claim = b'{"limit": 1000}'
    for name in ("json", "msgpack", "arrow"):
        await ask(app, "POST", f"/v1/queues/{name}/claims", "application/json", claim)
    held = await broker.claim("embedded", limit=COUNT)
    if len(held) != COUNT:
        raise RuntimeError(f"a claim returned {len(held)} of {COUNT}")
    await broker.settle("embedded", [Ack(one.receipt) for one in held])
    await broker.peek("embedded", State.DONE, limit=COUNT)
    replay = b'{"source": "done", "limit": 1000}'
    await ask(app, "POST", "/v1/queues/embedded/replays", "application/json", replay)


async def headers(rounds: int) -> list[Figure]:
    """Messages with all their headers, in and out."""
    found: dict[str, list[Longest]] = {"publishing": [], "reading": []}
    messages = heavy()
    encoded = bodies(messages)
    for _ in range(rounds):
        with scratch() as folder:
            async with loaded(folder) as (broker, app):
                for name in WAYS_IN:
                    await broker.create_queue(name, f"topic = '{name}'")
                with loop_holds() as longest:
                    await publish(broker, app, messages, encoded)
                found["publishing"].append(longest)
            # Opened again: what is read has to be decoded first.
            async with loaded(folder) as (broker, app):
                with loop_holds() as longest:
                    await read(broker, app)
                found["reading"].append(longest)
    return [
        of_bound(f"longest loop hold, {name} {COUNT:,} messages with all headers", times, HOLD_MS)
        for name, times in found.items()
    ]


async def fan_out(rounds: int) -> list[Figure]:
    """One message that goes to 10,000 queues: new, with a key, and replacing the one before."""
    names = ("a message into", "a keyed message into", "a replacement in")
    found: dict[str, list[Longest]] = {name: [] for name in names}
    with scratch() as folder, uncollected():
        async with penstock.open(f"rocksdb://{folder}/store", options=BrokerOptions()) as broker:
            await create_queues(broker)
            for _ in range(rounds):
                key = f"{len(found[names[0]])}"
                for name, key_given in zip(names, (None, key, key), strict=True):
                    with loop_holds() as longest:
                        await broker.publish("wide", b"x", key=key_given)
                    found[name].append(longest)
    return [
        of_bound(f"longest loop hold, {name} {QUEUES:,} queues", times, HOLD_MS)
        for name, times in found.items()
    ]


async def create_queues(broker: Broker) -> None:
    """Create the queues that take every message of one topic."""
    policy = QueuePolicy(filter="topic = 'wide'")
    for begin in range(0, QUEUES, _CREATED_TOGETHER):
        numbers = range(begin, begin + _CREATED_TOGETHER)
        await asyncio.gather(
            *(
                broker.engine.put_queue(broker.tenant, f"wide-{number}", policy, Start())
                for number in numbers
            )
        )


async def large_commits(rounds: int) -> list[Figure]:
    """The longest pause of the event loop while a commit of 16 MiB is written on its thread.

    Wall-clock time: the loop waits for the GIL and uses no CPU.
    """
    bodies = [NewMessage(body * (LARGE_BYTES // len(body))) for body in payloads(LARGE_COUNT)]
    found: list[Longest] = []
    with scratch() as folder, uncollected():
        async with penstock.open(f"rocksdb://{folder}/store", options=BrokerOptions()) as broker:
            for _ in range(rounds):
                longest = Longest()
                publish = asyncio.ensure_future(broker.publish_batch("large", bodies))
                while not publish.done():
                    begin = time.perf_counter()
                    await asyncio.sleep(0)
                    pause = time.perf_counter() - begin
                    longest.add(pause, pause)
                found.append(longest)
    size = LARGE_COUNT * LARGE_BYTES // 2**20
    return [of_bound(f"longest pause of the loop, committing {size} MiB", found, HOLD_MS)]


async def heavy_messages(rounds: int) -> list[Figure]:
    """All of them."""
    return [*await headers(rounds), *await fan_out(rounds), *await large_commits(rounds)]
