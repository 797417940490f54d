from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.errors import Conflict
from penstock.filters import parse
from penstock.model.delivery import Ack, Nack, Reject
from penstock.model.message import NewMessage, Outgoing
from penstock.model.queue import Ordering, QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.testing.model import Oracle
from penstock.testing.simulation.loop import EPOCH_MS, SimulatedClock, SimulatedLoop
from penstock.testing.simulation.mirror import Comparison, Mirror, compare_pictures

T, Q = "t", "q"


def compared(
    scenario: Callable[[Mirror, KeyValueEngine, Oracle], Awaitable[None]],
    *,
    frozen: bool = True,
    **settings: Any,
) -> list[str]:
    """Run a scenario on a mirror; returns the differences that the mirror found.

    Time passes if it is not ``frozen``. ``settings`` are those of the engine.
    """
    loop = SimulatedLoop(1)  # type: ignore[abstract]
    found: list[str] = []

    async def main() -> None:
        options = EngineOptions(clock=SimulatedClock(loop), jitter=lambda _: 0)
        engine = await KeyValueEngine.open(MemoryAdapter(), options, **settings)
        oracle = Oracle(options)
        comparison = Comparison(oracle)
        await scenario(Mirror(loop, engine, comparison), engine, oracle)
        found.extend(comparison.differences)
        where = await compare_pictures(oracle, engine, [T])
        if where is not None:
            found.append(where)
        await engine.close()

    loop.frozen = frozen  # A queue that a scenario creates on each side gets one creation time.
    loop.run_until_complete(main())
    loop.close()
    return found


def differences(oracle_policy: QueuePolicy) -> list[str]:
    """Publish, claim and ack beside an oracle whose queue has a policy of its own."""

    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        await engine.put_queue(T, Q, QueuePolicy(), Start())
        await oracle.put_queue(T, Q, oracle_policy, Start())
        await mirror.publish(T, "topic", [NewMessage(b"1"), NewMessage(b"2")])
        for delivery in await mirror.claim(T, Q, "c", 2, None):
            await mirror.settle(T, Q, [Ack(delivery.receipt)])
        await mirror.sweep()

    return compared(scenario)


def test_an_engine_that_agrees() -> None:
    assert differences(QueuePolicy()) == []


def test_an_answer_that_differs_is_found() -> None:
    (claim, picture) = differences(QueuePolicy(lease_ms=1_000))
    assert claim.startswith("claim('t', 'q'")
    assert "lease_ms" in picture


def test_a_delivery_that_only_one_side_has_is_found() -> None:
    found = differences(QueuePolicy(filter="FALSE"))
    assert any(line.startswith("claim") for line in found)


# -- cursors: the engine's stands before the gap that another tenant left, the oracle's behind it --


async def publish_behind_a_gap(mirror: Any) -> None:
    """Give the tenant the offsets 2 to 4; another tenant has 0 and 1."""
    for tenant, count in (("other", 2), (T, 3)):
        await mirror.publish(tenant, "topic", [NewMessage(b"m")] * count)


async def assign(mirror: Any, start: int) -> None:
    await mirror.assign(T, Q, filter="TRUE", start=start, end=3, offsets=[2])


@pytest.mark.parametrize("skipped", [1, 2])
def test_an_assignment_that_begins_inside_a_gap(skipped: int) -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        await publish_behind_a_gap(mirror)
        info = await mirror.put_queue(T, Q, QueuePolicy(), Start(Start.EARLIEST))
        with pytest.raises(Conflict):
            await assign(mirror, info.cursor + skipped)
        await assign(mirror, info.cursor)

    assert compared(scenario) == []


def test_a_cursor_that_skipped_an_entry_is_found() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        await publish_behind_a_gap(mirror)
        await engine.put_queue(T, Q, QueuePolicy(), Start(Start.EARLIEST))
        await oracle.put_queue(T, Q, QueuePolicy(), Start(Start.OFFSET, 3))
        await assign(mirror, 0)

    (answer, picture) = compared(scenario)
    assert answer.startswith("assign('t', 'q')")
    assert picture


def test_deliveries_that_a_selective_claim_ends_in_several_slices_end_in_one_commit() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        engine._turns.slice_s = 0  # The claim decides one delivery per slice.
        reporting = QueuePolicy(filter="topic = 'topic'", events=("failed",))
        await mirror.put_queue(T, Q, reporting, Start())
        await mirror.put_queue(T, "events", QueuePolicy(filter="event = 'message.failed'"), Start())
        # The claim reaches the second message first.
        messages = [NewMessage(b"low", priority=0), NewMessage(b"high", priority=9)]
        await mirror.publish(T, "topic", messages)
        for delivery in await mirror.claim(T, Q, "c", 2, None, None):
            await mirror.settle(T, Q, [Nack(delivery.receipt, delay_ms=0)])
        await mirror.put_queue(T, Q, replace(reporting, max_attempts=1), Start())
        assert await mirror.claim(T, Q, "c", 2, None, parse("priority >= 0")) == []
        reports = await mirror.claim(T, "events", "c", 2, None, None)
        assert [json.loads(report.payload)["message_id"] for report in reports] == [0, 1]

    assert compared(scenario) == []


def test_an_event_follows_the_messages_of_its_settle_although_one_was_a_duplicate() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        reporting = QueuePolicy(filter="topic = 'topic'", events=("failed",))
        await mirror.put_queue(T, Q, reporting, Start())
        await mirror.put_queue(T, "events", QueuePolicy(filter="event = 'message.failed'"), Start())
        await mirror.publish(T, "topic", [NewMessage(b"1", id="k")])
        (delivery,) = await mirror.claim(T, Q, "c", 1, None, None)
        again = Outgoing("topic", [NewMessage(b"1", id="k"), NewMessage(b"2")])
        await mirror.settle(T, Q, [Reject(delivery.receipt)], [again])
        assert len(await mirror.claim(T, "events", "c", 1, None, None)) == 1

    assert compared(scenario) == []


# -- a settle and claim that appends dead-letter copies in between --------------------------------


def test_time_stands_still_between_settle_and_claim() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        del engine, oracle
        await mirror.put_queue(
            T, Q, QueuePolicy(dead_letter_topic="dead", lease_ms=10_000), Start()
        )
        await mirror.publish(T, "topic", [NewMessage(b"%d" % n) for n in range(40)])
        rejected = [Reject(found.receipt) for found in await mirror.claim(T, Q, "c", 20, None)]
        reply, granted = await mirror.settle_and_claim(T, Q, rejected, "c", 20, None)
        assert (len(reply.outcomes), len(granted)) == (20, 20)

    # One copy per slice, and time may pass between two.
    assert compared(scenario, frozen=False, slice_s=0.0) == []


def test_a_pause_that_is_owed_does_not_pass_during_a_claim_with_a_selector() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        del oracle
        await mirror.put_queue(T, Q, QueuePolicy(lease_ms=10_000), Start())
        await mirror.publish(T, "topic", [NewMessage(b"%d" % n) for n in range(30)])
        # As after slices of some milliseconds beside short calls: the next one is followed by a
        # pause.
        engine.turns.short_calls, engine.turns._owed = 1, 0.01
        await mirror.claim(T, Q, "c", 3, None, parse("priority > 4"))
        engine.turns._owed = 0.01
        assert len(await mirror.claim(T, Q, "c", 3, None, parse("priority < 5"))) == 3

    assert compared(scenario, frozen=False, slice_s=0.0) == []


# -- a sweep whose copies reach a partition that it empties -------------------------------------


def test_queues_without_copies_are_swept_first() -> None:
    async def scenario(mirror: Any, engine: KeyValueEngine, oracle: Oracle) -> None:
        del engine, oracle
        ordered = QueuePolicy(filter="topic <> 'none'", ordering=Ordering.PARTITION)
        copying = QueuePolicy(dead_letter_topic="dead", dead_letter_expired=True)
        await mirror.put_queue(T, "lane", ordered, Start())
        await mirror.put_queue(T, "all", copying, Start())
        await mirror.publish(
            T, "topic", [NewMessage(b"1", partition_key="b", expires_at=EPOCH_MS + 1_000)]
        )
        await mirror.join(T, "lane", "c")
        await asyncio.sleep(2)
        await mirror.sweep()

    assert compared(scenario) == []
