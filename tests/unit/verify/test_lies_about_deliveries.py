"""A store that lies about deliveries is found out, with the law, the queue and the message."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from penstock import Broker
from penstock.model.delivery import Event, MessageDeliveries, QueueStats, Snapshot
from penstock.model.message import Offset
from penstock.model.states import State, Transition
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.verify import verify
from tests.unit.verify.liar import Liar, Stock
from tests.unit.verify.test_lies_about_the_log import named, without_delivery


def changing(message_id: int, **changes: object) -> Callable[[list[Snapshot]], list[Snapshot]]:
    """One delivery shows other values."""
    return lambda items: [
        replace(item, **changes) if item.message.id == message_id else item for item in items
    ]


def lie_everywhere(liar: Liar, message_id: int, **changes: object) -> None:
    """Change a delivery of ``jobs`` in pages and in ``message`` alike."""
    change = changing(message_id, **changes)

    def on_message(found: MessageDeliveries) -> MessageDeliveries:
        return replace(found, deliveries=tuple(change(list(found.deliveries))))

    liar.on_page = lambda queue, state, items: change(items)
    liar.on_message = on_message


# -- S3, Q2: where it is, and how many there are -------------------------------------------


@law("S3", "Q2")
@pytest.mark.parametrize("name", ["done", "expired", "delayed", "in flight", "second"])
async def test_a_delivery_that_pages_leave_out(liar: Liar, stock: Stock, name: str) -> None:
    lost = stock[name]
    liar.on_page = lambda queue, state, items: without_delivery(items, lost)
    report = await verify(liar)
    assert named(report) == {("S3", "jobs", lost), ("Q2", "jobs", None)}
    (broken,) = (item for item in report.violations if item.law == "S3")
    assert "peek does not show it" in broken.detail


@law("S3")
async def test_a_delivery_in_two_states(liar: Liar, stock: Stock) -> None:
    seen: list[Snapshot] = []

    def twice(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        if (queue, state) == ("jobs", State.DONE):
            seen[:] = [item for item in items if item.message.id == stock["done"]]
        if (queue, state) == ("jobs", State.AVAILABLE):
            return [*(replace(item, state=state) for item in seen), *items]
        return items

    liar.on_page = twice
    for deep in (True, False):
        report = await verify(liar, deep=deep)
        assert named(report) == {("S3", "jobs", stock["done"]), ("Q2", "jobs", None)}
        assert "done in 'jobs' and available in 'jobs'" in str(report.violations)


@law("S3")
async def test_a_delivery_of_another_state_than_was_asked_for(liar: Liar, stock: Stock) -> None:
    change = changing(stock["second"], state=State.DELAYED, at=1)
    liar.on_page = lambda queue, state, items: change(items)
    assert ("S3", "jobs", stock["second"]) in named(await verify(liar))


@law("S3")
async def test_two_deliveries_of_one_message_in_one_queue(liar: Liar, stock: Stock) -> None:
    def double(found: MessageDeliveries) -> MessageDeliveries:
        if found.message.id != stock["second"]:
            return found
        (only,) = found.deliveries
        return replace(found, deliveries=(only, replace(only, state=State.DONE, attempts=1)))

    liar.on_message = double
    assert named(await verify(liar)) == {("S3", "jobs", stock["second"])}


@law("S3")
async def test_a_message_that_says_it_is_elsewhere(liar: Liar, stock: Stock) -> None:
    def elsewhere(found: MessageDeliveries) -> MessageDeliveries:
        moved = [
            replace(item, state=State.DELAYED, at=1) if item.message.id == stock["second"] else item
            for item in found.deliveries
        ]
        return replace(found, deliveries=tuple(moved))

    liar.on_message = elsewhere
    assert named(await verify(liar)) == {("S3", "jobs", stock["second"])}


@law("S3")
async def test_a_transition_that_the_table_does_not_have(liar: Liar, stock: Stock) -> None:
    liar.on_history = lambda message_id, events: tuple(
        replace(event, state=State.DONE)
        if message_id == stock["retried"] and event.transition is Transition.NACK
        else event
        for event in events
    )
    assert named(await verify(liar)) == {("S3", "jobs", stock["retried"])}


@law("Q2")
@pytest.mark.parametrize(
    "changes",
    [
        {"available": 99},
        {"done": 0},
        {"expired": 2},
        {"failed": 0},
        {"watermark": Offset(-1)},
        {"lag": 1_000},
        {"in_flight_by_consumer": {"bert": 1}},
        {"in_flight_by_consumer": {}},
    ],
    ids=str,
)
@pytest.mark.parametrize("deep", [True, False])
async def test_counts_that_are_wrong(liar: Liar, changes: dict[str, object], deep: bool) -> None:
    liar.on_stats = lambda queue, stats: replace(stats, **changes) if queue == "jobs" else stats
    assert named(await verify(liar, deep=deep)) == {("Q2", "jobs", None)}


@law("Q2")
@pytest.mark.parametrize("change", ["unsettled", "in_flight", "watermark"])
async def test_partitions_that_are_wrong(liar: Liar, change: str) -> None:
    def lie(queue: str, stats: QueueStats) -> QueueStats:
        if queue != "lanes":
            return stats
        first, second = stats.partitions
        less = replace(first, **{change: getattr(first, change) - 1})
        more = replace(second, **{change: getattr(second, change) + 1})
        return replace(stats, partitions=(less, more))

    liar.on_stats = lie
    assert named(await verify(liar)) == {("Q2", "lanes", None)}


@law("Q2")
async def test_a_lag_that_leaves_out_what_is_not_routed(liar: Liar) -> None:
    liar.on_stats = lambda queue, stats: replace(stats, lag=stats.depth)
    assert named(await verify(liar)) == {("Q2", "behind.queue", None)}


@law("Q2")
async def test_a_count_that_is_never_still_is_skipped(liar: Liar) -> None:
    calls = 0

    def count(queue: str, stats: QueueStats) -> QueueStats:
        nonlocal calls
        calls += 1
        return replace(stats, grants=calls)

    liar.on_stats = count
    report = await verify(liar)
    assert report.ok
    assert not report.quiescent
    (check,) = (item for item in report.checks if item.law == "Q2")
    assert check.skipped is not None
    assert "'jobs' was too busy to be counted" in check.skipped


# -- R1 ------------------------------------------------------------------------------------


@law("R1")
async def test_a_delivery_that_does_not_belong_here(liar: Liar, stock: Stock) -> None:
    liar.on_queue = lambda info: (
        replace(info, policy=replace(info.policy, filter="name <> 'released'"))
        if info.name == "jobs"
        else info
    )
    found = named(await verify(liar))
    assert ("R1", "jobs", stock["released"]) in found
    assert ("R1", "jobs", stock["retried"]) not in found


# -- C1, C2, C3, C4: what it says of itself ------------------------------------------------


@law("C1")
@pytest.mark.parametrize("field", ["consumer", "claimed_at", "lease_deadline"])
async def test_in_flight_without_a_holder(liar: Liar, stock: Stock, field: str) -> None:
    held = stock["in flight"]
    lie_everywhere(liar, held, **{field: None})
    assert ("C1", "jobs", held) in named(await verify(liar))


@law("C1")
async def test_two_live_claims(liar: Liar, stock: Stock) -> None:
    held = stock["in flight"]
    extra = Event(at=2, queue="jobs", transition=Transition.CLAIM, state=State.IN_FLIGHT)
    liar.on_history = lambda message_id, events: (*events, extra) if message_id == held else events
    assert named(await verify(liar)) == {("C1", "jobs", held), ("C2", "jobs", held)}


@law("C2")
@pytest.mark.parametrize("name", ["done", "retried", "first", "failed"])
async def test_attempts_that_are_not_the_grants(liar: Liar, stock: Stock, name: str) -> None:
    lie_everywhere(liar, stock[name], attempts=3)
    found = named(await verify(liar))
    assert found == {("C2", "jobs", stock[name])}


@law("C2")
async def test_done_without_a_grant(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["done"], attempts=0)
    assert named(await verify(liar, deep=False)) == {("C2", "jobs", stock["done"])}


@law("C2")
async def test_more_released_than_granted(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["in flight"], released=1)
    assert named(await verify(liar, deep=False)) == {("C2", "jobs", stock["in flight"])}


@law("C3")
async def test_granted_before_its_time(q: Broker, clock: FakeClock) -> None:
    message_id = (await q.publish("jobs", b"", delay_ms=60_000)).id
    clock.advance(60_000)
    await q.claim("jobs")
    liar = Liar(q)
    assert (await verify(liar)).ok
    liar.on_history = lambda _, events: tuple(
        replace(event, at=event.at - 30_000) if event.transition is Transition.CLAIM else event
        for event in events
    )
    assert named(await verify(liar)) == {("C3", "jobs", message_id)}


@law("C3")
async def test_granted_after_it_expired(q: Broker, clock: FakeClock) -> None:
    message_id = (await q.publish("jobs", b"", ttl_ms=60_000)).id
    await q.claim("jobs")
    liar = Liar(q)
    assert (await verify(liar)).ok
    liar.on_history = lambda _, events: tuple(
        replace(event, at=event.at + 90_000) if event.transition is Transition.CLAIM else event
        for event in events
    )
    assert named(await verify(liar)) == {("C3", "jobs", message_id)}


@law("C3")
async def test_dead_letters_do_not_expire(q: Broker, clock: FakeClock) -> None:
    await q.publish("jobs", b"", ttl_ms=60_000)
    (delivery,) = await q.claim("jobs")
    await q.reject(delivery, "no")
    clock.advance(90_000)
    assert len(await q.claim("jobs.dlq")) == 1
    assert (await verify(q)).ok


@law("C3")
@pytest.mark.parametrize(
    "name, changes",
    [("delayed", {"at": 1_000}), ("delayed", {"at": None}), ("expired", {"at": 1_000})],
    ids=str,
)
async def test_before_its_time(
    liar: Liar, stock: Stock, name: str, changes: dict[str, object]
) -> None:
    lie_everywhere(liar, stock[name], **changes)
    assert named(await verify(liar)) == {("C3", "jobs", stock[name])}


@law("C4")
async def test_pages_out_of_order(liar: Liar, stock: Stock) -> None:
    def turn(queue: str, state: State, items: list[Snapshot]) -> list[Snapshot]:
        return items[::-1] if (queue, state) == ("jobs", State.AVAILABLE) else items

    liar.on_page = turn
    found = named(await verify(liar))
    assert {law for law, _, _ in found} == {"C4"}
    assert ("C4", "jobs", stock["first"]) in found


@law("C4")
async def test_priority_goes_first(q: Broker) -> None:
    low = (await q.publish("jobs", b"", priority=1)).id
    high = (await q.publish("jobs", b"", priority=9)).id
    liar = Liar(q)
    assert (await verify(liar)).ok
    liar.on_page = lambda queue, state, items: sorted(items, key=lambda item: item.message.id)
    assert named(await verify(liar)) == {("C4", "jobs", high)}
    assert low < high


# -- S2, D1 --------------------------------------------------------------------------------


@law("S2")
async def test_acked_twice(liar: Liar, stock: Stock) -> None:
    def again(message_id: int, events: tuple[Event, ...]) -> tuple[Event, ...]:
        return (*events, *events[1:]) if message_id == stock["done"] else events

    liar.on_history = again
    found = named(await verify(liar))
    assert found == {("S2", "jobs", stock["done"]), ("C2", "jobs", stock["done"])}


@law("D1")
@pytest.mark.parametrize("place", [("jobs", State.FAILED), ("jobs.dlq", State.AVAILABLE)])
async def test_a_failed_delivery_in_one_list_only(
    liar: Liar, stock: Stock, place: tuple[str, State]
) -> None:
    lost = stock["failed"]
    liar.on_page = lambda queue, state, items: (
        without_delivery(items, lost) if (queue, state) == place else items
    )
    report = await verify(liar)
    assert ("D1", "jobs", lost) in named(report)
    assert {item.message_id for item in report.violations} <= {lost, None}


@law("D1")
async def test_a_payload_that_the_dead_letter_queue_has_not(liar: Liar, stock: Stock) -> None:
    liar.on_page = lambda queue, state, items: [
        replace(item, payload=b"") if item.payload == b"failed" else item for item in items
    ]
    assert named(await verify(liar)) == {("D1", "jobs.dlq", stock["failed"])}


@law("D1")
async def test_an_error_that_is_lost(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["failed"], error=None)
    assert named(await verify(liar)) == {("D1", "jobs", stock["failed"])}


@law("D1")
async def test_failed_without_a_time(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["failed"], at=None)
    assert named(await verify(liar)) == {("D1", "jobs", stock["failed"])}


@law("D1")
async def test_failed_without_a_grant(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["failed"], attempts=0)
    assert named(await verify(liar, deep=False)) == {("D1", "jobs", stock["failed"])}


@law("D1")
async def test_a_history_that_does_not_say_how_it_failed(liar: Liar, stock: Stock) -> None:
    liar.on_history = lambda message_id, events: (
        events[:1] if message_id == stock["failed"] else events
    )
    assert ("D1", "jobs", stock["failed"]) in named(await verify(liar))


# -- O1 ------------------------------------------------------------------------------------


@law("O1")
async def test_two_owners_in_one_epoch(liar: Liar) -> None:
    calls = 0

    def change_hands(queue: str, stats: QueueStats) -> QueueStats:
        nonlocal calls
        calls += 1
        owner = "anna" if calls % 2 else "bert"
        return replace(
            stats, partitions=tuple(replace(item, owner=owner) for item in stats.partitions)
        )

    liar.on_stats = change_hands
    report = await verify(liar)
    assert ("O1", "lanes", None) in named(report)
    assert "'bert' and 'anna' in epoch 1" in str(report.violations)


@law("O1")
async def test_held_by_somebody_else(liar: Liar, stock: Stock) -> None:
    lie_everywhere(liar, stock["a0"], consumer="bert")
    report = await verify(liar)
    assert ("O1", "lanes", stock["a0"]) in named(report)


@law("O1")
async def test_a_partition_that_is_there_twice(liar: Liar) -> None:
    liar.on_stats = lambda queue, stats: replace(stats, partitions=stats.partitions * 2)
    assert ("O1", "lanes", None) in named(await verify(liar))


# -- what never stands still ---------------------------------------------------------------


async def test_a_history_that_grows_at_every_look_is_unresolved(liar: Liar, stock: Stock) -> None:
    """Its delivery and its history never belong to the same moment."""
    pairs: list[Event] = []

    def grow(message_id: int, events: tuple[Event, ...]) -> tuple[Event, ...]:
        if message_id != stock["retried"]:
            return events
        for transition, state in (
            (Transition.CLAIM, State.IN_FLIGHT),
            (Transition.RELEASE, State.AVAILABLE),
        ):
            pairs.append(Event(at=len(pairs), queue="jobs", transition=transition, state=state))
        return (*events, *pairs)

    liar.on_history = grow
    report = await verify(liar)
    assert report.ok
    assert [check.law for check in report.checks if check.unresolved] == ["C2"]


@law("S3")
async def test_a_delivery_that_moves_at_every_look_is_unresolved(liar: Liar, stock: Stock) -> None:
    """Pages leave it out, and it is never known where it was when they were read."""
    calls = 0

    def move(found: MessageDeliveries) -> MessageDeliveries:
        nonlocal calls
        calls += 1
        if found.message.id != stock["second"]:
            return found
        return replace(found, deliveries=(replace(found.deliveries[0], at=calls),))

    liar.on_message = move
    liar.on_page = lambda queue, state, items: without_delivery(items, stock["second"])
    report = await verify(liar)
    assert named(report) == {("Q2", "jobs", None)}
    assert [check.law for check in report.checks if check.unresolved] == ["S3"]


async def test_an_owner_who_changes_at_every_look_is_unresolved(liar: Liar) -> None:
    calls = 0

    def change_hands(queue: str, stats: QueueStats) -> QueueStats:
        nonlocal calls
        calls += 1
        return replace(
            stats,
            partitions=tuple(
                replace(item, owner="bert", epoch=calls + 10) for item in stats.partitions
            ),
        )

    liar.on_stats = change_hands
    report = await verify(liar)
    assert report.ok
    assert [check.law for check in report.checks if check.unresolved] == ["O1"]


# -- what a report keeps -------------------------------------------------------------------


async def test_violations_are_counted_and_the_first_are_kept(q: Broker) -> None:
    for _ in range(150):
        await q.publish("jobs", b"")
    liar = Liar(q)
    liar.on_page = lambda queue, state, items: [replace(item, attempts=-1) for item in items]
    report = await verify(liar, deep=False)
    (check,) = (item for item in report.checks if item.law == "C2")
    assert (len(check.violations), check.violation_count) == (100, 150)
    assert report.violation_count == 150
    assert str(check.violations[0]) == "C2 queue 'jobs', message 0: it has -1 attempts"
