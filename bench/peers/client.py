"""``python -m bench.peers.client PEER ROLE WORKLOAD PROBE ADDRESS``: a client process of a run.

It connects, reports to the probe that it is ready, and works until the probe's phase ends it. A
producer ends earlier if a number follows the address, and so many messages have been published.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

from bench.messages import body
from bench.peers.peer import Consumer, Producer
from bench.peers.probe import Phase, Probe
from bench.peers.registry import find_peer
from bench.peers.workloads import RATE, WORKLOADS, Workload

__all__ = ["FILLING", "produce"]

#: How the queue is filled before W7.
FILLING: Final = Workload("filling", "fills the queue", producers=4, batch=100)
#: Between checks of what another process has done.
_POLL_S: Final = 0.0005


async def produce(
    probe: Probe, producer: Producer, workload: Workload, nth: int, until: int | None = None
) -> None:
    """Publish until the phase ends, or until so many messages have been published."""
    begin, turn = time.monotonic(), 0
    while probe.phase < Phase.DRAIN:
        if until is not None and probe.published_count() >= until:
            return
        if workload.ahead:
            while probe.published_count() - probe.settled_count() > workload.ahead:
                await asyncio.sleep(_POLL_S)
                if probe.phase >= Phase.DRAIN:
                    return
        if workload.is_paced:
            due = begin + (turn * workload.producers + nth) / RATE
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            turn += 1
        await _publish(probe, producer, workload.batch)


async def _publish(probe: Probe, producer: Producer, size: int) -> None:
    numbers = probe.take(size)
    begin = time.monotonic()
    if size == 1:
        await producer.publish(body(numbers.start))
    else:
        await producer.publish_batch([body(number) for number in numbers])
    probe.confirm(numbers, time.monotonic() - begin)


async def _begun(probe: Probe) -> None:
    probe.add_ready()
    while probe.phase is Phase.WAIT:  # noqa: ASYNC110  (another process sets it)
        await asyncio.sleep(_POLL_S)


async def _run(name: str, role: str, workload: Workload, probe: Probe, rest: list[str]) -> None:
    peer = find_peer(name)
    address, until = rest[0], int(rest[1]) if rest[1:] else None
    clients: list[Producer | Consumer]
    if role == "producer":
        producers = await peer.producers(address, workload)
        await _begun(probe)
        works = [
            produce(probe, producer, workload, nth, until) for nth, producer in enumerate(producers)
        ]
        clients = [*producers]
    else:
        consumers = await peer.consumers(address, workload)
        await _begun(probe)
        works = [consumer.run(probe, workload.limit) for consumer in consumers]
        clients = [*consumers]
    await asyncio.gather(*works)
    for client in clients:
        await client.close()


def main() -> None:
    """Run a client."""
    name, role, workload, probe, *rest = sys.argv[1:]
    given = FILLING if workload == FILLING.name else WORKLOADS[workload]
    asyncio.run(_run(name, role, given, Probe(Path(probe)), rest))


if __name__ == "__main__":
    main()
