"""Schemas through the broker: a refusal stores nothing (E1), and a change counts at once."""

from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Final

import fastavro
import pytest

from penstock import Ack, Broker, NewMessage, Outgoing, TopicPolicy
from penstock.broker import schemas
from penstock.broker.schemas import compile_schema
from penstock.errors import BadInput, BadName, BadSchema, SchemaViolation, UnknownTopic
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law

if TYPE_CHECKING:
    from tests.unit.broker.conftest import Refuses

NUMBER: Final = TopicPolicy(schema_type="json-schema", schema='{"type": "number"}')
TEXT: Final = TopicPolicy(schema_type="json-schema", schema='{"type": "string"}')
POINT: Final = {
    "type": "record",
    "name": "Point",
    "fields": [{"name": "x", "type": "int"}, {"name": "label", "type": "string"}],
}
AVRO: Final = TopicPolicy(schema_type="avro", schema=json.dumps(POINT))


def avro(value: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(POINT), value)
    return out.getvalue()


def messages(*payloads: bytes) -> list[NewMessage]:
    return [NewMessage(payload) for payload in payloads]


async def stored(q: Broker) -> list[bytes | None]:
    return [entry.payload for entry in (await q.read_log(payloads=True)).entries]


# -- publishing ------------------------------------------------------------------------


async def test_what_matches_is_stored_as_it_came(q: Broker) -> None:
    await q.put_topic("numbers", NUMBER)
    await q.put_topic("points", AVRO)
    await q.publish("numbers", 1.5)
    await q.publish_batch("numbers", messages(b" 2 ", b"3"))
    await q.publish("points", avro({"x": -7, "label": "é"}))
    assert await stored(q) == [b"1.5", b" 2 ", b"3", avro({"x": -7, "label": "é"})]


@law("E1")
async def test_a_payload_that_does_not_match(q: Broker, refuses: Refuses) -> None:
    schema = '{"properties": {"lines": {"items": {"properties": {"n": {"type": "integer"}}}}}}'
    await q.put_topic("orders", TopicPolicy(schema_type="json-schema", schema=schema))
    bad = q.publish("orders", {"lines": [{"n": 1}, {"n": "two"}]})
    error = await refuses(bad, SchemaViolation, "payload")
    assert "'orders'" in error.detail
    assert "/lines/1/n" in error.detail
    assert "integer" in error.detail
    assert "two" not in error.detail, "payloads stay out of messages and logs"


@law("E1")
async def test_an_avro_payload_that_does_not_match(q: Broker, refuses: Refuses) -> None:
    await q.put_topic("points", AVRO)
    good = avro({"x": 1, "label": "a"})
    for payload, what in (
        (good + b"\0", "1 bytes are left"),
        (good[:-1], "/label"),
        (b"", "/x"),
        (b'{"x": 1, "label": "a"}', "are left"),
    ):
        error = await refuses(q.publish("points", payload), SchemaViolation, "payload")
        assert what in error.detail


@law("E1")
async def test_one_bad_message_refuses_its_batch_by_its_index(q: Broker, refuses: Refuses) -> None:
    await q.put_topic("numbers", NUMBER)
    batch = messages(b"1", b"2", b'"three"', b"4", b"five")
    error = await refuses(q.publish_batch("numbers", batch), SchemaViolation, "payload")
    assert isinstance(error, SchemaViolation)
    assert error.index == 2
    assert "message 2" in error.detail


@law("E1")
async def test_bad_options_are_still_told_first(q: Broker, refuses: Refuses) -> None:
    await q.put_topic("numbers", NUMBER)
    await refuses(q.publish("numbers", b"x", priority=10), BadInput, "priority", 9)
    await refuses(q.publish(["numbers"], b"1"), BadName, "topic", 128)  # type: ignore[arg-type]


async def test_details_are_bounded(q: Broker) -> None:
    name = "k" * 10_000
    schema = {"properties": {name: {"enum": ["v" * 1000] * 40}}, "additionalProperties": False}
    policy = TopicPolicy(schema_type="json-schema", schema=json.dumps(schema))
    await q.put_topic("orders", policy)
    for payload in ({name: 1}, {"x" * 100_000: 1}, {f"x{n}": 1 for n in range(10_000)}):
        with pytest.raises(SchemaViolation) as caught:
            await q.publish("orders", payload)
        assert len(caught.value.detail) < 600


async def test_a_bad_message_of_a_turn_does_not_spoil_the_others(q: Broker) -> None:
    await q.put_topic("numbers", NUMBER)
    payloads = [b"1", b"two", b"3"]
    replies = await asyncio.gather(
        *(q.publish("numbers", payload) for payload in payloads), return_exceptions=True
    )
    assert [isinstance(reply, SchemaViolation) for reply in replies] == [False, True, False]
    assert await stored(q) == [b"1", b"3"]


async def test_topics_that_must_be_registered_have_schemas_too(
    strict: Broker, clock: FakeClock
) -> None:
    with pytest.raises(UnknownTopic):
        await strict.publish("numbers", b"1")
    await strict.put_topic("numbers", NUMBER)
    await strict.publish("numbers", b"1")
    with pytest.raises(SchemaViolation):
        await strict.publish("numbers", b"x")
    await strict.delete_topic("numbers")
    with pytest.raises(UnknownTopic):
        await strict.publish("numbers", b"1")


async def test_the_batch_is_checked_as_it_is_stored(q: Broker) -> None:
    """The caller changes the list while the topic is looked up: what was checked is stored."""
    await q.put_topic("numbers", NUMBER)
    batch = messages(b"1")
    get_topic = q.engine.get_topic

    async def slow(tenant: str, name: str) -> TopicPolicy | None:
        policy = await get_topic(tenant, name)
        batch[0] = NewMessage(b"changed")
        return policy

    q.engine.get_topic = slow  # type: ignore[method-assign]
    with pytest.raises(SchemaViolation):
        await q.publish_batch("numbers", batch)
    assert await stored(q) == []


# -- settling --------------------------------------------------------------------------


@law("E1")
async def test_a_violation_in_what_a_settle_publishes_settles_nothing(
    q: Broker, refuses: Refuses
) -> None:
    await q.put_topic("numbers", NUMBER)
    await q.publish("work", b"")
    (delivery,) = await q.claim("work")
    publish = [Outgoing("other", messages(b"x")), Outgoing("numbers", messages(b"1", b"x"))]
    call = q.settle("work", [Ack(delivery.receipt)], publish=publish)
    error = await refuses(call, SchemaViolation, "payload")
    assert "'numbers'" in error.detail
    assert "message 1" in error.detail
    assert (await q.stats("work")).in_flight == 1

    publish[1] = Outgoing("numbers", messages(b"1", b"2"))
    reply = await q.settle("work", [Ack(delivery.receipt)], publish=publish)
    assert reply.outcomes[0].ok
    assert (await stored(q))[-3:] == [b"x", b"1", b"2"]


@law("E1")
async def test_a_settle_names_its_topics_well(q: Broker, refuses: Refuses) -> None:
    await q.publish("work", b"")
    (delivery,) = await q.claim("work")
    bad: list[tuple[Any, int | None]] = [(["numbers"], 128), (None, 128), ("numbers.dlq", None)]
    for topic, limit in bad:
        publish = [Outgoing(topic, messages(b"1"))]
        call = q.settle("work", [Ack(delivery.receipt)], publish=publish)
        await refuses(call, BadName, "topic", limit)


# -- from when a change counts ---------------------------------------------------------


async def test_a_change_counts_from_then_on(q: Broker) -> None:
    await q.publish("t", b"anything")
    await q.put_topic("t", NUMBER)
    with pytest.raises(SchemaViolation):
        await q.publish("t", b"anything")
    await q.publish("t", b"1")
    await q.put_topic("t", TEXT)
    with pytest.raises(SchemaViolation):
        await q.publish("t", b"1")
    await q.publish("t", b'"text"')
    await q.delete_topic("t")
    await q.publish("t", b"anything")
    assert await stored(q) == [b"anything", b"1", b'"text"', b"anything"]


async def test_a_change_through_another_view_counts_at_once(q: Broker) -> None:
    await q.publish("t", b"anything")
    await q.for_tenant("other").for_tenant(q.tenant).put_topic("t", NUMBER)
    with pytest.raises(SchemaViolation):
        await q.publish("t", b"anything")


@law("T1")
async def test_a_schema_is_its_tenants(q: Broker) -> None:
    await q.put_topic("t", NUMBER)
    await q.for_tenant("other").publish("t", b"anything")
    with pytest.raises(SchemaViolation):
        await q.publish("t", b"anything")


async def test_a_change_by_another_process_counts_at_once(q: Broker) -> None:
    await q.publish("t", b"anything")
    await q.engine.put_topic(q.tenant, "t", NUMBER)
    with pytest.raises(SchemaViolation):
        await q.publish("t", b"anything")
    await q.engine.delete_topic(q.tenant, "t")
    await q.publish("t", b"anything")
    await q.engine.put_topic(q.tenant, "t", NUMBER)
    with pytest.raises(SchemaViolation):
        await q.publish_batch("t", messages(b"anything"))
    await q.engine.delete_topic(q.tenant, "t")
    await q.publish_batch("t", messages(b"anything"))


async def test_a_change_while_the_topic_is_read_is_not_forgotten(q: Broker) -> None:
    """What was read before the change neither lets a publish pass nor is it remembered."""
    get_topic = q.engine.get_topic
    changed = False

    async def overtaken(tenant: str, name: str) -> TopicPolicy | None:
        nonlocal changed
        policy = await get_topic(tenant, name)
        if not changed:
            changed = True
            await q.put_topic("t", NUMBER)
        return policy

    q.engine.get_topic = overtaken  # type: ignore[method-assign]
    for payload in (b"under way at the time of the change", b"after it"):
        with pytest.raises(SchemaViolation):
            await q.publish("t", payload)
    assert (await q.read_log()).entries == ()


async def test_the_store_is_asked_once_while_nothing_changes(q: Broker) -> None:
    asked: list[str] = []
    get_topic = q.engine.get_topic

    async def counting(tenant: str, name: str) -> TopicPolicy | None:
        asked.append(name)
        return await get_topic(tenant, name)

    q.engine.get_topic = counting  # type: ignore[method-assign]
    for _ in range(5):
        await q.publish("a", b"")
        await q.publish_batch("b", messages(b""))
    assert sorted(asked) == ["a", "b"]
    await q.engine.put_topic(q.tenant, "a", TopicPolicy(default_ttl_ms=5))
    await q.publish("a", b"")
    await q.publish("a", b"")
    assert asked[2:] == ["a"]


async def test_a_schema_that_cannot_be_used_is_read_again(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may have replaced it, and the engine is never asked to compare."""

    def unusable(_: TopicPolicy) -> None:
        raise BadSchema("No library.")

    await q.engine.put_topic(q.tenant, "t", NUMBER)
    with monkeypatch.context() as patch:
        patch.setattr(schemas, "compile_schema", unusable)
        with pytest.raises(BadSchema):
            await q.publish("t", b"1")
    await q.engine.delete_topic(q.tenant, "t")
    await q.publish("t", b"1")


async def test_ever_new_topics_are_not_all_remembered(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schemas, "_MAX_REMEMBERED", 8)
    await q.put_topic("numbers", NUMBER)
    for n in range(30):
        await q.publish(f"t{n}", b"")
        with pytest.raises(SchemaViolation):
            await q.publish("numbers", b"x")
    assert len(q._schemas._demands) <= 8


# -- schemas that are none, and libraries that are not there ---------------------------


@law("E1")
@pytest.mark.parametrize("schema_type", ["json-schema", "avro"])
@pytest.mark.parametrize("schema", ["", "{", "5", "null", '"text', '{"type": "objet"}', "[" * 500])
async def test_a_schema_that_does_not_compile(
    q: Broker, refuses: Refuses, schema_type: str, schema: str
) -> None:
    policy = TopicPolicy(schema_type=schema_type, schema=schema)
    error = await refuses(q.put_topic("orders", policy), BadSchema, "schema")
    assert len(error.detail) < 600


async def test_a_bad_schema_in_the_store_refuses_and_is_not_ignored(q: Broker) -> None:
    """An older version, or another installation, may have put it."""
    policy = TopicPolicy(schema_type="json-schema", schema='{"type": "objet"}')
    await q.engine.put_topic(q.tenant, "orders", policy)
    with pytest.raises(BadSchema, match="'orders'"):
        await q.publish("orders", b"1")
    assert await stored(q) == []
    await q.put_topic("orders", NUMBER)
    await q.publish("orders", b"1")


@law("E1")
@pytest.mark.parametrize(
    "policy, module, library",
    [(NUMBER, "json_schemas", "jsonschema_rs"), (AVRO, "avro_schemas", "fastavro")],
    ids=["json-schema", "avro"],
)
async def test_a_library_that_is_not_installed(
    q: Broker,
    refuses: Refuses,
    monkeypatch: pytest.MonkeyPatch,
    policy: TopicPolicy,
    module: str,
    library: str,
) -> None:
    schemas._compiled.cache_clear()
    monkeypatch.delitem(sys.modules, f"penstock.broker.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    error = await refuses(q.put_topic("orders", policy), BadSchema, "schema")
    assert "pip install 'penstock[schemas]'" in error.detail
    await q.publish("orders", b"no schema, no library")


def test_the_libraries_wait_for_a_schema() -> None:
    program = """if True:
        import asyncio, sys, penstock
        async def main():
            async with penstock.open("memory://") as q:
                await q.put_topic("t", penstock.TopicPolicy(default_ttl_ms=1000))
                await q.publish("t", b"")
        asyncio.run(main())
        print(sorted({"fastavro", "jsonschema_rs"} & sys.modules.keys()))
    """
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "[]"


def test_a_schema_is_compiled_once() -> None:
    first: Any = compile_schema(NUMBER)
    again: Any = compile_schema(TopicPolicy(schema_type="json-schema", schema=str(NUMBER.schema)))
    assert first is again
    assert compile_schema(TopicPolicy()) is None


# -- large batches -----------------------------------------------------------------------


class _Counted:
    """A checker that counts what it checks in the same turn."""

    def __init__(self) -> None:
        self.most = 0
        self._turn: object = None
        self._in_turn = 0

    def violation(self, payload: bytes) -> str | None:
        loop = asyncio.get_running_loop()
        if self._turn is None:
            self._in_turn = 0
            self._turn = loop.call_soon(self._end)
        self._in_turn += len(payload)
        self.most = max(self.most, self._in_turn)
        return "not good" if payload == b"bad" else None

    def _end(self) -> None:
        self._turn = None


async def test_large_batches_are_checked_in_slices(
    q: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    checker = _Counted()
    monkeypatch.setattr(schemas, "compile_schema", lambda policy: checker)
    await q.put_topic("orders", NUMBER)
    batch = messages(*[b"x" * 100_000] * 100)
    await q.publish_batch("orders", batch)
    assert checker.most <= 512 * 1024
    await q.publish("here", b"x")
    (delivery,) = await q.claim("here")
    await q.settle("here", [Ack(delivery.receipt)], publish=[Outgoing("orders", batch)])
    assert checker.most <= 512 * 1024
    batch[77] = NewMessage(b"bad")
    with pytest.raises(SchemaViolation) as caught:
        await q.publish_batch("orders", batch)
    assert caught.value.index == 77


async def test_a_schema_that_changes_while_a_large_batch_is_checked(q: Broker) -> None:
    await q.put_topic("orders", NUMBER)
    publishing = asyncio.ensure_future(q.publish_batch("orders", messages(*[b"1"] * 3_000)))
    await asyncio.sleep(0)
    await q.put_topic("orders", TEXT)
    with pytest.raises(SchemaViolation):
        await publishing
    assert await stored(q) == []


async def test_a_large_batch_is_stored_as_it_was_when_it_was_checked(q: Broker) -> None:
    headers: dict[str, Any] = {"n": 1}
    batch = [NewMessage(b"1", headers)] * 3_000
    publishing = asyncio.ensure_future(q.publish_batch("orders", batch))
    await asyncio.sleep(0)
    headers["n"] = object()
    batch.clear()
    with pytest.raises(BadInput, match="object"):
        await publishing
    assert await stored(q) == []
