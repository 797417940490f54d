"""Judges: check what must hold once the clients of a simulation are done.

Every judge returns one line per violation; no line means that the run kept the laws.

- ``drain``: the judged queue can be emptied when faults stop (C5).
- ``judge_history``: the replies to clients about the judged queue agree with its contents
  (P1 to P4, C1, C2, S1 to S3), by ``penstock.testing.checker``.
- ``judge_copies``: every failed delivery of the judged queue has one dead-letter copy (D1, S3).
- ``judge_events``: every ended delivery of the ordered queue has one event (S3).
- ``judge_store``: ``penstock verify`` finds nothing wrong (including counts against a full scan,
  orphans, references and order).
- ``picture`` and ``judge_same``: the observable state of a store is the same before and after
  something that must change nothing, such as reopening it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from penstock.broker import Broker
from penstock.errors import PenstockError
from penstock.model.clock import Clock
from penstock.model.delivery import Ack, Snapshot
from penstock.model.message import MessageId
from penstock.model.states import LIVE, State
from penstock.testing.checker import check
from penstock.testing.comparing import Plain, difference
from penstock.testing.history import Claim, Claimed, Found, Logged, Scanned, Settle, Settled, digest
from penstock.testing.simulation.policies import DEAD, LINE, REPORTS, WORK, WORK_POLICY
from penstock.testing.simulation.world import History, granted
from penstock.verify import verify

__all__ = [
    "drain",
    "finish_releases",
    "judge_copies",
    "judge_events",
    "judge_history",
    "judge_same",
    "judge_store",
    "picture",
]

#: Passes after which the judged queue must be empty. Each pass claims everything available and then
#: sleeps until a lease or a delay ends: a delivery needs at most ``max_attempts`` of them.
_MAX_PASSES: Final = 40
#: Longer than any lease or delay of a program.
_PAUSE_S: Final = 50
_PAGE: Final = 100


async def finish_releases(broker: Broker) -> None:
    """Wait until claims whose callers were cancelled are released."""
    engine: Any = broker._engine
    while left := [*broker._waiting._tasks, *engine._abandoned._releases]:
        await asyncio.wait(left)


async def drain(broker: Broker, history: History, clock: Clock) -> list[str]:
    """Claim and ack everything in the judged queue. Reports deliveries that cannot be claimed."""
    left = 0
    for _ in range(_MAX_PASSES):
        call = history.call()
        history.record(Claim(call=call, queue=WORK))
        deliveries = await broker.claim(WORK, limit=_PAGE, consumer="drain", lease_ms=60_000)
        for delivery in deliveries:
            history.record(granted(call, "drain", delivery))
        history.record(Claimed(call=call))
        for delivery in deliveries:
            settle = history.call()
            history.record(
                Settle(call=settle, receipt=delivery.receipt, verb="ack", at=clock.now())
            )
            reply = await broker.settle(WORK, [Ack(delivery.receipt)])
            outcome = reply.outcomes[0]
            state = None if outcome.state is None else str(outcome.state)
            history.record(
                Settled(
                    call=settle,
                    verdict=str(outcome.verdict),
                    state=state,
                    until=outcome.until,
                    at=clock.now(),
                )
            )
        stats = await broker.stats(WORK)
        left = sum(getattr(stats, state.value) for state in LIVE)
        if not left:
            return []
        if not deliveries:
            await asyncio.sleep(_PAUSE_S)
    return [f"C5: queue {WORK!r} still has {left} deliveries after {_MAX_PASSES} passes"]


async def judge_history(
    broker: Broker, history: History, grant_number: Callable[[str], int] | None = None
) -> list[str]:
    """Scan the judged queue into the history, and check the history."""
    offset, end = 0, await broker.log_end()
    while offset < end:
        page = await broker.read_log(offset, limit=_PAGE, payloads=True)
        offset = page.next_offset
        for entry in page.entries:
            if entry.message.topic == WORK and entry.payload is not None:
                payload = digest(entry.payload)
                history.record(Logged(scan=1, message=entry.message.id, payload=payload))
    for state in State:
        cursor: str | None = None
        while True:
            found = await broker.peek(WORK, state, limit=_PAGE, cursor=cursor)
            for item in found.items:
                history.record(
                    Found(
                        scan=1,
                        queue=WORK,
                        message=item.message.id,
                        state=item.state,
                        attempts=item.attempts,
                    )
                )
            if (cursor := found.cursor) is None:
                break
    history.record(Scanned(scan=1, queue=WORK, drained=True))
    violations = check(
        history.events,
        max_attempts={WORK: WORK_POLICY.max_attempts},
        grant_number=grant_number,
    )
    return [f"{item.law}: {item.what}" for item in violations]


async def judge_copies(broker: Broker) -> list[str]:
    """Compare the failed deliveries of the judged queue with their copies."""
    failed = {
        item.message.id: (item.payload, item.attempts, item.error, item.at)
        for item in await _all(broker, WORK, State.FAILED)
    }
    copies: dict[MessageId, object] = {}
    found: list[str] = []
    for item in await _all(broker, DEAD, State.AVAILABLE):
        headers = item.message.headers
        if headers.get("dead_letter_original_queue") != WORK:
            continue
        message = MessageId(int(headers["dead_letter_message_id"]))
        if message in copies:
            found.append(f"S3: message {message} of {WORK!r} has two copies")
        story = (headers.get(f"dead_letter_{name}") for name in ("attempts", "error", "at"))
        copies[message] = (item.payload, *story)
    for message in sorted({*failed, *copies}):
        if failed.get(message) != copies.get(message):
            both = f"{failed.get(message)} and its copy {copies.get(message)}"
            found.append(f"D1: message {message} of {WORK!r} failed as {both}")
    return found


async def judge_events(broker: Broker) -> list[str]:
    """Compare the ended deliveries of the ordered queue with its events."""
    ended = {
        (item.message.id, f"message.{state}", item.attempts, item.at)
        for state in (State.DONE, State.FAILED, State.EXPIRED)
        for item in await _all(broker, LINE, state)
    }
    found: list[str] = []
    events: set[object] = set()
    for item in await _all(broker, REPORTS, State.AVAILABLE):
        body = msgspec.json.decode(item.payload or b"", type=dict[str, Any])
        if body["queue"] != LINE:
            continue
        event = tuple(body[name] for name in ("message_id", "event", "attempts", "at"))
        if event in events:
            found.append(f"S3: the event {event} of {LINE!r} was sent twice")
        events.add(event)
    for one in ended ^ events:
        kind = "an end without an event" if one in ended else "an event without an end"
        found.append(f"S3: {one} of {LINE!r} is {kind}")
    return found


async def _all(broker: Broker, queue: str, state: State) -> list[Snapshot]:
    """All pages of a peek."""
    items: list[Snapshot] = []
    cursor: str | None = None
    while True:
        page = await broker.peek(queue, state, limit=_PAGE, cursor=cursor, payloads=True)
        items += page.items
        if (cursor := page.cursor) is None:
            return items


async def judge_store(broker: Broker, clock: Clock, *, deep: bool = True) -> list[str]:
    """Verify the store as seen by one tenant."""
    report = await verify(broker, deep=deep, clock=clock)
    return [f"verify ({broker.tenant}): {item}" for item in report.violations]


async def picture(broker: Broker) -> Plain:
    """All observable state of one tenant, except for what depends on the current time."""
    shown: dict[str, Plain] = {}
    for info in await broker.queues():
        for name in (info.name, f"{info.name}.dlq"):
            shown[name] = await broker.queue(name)
            stats = await broker.stats(name)
            shown[f"stats of {name}"] = replace(stats, oldest_available_ms=None)
            for state in State:
                shown[f"{name} {state}"] = await _browse(broker, name, state)
    page = await broker.read_log(0, limit=10_000, payloads=True)
    shown["log"] = page.entries
    shown["topics"] = await broker.topics()
    return shown


def judge_same(before: Plain, after: Plain, occasion: str) -> list[str]:
    """The difference between two pictures."""
    found = difference(before, after)
    if found is None:
        return []
    found = found.replace("oracle:", "before:").replace("engine:", "after:")
    return [f"{occasion} changed the observable state: {found}"]


async def _browse(broker: Broker, queue: str, state: State) -> Plain:
    found: list[Plain] = []
    cursor: str | None = None
    while True:
        try:
            page = await broker.peek(queue, state, limit=_PAGE, cursor=cursor, payloads=True)
        except PenstockError as error:
            return f"{type(error).__name__}: {error.detail}"
        found += page.items
        if (cursor := page.cursor) is None:
            return found
