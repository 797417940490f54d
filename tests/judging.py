"""What is made of a history: the store is scanned into it, and it is checked.

Beside the laws that the checker knows, C4 inside a partition: what one producer publishes one
after the other is granted by an ordered queue in that order, and nothing is granted again once
something behind it was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from penstock.api import QueueApi
from penstock.model.states import State
from penstock.testing.checker import check
from penstock.testing.history import (
    Found,
    Granted,
    HistoryEvent,
    Logged,
    Publish,
    Published,
    Refused,
    Scanned,
    Settled,
    digest,
    read_history,
)
from tests.recording import PAGE, QUEUE, History


async def scan(
    client: QueueApi, history: History, *, drained: bool, queues: Iterable[str] = (QUEUE,)
) -> dict[str, set[int]]:
    """Record the whole log and the whole of the queues; counts equal what is found (Q2).

    Returns the messages of each partition.
    """
    partitions: dict[str, set[int]] = {}
    offset, end = 0, await client.log_end()
    while offset < end:
        page = await client.read_log(offset, limit=PAGE, payloads=True)
        offset = page.next_offset
        for entry in page.entries:
            assert entry.payload is not None
            payload = digest(entry.payload)
            history.record(Logged(scan=1, message=entry.message.id, payload=payload))
            partition = entry.message.partition_key or ""
            partitions.setdefault(partition, set()).add(entry.message.id)
    for queue in queues:
        await _scan_queue(client, history, queue)
        history.record(Scanned(scan=1, queue=queue, drained=drained))
    return partitions


async def _scan_queue(client: QueueApi, history: History, queue: str) -> None:
    counts: Counter[State] = Counter()
    for state in State:
        cursor: str | None = None
        while True:
            found = await client.peek(queue, state, limit=PAGE, cursor=cursor)
            for item in found.items:
                counts[state] += 1
                history.record(
                    Found(
                        scan=1,
                        queue=queue,
                        message=item.message.id,
                        state=item.state,
                        attempts=item.attempts,
                    )
                )
            if (cursor := found.cursor) is None:
                break
    stats = await client.stats(queue)
    assert {state: getattr(stats, state) for state in State} == {s: counts[s] for s in State}


def judge(
    path: Path,
    max_attempts: Mapping[str, int],
    *,
    ordered: Collection[str] = (),
    skew_ms: int = 0,
) -> list[HistoryEvent]:
    """Read a history that has to keep all laws; how much happened is printed."""
    events = list(read_history(path.read_bytes().splitlines()))
    violations = check(
        events,
        max_attempts=max_attempts,
        grant_number=lambda receipt: int(receipt.split("-")[2], 16),
        ordered=ordered,
        skew_ms=skew_ms,
    )
    for violation in violations[:20]:
        print(violation)
    print(summary(events))
    assert not violations
    return events


def check_order(
    events: Iterable[HistoryEvent], queue: str, partitions: Mapping[str, set[int]]
) -> None:
    """What an ordered queue granted of each of the partitions never goes back (C4)."""
    partition_of = {message: key for key, messages in partitions.items() for message in messages}
    last: dict[str, int] = {}
    for event in events:
        if isinstance(event, Granted) and event.queue == queue:
            partition = partition_of.get(event.message)
            if partition is not None:
                assert event.message >= last.get(partition, 0), f"{partition} goes back: {event}"
                last[partition] = event.message
    assert last, "nothing was granted in order"


def summary(events: list[HistoryEvent]) -> dict[str, int]:
    """How much happened, and how much of what can go wrong did."""
    kinds = Counter(type(event).__name__ for event in events)
    begun = [event for event in events if isinstance(event, Publish)]
    over = [event for event in events if isinstance(event, Published)]
    run_of = {event.call: event.run for event in begun}
    ended = {event.call for event in events if isinstance(event, Published | Refused)}
    verdicts = Counter(event.verdict for event in events if isinstance(event, Settled))
    states = Counter(event.state for event in events if isinstance(event, Settled))
    grants = Counter((e.queue, e.message) for e in events if isinstance(e, Granted))
    return {
        "publishes": len(begun),
        "publishes over a kill": sum(event.run != run_of[event.call] for event in over),
        "publishes lost": sum(event.call not in ended for event in begun),
        "messages": kinds["Logged"],
        "grants": kinds["Granted"],
        "messages granted again": sum(count > 1 for count in grants.values()),
        "claims lost": kinds["Claim"] - kinds["Claimed"],
        "settlements": verdicts["ok"],
        "settlements stale": verdicts["stale"],
        "settlements lost": kinds["Settle"] - kinds["Settled"],
        "failed": states["failed"],
    }
