"""Queues: sound policies or a refusal that names the field and its limit (E1)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, cast, get_type_hints

import pytest
from msgspec.structs import replace

import penstock
from penstock import (
    Backoff,
    Broker,
    BrokerOptions,
    EngineOptions,
    NewMessage,
    Ordering,
    QueuePolicy,
    RetryPosition,
    Start,
    TopicPolicy,
)
from penstock.broker.queues import new_policy
from penstock.errors import (
    BadFilter,
    BadInput,
    BadName,
    BadPolicy,
    QueueExists,
    QueueNotEmpty,
    UnknownQueue,
)
from penstock.model.limits import MAX_FILTER_BYTES, MAX_FILTER_NODES
from penstock.model.policy_fields import PolicyChanges
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

U32_MAX: Final = 2**32 - 1
TWELVE_HOURS_MS: Final = 43_200_000
WEEK_MS: Final = 604_800_000

#: Field, least, most.
BOUNDS: Final[list[Any]] = [
    ("max_attempts", 1, 65_535),
    ("min_lease_ms", 1, TWELVE_HOURS_MS),
    ("max_lease_ms", 100, TWELVE_HOURS_MS),
    ("lease_ms", 1, TWELVE_HOURS_MS),
    ("done_retention_s", 0, U32_MAX),
    ("failed_retention_s", 0, U32_MAX),
    ("max_depth", 1, 2**53),
    ("message_ttl_ms", 1, 3650 * 86_400_000),
    ("throughput_limit", 1, 10**9),
    ("partition_concurrency", 1, 1000),
    ("partition_batch", 1, 1000),
    ("bucket_size", 0, 4),
]


#: Fields in which 0 means unlimited.
UNLIMITED = ("max_depth", "message_ttl_ms", "throughput_limit")


class Level(IntEnum):
    HIGH = 3


def each_bad(bounds: list[Any]) -> list[Any]:
    """A value below, one above, and what is no whole number at all."""
    return [
        case
        for field, least, most in bounds
        for case in (
            (field, least - 1, least),
            (field, -(2**70), least),
            (field, most + 1, most),
            (field, True, least if least > 1 else most),
            (field, float(least), most),
            (field, str(least), most),
        )
    ]


# -- names -----------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "name", [None, 5, b"x", "", "-a", "_a", "a b", "a\n", "é", "日本", "q" * 129]
)
async def test_a_queue_that_is_not_a_name(q: Broker, refuses: Refuses, name: Any) -> None:
    calls = (
        q.create_queue(name),
        q.update_queue(name, max_attempts=1),
        q.delete_queue(name),
        q.queue(name),
        q.pause(name),
        q.resume(name),
        q.stats(name),
    )
    for call in calls:
        await refuses(call, BadName, "queue", 128)


@law("E1")
async def test_a_dead_letter_queue_comes_with_its_queue(q: Broker, refuses: Refuses) -> None:
    for call in (
        q.create_queue("stock.dlq"),
        q.update_queue("stock.dlq", max_attempts=1),
        q.delete_queue("stock.dlq"),
    ):
        await refuses(call, BadName, "queue")


@law("E1")
async def test_a_queue_that_is_not_there(q: Broker, refuses: Refuses) -> None:
    for call in (
        q.update_queue("nowhere", max_attempts=1),
        q.delete_queue("nowhere"),
        q.queue("nowhere"),
        q.queue("nowhere.dlq"),
        q.pause("nowhere"),
        q.resume("nowhere"),
        q.stats("nowhere"),
    ):
        await refuses(call, UnknownQueue, "queue")


async def test_a_name_of_128_characters(q: Broker) -> None:
    name = "Q9._-" + "z" * 123
    assert (await q.create_queue(name)).name == name
    assert (await q.queue(f"{name}.dlq")).name == f"{name}.dlq"


# -- policies --------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "field, value, limit",
    [case for case in each_bad(BOUNDS) if case[0] not in UNLIMITED]
    + [("max_depth", -1, 0), ("max_depth", 2**53 + 1, 2**53), ("labels", {"a" * 65: ""}, 64)],
)
async def test_a_policy_out_of_bounds(
    q: Broker, refuses: Refuses, field: str, value: Any, limit: int
) -> None:
    policy: dict[str, Any] = {field: value}
    await refuses(q.create_queue("orders", **policy), BadPolicy, field, limit)
    await refuses(q.update_queue("stock", **policy), BadPolicy, field, limit)


async def test_queues_are_found_by_their_labels(q: Broker, refuses: Refuses) -> None:
    await q.create_queue("a", labels={"team": "billing", "tier": "gold"})
    await q.create_queue("b", labels={"team": "billing"})
    assert (await q.queue("a.dlq")).policy.labels == {"team": "billing", "tier": "gold"}

    async def found(**labels: str) -> list[str]:
        return [info.name for info in await q.queues(labels=labels)]

    assert await found(team="billing") == ["a", "b"]
    assert await found(team="billing", tier="gold") == ["a"]
    assert await found(team="gold") == []
    assert len(await found()) == len(await q.queues())
    await q.update_queue("a", labels={})
    assert await found(tier="gold") == []
    await refuses(q.queues(labels={"a b": "x"}), BadPolicy, "labels", 64)
    for bad in ("team=billing", ["team"], 5, [("team", "billing")]):
        await refuses(q.queues(labels=bad), BadPolicy, "labels")  # type: ignore[arg-type]


async def test_only_unordered_queues_send_retries_to_the_back(q: Broker, refuses: Refuses) -> None:
    await refuses(q.create_queue("orders", retry_position="front"), BadPolicy, "retry_position")
    both = q.create_queue("orders", ordering="partition", retry_position="back")
    await refuses(both, BadPolicy, "retry_position")
    before = (await q.create_queue("orders", retry_position="back")).policy
    assert before.retry_position is RetryPosition.BACK
    changed = q.update_queue("orders", ordering="partition")
    await refuses(changed, BadPolicy, "retry_position")
    assert (await q.queue("orders")).policy == before


async def test_a_partition_batch_needs_strict_order(q: Broker, refuses: Refuses) -> None:
    both: dict[str, Any] = {"partition_batch": 2, "partition_concurrency": 2}
    await refuses(q.create_queue("orders", **both), BadPolicy, "partition_batch", 1)
    before = (await q.create_queue("orders", ordering="partition", partition_batch=2)).policy
    changed = q.update_queue("orders", partition_concurrency=2)
    await refuses(changed, BadPolicy, "partition_batch", 1)
    assert (await q.queue("orders")).policy == before


@pytest.mark.parametrize("field", sorted(QueuePolicy.__struct_fields__))
async def test_null_reverts_to_the_default(q: Broker, field: str) -> None:
    changed: dict[str, Any] = {
        "max_attempts": 9,
        "lease_ms": 5_000,
        "min_lease_ms": 200,
        "max_lease_ms": 9_000,
        "backoff": {"base_ms": 1, "max_ms": 2},
        "done_retention_s": 1,
        "failed_retention_s": 1,
        "max_depth": 1,
        "message_ttl_ms": 1,
        "throughput_limit": 1,
        "ordering": "partition",
        "partition_concurrency": 2,
        "partition_batch": 2,
        "retry_position": "back",
        "bucket_size": 3,
        "dead_letters": False,
        "dead_letter_topic": "dead",
        "dead_letter_expired": True,
        "paused": True,
        "description": "x",
        "labels": {"a": "b"},
    }
    if field not in changed:
        pytest.skip("it has no default, or belongs to another test")
    given, null = {field: changed[field]}, cast("dict[str, Any]", {field: None})
    info = await q.create_queue("orders", **given)
    assert info.policy != QueuePolicy()
    assert (await q.update_queue("orders", **null)).policy == QueuePolicy()
    assert (await q.create_queue("again", **null)).policy == QueuePolicy()


@law("E1")
@pytest.mark.parametrize("topic", [5, "a b", "-a", "q.dlq", "é", "t" * 129, ["dead"]])
async def test_a_dead_letter_topic_that_is_not_a_name(
    q: Broker, refuses: Refuses, topic: Any
) -> None:
    await q.create_queue("orders")
    limit = None if topic == "q.dlq" else 128
    for call in (
        q.create_queue("other", dead_letter_topic=topic),
        q.update_queue("orders", dead_letter_topic=topic),
    ):
        await refuses(call, BadName, "dead_letter_topic", limit)


async def test_an_empty_dead_letter_topic_is_none(clock: FakeClock) -> None:
    default = QueuePolicy(dead_letter_topic="dead")
    options = BrokerOptions(engine=EngineOptions(clock=clock, default_policy=default))
    async with penstock.open("memory://", options=options, keepers=False) as q:
        assert (await q.create_queue("a")).policy.dead_letter_topic == "dead"
        assert (await q.update_queue("a", dead_letter_topic="")).policy.dead_letter_topic is None
        assert (await q.create_queue("b", dead_letter_topic="")).policy.dead_letter_topic is None


async def test_the_defaults_of_the_server(clock: FakeClock) -> None:
    default = QueuePolicy(max_attempts=2, max_depth=7, backoff=Backoff(1, 2))
    options = BrokerOptions(engine=EngineOptions(clock=clock, default_policy=default))
    async with penstock.open("memory://", options=options, keepers=False) as q:
        assert (await q.create_queue("a", "color = 'red'")).policy == replace(
            default, filter="color = 'red'"
        )
        own = await q.create_queue("b", "topic = 'b'", max_attempts=3, max_depth=0)
        assert (own.policy.max_attempts, own.policy.max_depth) == (3, None)
        reverted = await q.update_queue("b", max_attempts=None, max_depth=None)
        assert (reverted.policy.max_attempts, reverted.policy.max_depth) == (2, 7)
        assert reverted.policy.filter == "topic = 'b'"
        await q.put_topic("orders", TopicPolicy(queue_defaults={"max_depth": 0, "paused": True}))
        await q.publish("orders", b"")
        created = (await q.queue("orders")).policy
        assert (created.max_attempts, created.max_depth, created.paused) == (2, None, True)


@law("E1")
@pytest.mark.parametrize(
    "defaults, field, limit",
    [
        ({"max_attempts": 0}, "max_attempts", 1),
        ({"filter": "TRUE"}, "filter", None),
        ({"unknown": 1}, "unknown", None),
        ({"unknown": None}, "unknown", None),
        ({"backoff": {"base_ms": "x"}}, "backoff", None),
        ({"ordering": "fifo"}, "ordering", None),
        ([], "queue_defaults", None),
        ({5: 5}, "queue_defaults", None),
    ],
)
async def test_bad_defaults_of_a_topic(
    q: Broker, refuses: Refuses, defaults: Any, field: str, limit: int | None
) -> None:
    policy = TopicPolicy(queue_defaults=defaults)
    await refuses(q.put_topic("orders", policy), BadPolicy, field, limit)


async def test_the_defaults_of_a_topic_are_stored_as_plain_values(q: Broker) -> None:
    # A null says nothing.
    given = {"backoff": Backoff(1, 2), "ordering": Ordering.PARTITION, "max_depth": None}
    await q.put_topic("orders", TopicPolicy(queue_defaults=given))
    stored = await q.topic("orders")
    assert stored is not None
    assert stored.queue_defaults == {
        "backoff": {"base_ms": 1, "max_ms": 2},
        "ordering": "partition",
    }


async def test_a_max_depth_of_zero_is_unlimited(q: Broker) -> None:
    assert (await q.create_queue("orders", max_depth=0)).policy.max_depth is None
    await q.update_queue("orders", max_depth=3)
    assert (await q.update_queue("orders", max_depth=0)).policy.max_depth is None


@pytest.mark.parametrize("field, least, most", BOUNDS)
async def test_a_policy_at_its_bounds(q: Broker, field: str, least: int, most: int) -> None:
    for number, value in enumerate((least, most)):
        policy: dict[str, Any] = {field: value}
        if field == "min_lease_ms":
            policy["max_lease_ms"] = most
        info = await q.create_queue(f"orders{number}", **policy)
        assert getattr(info.policy, field) == value
        assert (await q.queue(f"orders{number}")).policy == info.policy


@law("E1")
@pytest.mark.parametrize(
    "backoff, field, limit",
    [
        (Backoff(-1, 5), "backoff.base_ms", 0),
        (Backoff(TWELVE_HOURS_MS + 1, WEEK_MS), "backoff.base_ms", TWELVE_HOURS_MS),
        (Backoff(5, 4), "backoff.max_ms", 5),
        (Backoff(5, WEEK_MS + 1), "backoff.max_ms", WEEK_MS),
        (Backoff("1"), "backoff.base_ms", TWELVE_HOURS_MS),  # type: ignore[arg-type]
        (Backoff(5, None), "backoff.max_ms", WEEK_MS),  # type: ignore[arg-type]
    ],
)
async def test_a_backoff_out_of_bounds(
    q: Broker, refuses: Refuses, backoff: Backoff, field: str, limit: int
) -> None:
    await refuses(q.create_queue("orders", backoff=backoff), BadPolicy, field, limit)


@pytest.mark.parametrize("backoff", [Backoff(0, 0), Backoff(TWELVE_HOURS_MS, WEEK_MS)])
async def test_a_backoff_at_its_bounds(q: Broker, backoff: Backoff) -> None:
    assert (await q.create_queue("orders", backoff=backoff)).policy.backoff == backoff


@law("E1")
@pytest.mark.parametrize("backoff", [5, (1, 2), {"base_ms": "1"}, {"base_ms": -1}], ids=repr)
async def test_a_backoff_that_is_none(q: Broker, backoff: Any) -> None:
    with pytest.raises(BadPolicy) as caught:
        await q.create_queue("orders", backoff=backoff)
    assert (caught.value.field or "").partition(".")[0] == "backoff"
    assert await q.queues() == ()


@law("E1")
@pytest.mark.parametrize(
    "field, value, limit",
    [
        ("ordering", "priority", None),
        ("ordering", [], None),
        ("paused", 1, None),
        ("paused", "yes", None),
        ("description", "x" * 4097, 4096),
        ("description", "é" * 2049, 4096),
        ("description", b"x", 4096),
    ],
)
async def test_a_policy_of_the_wrong_kind(
    q: Broker, refuses: Refuses, field: str, value: Any, limit: int | None
) -> None:
    policy: dict[str, Any] = {field: value}
    await refuses(q.create_queue("orders", **policy), BadPolicy, field, limit)
    await refuses(q.update_queue("stock", **policy), BadPolicy, field, limit)


@law("E1")
async def test_a_description_that_is_not_unicode(q: Broker, refuses: Refuses) -> None:
    await refuses(q.create_queue("orders", description="\ud800"), BadPolicy, "description")


async def test_a_description_of_4096_bytes(q: Broker) -> None:
    info = await q.create_queue("orders", description="é" * 2048)
    assert info.policy.description == "é" * 2048


@law("C4")
@pytest.mark.parametrize("verb", ["create", "update"])
async def test_an_ordering_given_as_text_is_an_ordering(q: Broker, verb: str) -> None:
    if verb == "create":
        await q.create_queue("orders", ordering="partition")
    else:
        await q.create_queue("orders")
        await q.update_queue("orders", ordering="partition")
    await q.publish("orders", b"", partition_key="k")
    await q.publish("orders", b"", partition_key="k")
    assert (await q.queue("orders")).policy.ordering is Ordering.PARTITION
    assert len(await q.claim("orders", limit=2)) == 1


@law("E1")
@pytest.mark.parametrize("field", [field for field, _, _ in BOUNDS])
async def test_a_number_in_a_policy_is_a_plain_number(
    q: Broker, refuses: Refuses, field: str
) -> None:
    """An enumeration's member would be kept as one until the store is reopened."""
    for value in (Level.HIGH, True):
        policy: dict[str, Any] = {field: value}
        _, least, most = next(bounds for bounds in BOUNDS if bounds[0] == field)
        limit = least if value < least else most
        await refuses(q.create_queue("orders", **policy), BadPolicy, field, limit)
        await refuses(q.update_queue("stock", **policy), BadPolicy, field, limit)


@law("E1")
async def test_a_backoff_has_plain_numbers(q: Broker, refuses: Refuses) -> None:
    for backoff, field in (
        (Backoff(Level.HIGH, 5), "backoff.base_ms"),
        (Backoff(1, Level.HIGH), "backoff.max_ms"),
        (Backoff(True, 5), "backoff.base_ms"),
    ):
        limit = WEEK_MS if field == "backoff.max_ms" else TWELVE_HOURS_MS
        await refuses(q.create_queue("orders", backoff=backoff), BadPolicy, field, limit)


@pytest.mark.parametrize("ordering", ["none", "partition"])
async def test_an_ordering_given_as_text_is_kept_as_the_enumeration(
    q: Broker, ordering: str
) -> None:
    await q.create_queue("orders", ordering=Ordering(ordering))
    same = await q.update_queue("orders", ordering=ordering, max_attempts=7)
    assert same.policy.ordering is Ordering(ordering)
    assert (await q.update_queue("orders", max_attempts=8)).policy.ordering is Ordering(ordering)
    assert new_policy({"ordering": ordering}).ordering is Ordering(ordering)


@law("E1")
@pytest.mark.parametrize("field", ["max_attempt", "Filter", "tenant", "wait", "start_at"])
async def test_a_field_that_no_policy_has(q: Broker, refuses: Refuses, field: str) -> None:
    policy: dict[str, Any] = {field: 1}
    error = await refuses(q.create_queue("orders", **policy), BadPolicy, field)
    assert "max_attempts" in error.detail
    await refuses(q.update_queue("stock", **policy), BadPolicy, field)


@law("E1")
def test_the_broker_does_not_leave_the_filter_to_the_engine() -> None:
    assert new_policy({"filter": "amount > 1"}).filter == "amount > 1"
    with pytest.raises(BadFilter):
        new_policy({"filter": "amount >"})
    with pytest.raises(BadFilter):
        new_policy({"filter": "amount >"})


async def test_what_is_not_given_has_its_default(q: Broker) -> None:
    info = await q.create_queue("orders")
    assert info.policy == QueuePolicy()
    assert (info.tenant, info.filter_version, info.cursor) == ("default", 1, None)


async def test_update_changes_what_it_names_and_nothing_else(q: Broker) -> None:
    before = (await q.create_queue("orders", "amount > 1", max_attempts=3, max_depth=9)).policy
    after = (await q.update_queue("orders", max_attempts=4)).policy
    assert after.max_attempts == 4
    assert (after.filter, after.max_depth) == (before.filter, before.max_depth)
    assert (await q.update_queue("orders")).policy == after


async def test_putting_again_gives_exactly_the_new_policy(q: Broker) -> None:
    await q.put_queue("orders", "amount > 1", max_attempts=3)
    info = await q.put_queue("orders", max_depth=9)
    assert info.policy == QueuePolicy(max_depth=9)
    assert info.filter_version == 2


@law("E1")
async def test_creating_again_with_another_policy_changes_nothing(q: Broker) -> None:
    made = await q.create_queue("orders", "amount > 1", max_attempts=3)
    assert await q.create_queue("orders", "amount > 1", max_attempts=3) == made
    with pytest.raises(QueueExists) as refused:
        await q.create_queue("orders", "amount > 1")
    assert refused.value.field == "max_attempts"
    assert await q.queue("orders") == made


async def test_ensuring_leaves_an_existing_queue_alone(q: Broker) -> None:
    made = await q.ensure_queue("orders", "amount > 1", max_attempts=3)
    assert made.policy == QueuePolicy(filter="amount > 1", max_attempts=3)
    assert await q.ensure_queue("orders", max_depth=9) == made


async def test_policies_take_timedeltas(q: Broker) -> None:
    info = await q.create_queue(
        "orders", lease_ms=timedelta(minutes=1), done_retention_s=timedelta(days=1)
    )
    assert (info.policy.lease_ms, info.policy.done_retention_s) == (60_000, 86_400)
    info = await q.update_queue("orders", backoff=Backoff(timedelta(seconds=2)))
    assert info.policy.backoff == Backoff(2_000)


async def test_the_old_name_of_the_lease_is_still_read(q: Broker, refuses: Refuses) -> None:
    old: Any = {"visibility_timeout_ms": 7_000}
    assert (await q.create_queue("orders", **old)).policy.lease_ms == 7_000
    with pytest.raises(BadPolicy) as refused:
        await q.update_queue("orders", lease_ms=5, **old)
    assert refused.value.field == "lease_ms"


def test_every_policy_field_is_a_typed_argument() -> None:
    assert get_type_hints(PolicyChanges).keys() == set(QueuePolicy.__struct_fields__)


@law("R1")
async def test_a_changed_filter_routes_from_then_on(q: Broker) -> None:
    await q.create_queue("orders", "amount >= 100")
    await q.publish("orders", b"old", headers={"amount": 100})
    info = await q.update_queue("orders", filter="amount < 100")
    assert info.filter_version == 2
    await q.publish("orders", b"no", headers={"amount": 100})
    await q.publish("orders", b"new", headers={"amount": 99})
    assert [item.payload for item in await q.claim("orders", limit=9)] == [b"old", b"new"]


@law("E1")
@pytest.mark.parametrize("field, value", [("bucket_size", 3), ("ordering", Ordering.PARTITION)])
async def test_what_a_queue_with_deliveries_does_not_change(
    q: Broker, refuses: Refuses, field: str, value: Any
) -> None:
    policy: dict[str, Any] = {field: value}
    await refuses(q.update_queue("stock", **policy), QueueNotEmpty, field)


async def test_updates_at_the_same_time_are_both_kept(q: Broker) -> None:
    await q.create_queue("orders", "FALSE")
    # The publish keeps the store busy, so that reading the policy has to wait.
    await asyncio.gather(
        q.publish("other", b""),
        q.update_queue("orders", max_attempts=2),
        q.update_queue("orders", description="both"),
        q.pause("orders"),
    )
    policy = (await q.queue("orders")).policy
    assert (policy.max_attempts, policy.description, policy.paused) == (2, "both", True)
    await asyncio.gather(
        q.publish("other", b""),
        q.update_queue("orders", max_depth=7),
        q.resume("orders"),
        q.for_tenant("default").update_queue("orders", description="all"),
        q.update_queue("orders", bucket_size=3),
    )
    policy = (await q.queue("orders")).policy
    assert (policy.max_attempts, policy.max_depth, policy.bucket_size) == (2, 7, 3)
    assert (policy.description, policy.paused) == ("all", False)


async def test_creating_and_updating_at_the_same_time_follow_one_another(q: Broker) -> None:
    await q.create_queue("orders", "FALSE", description="old")
    await asyncio.gather(
        q.publish("other", b""),
        q.update_queue("orders", max_attempts=2),
        q.put_queue("orders", "FALSE", max_depth=9),
        q.update_queue("orders", bucket_size=3),
    )
    policy = (await q.queue("orders")).policy
    assert policy == QueuePolicy(filter="FALSE", max_depth=9, bucket_size=3)


async def test_an_update_that_is_refused_holds_up_nobody(q: Broker) -> None:
    await q.create_queue("orders", "FALSE")
    *_, last = await asyncio.gather(
        q.publish("other", b""),
        q.update_queue("orders", max_attempts=0),
        q.update_queue("nowhere", max_attempts=1),
        q.pause("nowhere"),
        q.update_queue("orders", max_attempts=2),
        return_exceptions=True,
    )
    assert not isinstance(last, BaseException)
    assert (await q.queue("orders")).policy.max_attempts == 2


async def test_an_update_does_not_bring_back_what_was_deleted_meanwhile(q: Broker) -> None:
    await q.create_queue("orders", "FALSE")
    # The publish keeps the store busy, so that reading the policy has to wait.
    await asyncio.gather(
        q.publish("other", b""),
        q.update_queue("orders", max_attempts=2),
        q.delete_queue("orders"),
        return_exceptions=True,
    )
    assert [info.name for info in await q.queues()] == ["other"]


# -- filters ---------------------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "filter, position",
    [
        ("amount >=", 9),
        ("amount = 1 AND", 14),
        ("amount = 1 )", 11),
        ("topic = 'a' AND amount ~ 1", 23),
        ("SELECT 1", 7),
        ("nosuch(amount) = 1", 0),
        ("amount = 'open", 9),
        ("amount = 99999999999999999999", 9),
    ],
)
async def test_a_filter_that_does_not_parse(
    q: Broker, refuses: Refuses, filter: str, position: int
) -> None:
    for call in (q.create_queue("orders", filter), q.update_queue("stock", filter=filter)):
        error = await refuses(call, BadFilter, "filter")
        assert isinstance(error, BadFilter)
        assert error.position == position
        assert error.law == "R1"


@law("E1")
@pytest.mark.parametrize("filter", [None, 5, b"TRUE", "", "   ", "\ud800", "a = '\ud800'"])
async def test_a_filter_that_is_none(q: Broker, refuses: Refuses, filter: Any) -> None:
    await refuses(q.create_queue("orders", filter), BadFilter, "filter")


@law("E1")
async def test_a_filter_over_its_limits(q: Broker, refuses: Refuses) -> None:
    long = "a = '" + "x" * MAX_FILTER_BYTES + "'"
    await refuses(q.create_queue("orders", long), BadFilter, "filter", MAX_FILTER_BYTES)
    wide = " OR ".join(["a=1"] * MAX_FILTER_NODES)
    await refuses(q.create_queue("orders", wide), BadFilter, "filter", MAX_FILTER_NODES)


# -- where a queue starts --------------------------------------------------------------


@law("E1")
@pytest.mark.parametrize(
    "start",
    [
        "",
        "now",
        "EARLIEST",
        Start("now"),
        Start(None),  # type: ignore[arg-type]
    ],
    ids=repr,
)
async def test_a_start_that_is_nowhere(q: Broker, refuses: Refuses, start: Any) -> None:
    await refuses(q.create_queue("orders", start=start), BadInput, "start")


@law("E1")
@pytest.mark.parametrize(
    "start, limit",
    [
        (Start("offset", -1), 10**17 - 1),
        (Start("offset", 10**17), 10**17 - 1),
        (Start("offset", True), 10**17 - 1),
        (Start("offset", "1"), 10**17 - 1),  # type: ignore[arg-type]
        (Start("time", 253_402_300_800_000), 253_402_300_799_999),
        (Start("time", 1.5), 253_402_300_799_999),  # type: ignore[arg-type]
        (Start("latest", -1), 10**17 - 1),
    ],
    ids=repr,
)
async def test_a_start_out_of_bounds(q: Broker, refuses: Refuses, start: Start, limit: int) -> None:
    await refuses(q.create_queue("orders", start=start), BadInput, "start", limit)


@law("E1")
@pytest.mark.parametrize("start", [None, 5, ("offset", 1)], ids=repr)
async def test_a_start_that_is_none(q: Broker, refuses: Refuses, start: Any) -> None:
    await refuses(q.create_queue("orders", start=start), BadInput, "start")


async def test_a_queue_may_start_at_the_last_offset(q: Broker) -> None:
    await q.publish("orders", b"")
    await q.create_queue("late", start=Start("offset", 10**17 - 1))
    assert (await q.route("late")).assigned == 0


@law("R1")
@pytest.mark.parametrize(
    "start, expected",
    [
        ("latest", []),
        (Start(), []),
        ("earliest", [0, 1, 2, 3]),
        (Start("earliest"), [0, 1, 2, 3]),
        ("offset", [0, 1, 2, 3]),
        (Start("offset", 2), [2, 3]),
        (Start("offset", 99), []),
        (Start("time", 0), [0, 1, 2, 3]),
        (Start("time", FakeClock().now() + 1), [1, 2, 3]),
        (Start("time", FakeClock().now() + 99), []),
    ],
    ids=repr,
)
async def test_where_a_queue_starts(
    q: Broker, clock: FakeClock, start: Any, expected: list[int]
) -> None:
    for _ in range(4):
        await q.publish("orders", b"")
        clock.advance(1)
    await q.create_queue("late", start=start)
    while (await q.queue("late")).cursor is not None:
        await q.route("late", 1)
    assert [item.message.id for item in await q.claim("late", limit=9)] == expected
    await q.publish("orders", b"")
    assert [item.message.id for item in await q.claim("late", limit=9)] == [4]


# -- queues as such --------------------------------------------------------------------


async def test_queues_are_listed_by_name(q: Broker) -> None:
    for name in ("b", "a", "B", "a.b"):
        await q.create_queue(name)
    assert [info.name for info in await q.queues()] == ["B", "a", "a.b", "b"]


async def test_a_deleted_queue_is_gone_and_the_log_stays(q: Broker) -> None:
    await q.create_queue("orders")
    await q.publish("orders", b"kept")
    await q.delete_queue("orders")
    assert await q.queues() == ()
    assert await q.log_end() == 1
    with pytest.raises(UnknownQueue):
        await q.claim("orders")


async def test_pause_holds_back_and_resume_hands_out(q: Broker) -> None:
    await q.create_queue("orders")
    await q.pause("orders")
    await q.publish("orders", b"")
    assert (await q.queue("orders")).policy.paused
    assert await q.claim("orders") == []
    await q.resume("orders")
    assert not (await q.queue("orders")).policy.paused
    assert len(await q.claim("orders")) == 1


@law("Q1")
async def test_dead_letters_are_paused_apart(q: Broker) -> None:
    await q.publish_batch("orders", [NewMessage(b""), NewMessage(b"")])
    (delivery,) = await q.claim("orders")
    await q.reject(delivery)
    await q.pause("orders.dlq")
    assert await q.claim("orders.dlq") == []
    assert len(await q.claim("orders")) == 1
    await q.resume("orders.dlq")
    assert len(await q.claim("orders.dlq")) == 1
