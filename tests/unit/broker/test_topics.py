"""Topics: what their policies may be, and what they do to the messages (E1)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

import pytest

from penstock import Broker, TopicPolicy
from penstock.errors import BadName, BadPolicy, UnknownTopic
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

TEN_YEARS_MS: Final = 3650 * 24 * 3600 * 1000
MONTH_MS: Final = 30 * 24 * 3600 * 1000


async def test_durations_may_be_timedeltas(q: Broker) -> None:
    await q.put_topic(
        "t",
        TopicPolicy(
            default_ttl_ms=timedelta(days=1),
            dedup_window_ms=timedelta(seconds=5),
            queue_defaults={"lease_ms": timedelta(minutes=1)},
        ),
    )
    found = await q.topic("t")
    plain = TopicPolicy(
        default_ttl_ms=86_400_000, dedup_window_ms=5_000, queue_defaults={"lease_ms": 60_000}
    )
    assert found == plain
    await q.publish("t", b"")
    assert (await q.queue("t")).policy.lease_ms == 60_000


@law("E1")
@pytest.mark.parametrize(
    "field, value, limit",
    [
        ("default_ttl_ms", 0, 1),
        ("default_ttl_ms", timedelta(0), 1),
        ("default_ttl_ms", -(2**70), 1),
        ("default_ttl_ms", TEN_YEARS_MS + 1, TEN_YEARS_MS),
        ("default_ttl_ms", True, TEN_YEARS_MS),
        ("default_ttl_ms", 1.0, TEN_YEARS_MS),
        ("dedup_window_ms", -1, 0),
        ("dedup_window_ms", MONTH_MS + 1, MONTH_MS),
        ("dedup_window_ms", False, MONTH_MS),
        ("dedup_window_ms", "1", MONTH_MS),
        ("dedup_window_ms", None, MONTH_MS),
        ("dedup_scope", None, None),
        ("dedup_scope", "queue", None),
        ("dedup_scope", 7, None),
        ("schema_type", "xml", None),
        ("schema_type", 5, None),
    ],
)
async def test_a_topic_policy_out_of_bounds(
    q: Broker, refuses: Refuses, field: str, value: Any, limit: int | None
) -> None:
    policy: dict[str, Any] = {field: value}
    await refuses(q.put_topic("orders", TopicPolicy(**policy)), BadPolicy, field, limit)


@law("E1")
@pytest.mark.parametrize(
    "policy, limit",
    [
        (TopicPolicy(schema="{}"), None),
        (TopicPolicy(schema_type="avro"), None),
        (TopicPolicy(schema_type="avro", schema="x" * (64 * 1024 + 1)), 64 * 1024),
        (TopicPolicy(schema_type="avro", schema=b"{}"), 64 * 1024),  # type: ignore[arg-type]
    ],
    ids=["without its type", "without itself", "too long", "bytes"],
)
async def test_a_schema_that_is_none(
    q: Broker, refuses: Refuses, policy: TopicPolicy, limit: int | None
) -> None:
    await refuses(q.put_topic("orders", policy), BadPolicy, "schema", limit)


@law("E1")
async def test_a_schema_that_is_not_unicode(q: Broker, refuses: Refuses) -> None:
    policy = TopicPolicy(schema_type="avro", schema="\ud800")
    await refuses(q.put_topic("orders", policy), BadPolicy, "schema")


@law("E1")
@pytest.mark.parametrize("policy", [5, "avro", {"default_ttl_ms": 1}], ids=repr)
async def test_a_topic_policy_that_is_none(q: Broker, refuses: Refuses, policy: Any) -> None:
    await refuses(q.put_topic("orders", policy), BadPolicy, "policy")


@law("E1")
@pytest.mark.parametrize("name", [None, 5, "", "a b", "é", "t" * 129])
async def test_a_topic_that_is_not_a_name(q: Broker, refuses: Refuses, name: Any) -> None:
    for call in (q.put_topic(name), q.topic(name), q.delete_topic(name)):
        await refuses(call, BadName, "topic", 128)


@law("E1")
async def test_a_topic_that_is_not_there(q: Broker, refuses: Refuses) -> None:
    assert await q.topic("nowhere") is None
    await refuses(q.delete_topic("nowhere"), UnknownTopic, "topic")


async def test_topics_are_kept_listed_and_forgotten(q: Broker) -> None:
    policy = TopicPolicy(default_ttl_ms=TEN_YEARS_MS, dedup_window_ms=MONTH_MS)
    schema = TopicPolicy(schema_type="json-schema", schema="{}" + " " * (64 * 1024 - 2))
    await q.put_topic("b", policy)
    await q.put_topic("a")
    assert await q.topics() == (("a", TopicPolicy()), ("b", policy))
    await q.put_topic("a", schema)
    assert await q.topic("a") == schema
    await q.delete_topic("a")
    assert await q.topic("a") is None


async def test_a_topic_gives_its_messages_their_ttl(q: Broker, clock: FakeClock) -> None:
    await q.put_topic("orders", TopicPolicy(default_ttl_ms=10))
    plain = await q.publish("orders", b"")
    own = await q.publish("orders", b"", ttl_ms=20)
    expiries = [(await q.message(item.id)).message.expires_at for item in (plain, own)]
    assert expiries == [clock.now() + 10, clock.now() + 20]
