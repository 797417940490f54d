"""Spans through OpenTelemetry: which there are, how they belong together, and no cost without."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import penstock
from penstock import Ack, Extend, NewMessage
from penstock.errors import BadInput, BadName
from penstock.testing.inline import inline
from penstock.tracing import current_ids
from penstock.worker import App, Context

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this test; the global provider stays unset for the other tests."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def by_name(spans: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in spans.get_finished_spans()}


def parent_of(span: Any) -> str:
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def check_verbs(q: Any, spans: InMemorySpanExporter) -> None:
    await q.create_queue("jobs", "topic = 't'")
    await q.publish("t", b"1")
    await q.publish_batch("t", [NewMessage(b"2"), NewMessage(b"3", {"traceparent": PARENT})])
    published = [span for span in spans.get_finished_spans() if span.name == "publish t"]
    assert [span.kind for span in published] == [trace.SpanKind.PRODUCER] * 2
    headers = [entry.message.headers for entry in (await q.read_log()).entries]
    parents = [parent_of(span) for span in published]
    assert [item["traceparent"] for item in headers] == [*parents, PARENT]

    deliveries = await q.claim("jobs", limit=3)
    assert await q.claim("jobs", limit=3) == []
    await q.extend(deliveries[0], 30_000)
    await q.settle("jobs", [Extend(deliveries[0].receipt, 30_000)])
    await q.settle(queue="jobs", settlements=[Ack(item.receipt) for item in deliveries[:2]])
    await q.reject(deliveries[2], "no")
    rest = [span for span in spans.get_finished_spans() if span.name != "publish t"]
    assert [span.name for span in rest] == ["claim jobs", "settle jobs", "settle jobs"]
    claim, acks, reject = rest
    assert [link.context.trace_id for link in claim.links] == [
        int(item["traceparent"].split("-")[1], 16) for item in headers
    ]
    assert dict(claim.attributes) == {
        "messaging.system": "penstock",
        "messaging.operation.type": "receive",
        "messaging.operation.name": "claim",
        "messaging.destination.name": "jobs",
        "messaging.batch.message_count": 3,
    }
    assert acks.attributes["messaging.penstock.settlements"] == ("ack",)
    assert acks.attributes["messaging.batch.message_count"] == 2
    assert reject.attributes["messaging.penstock.settlements"] == ("reject",)


async def test_the_verbs_of_a_store_have_spans(spans: InMemorySpanExporter) -> None:
    async with penstock.open("memory://") as q:
        await check_verbs(q, spans)


async def test_a_handling_belongs_to_the_trace_of_its_message(spans: InMemorySpanExporter) -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def handler(context: Context) -> None:
        assert current_ids() is not None
        context.publish("out", b"")

    @app.worker("threaded")
    def threaded(context: Context) -> None:
        assert current_ids() is not None
        raise ValueError("broken")

    async with inline(app) as q:
        headers = {"traceparent": PARENT, "tracestate": "vendor=1"}
        await q.publish("q", b"", headers=headers)
        await q.publish("threaded", b"", headers={"traceparent": PARENT})
        await q.run_until_idle()
        out = (await q.read_log()).entries[-1]
    found = by_name(spans)
    handled = found["handle q"]
    assert handled.kind is trace.SpanKind.CONSUMER
    assert f"{handled.parent.span_id:016x}" == PARENT.split("-")[2]
    assert out.message.headers == {"traceparent": parent_of(handled), "tracestate": "vendor=1"}
    assert handled.attributes["code.function.name"].endswith("handler")
    assert handled.attributes["messaging.penstock.attempts"] == 1
    failed = found["handle threaded"]
    assert not failed.status.is_ok
    assert failed.events[0].attributes["exception.type"] == "ValueError"
    assert f"{found['settle q'].context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{found['settle threaded'].context.trace_id:032x}" == PARENT.split("-")[1]
    assert current_ids() is None


async def test_settlements_that_share_a_call_have_a_span_each(spans: InMemorySpanExporter) -> None:
    async with penstock.open("memory://") as q:
        await q.create_queue("jobs", "topic = 't'")
        await q.publish_batch("t", [NewMessage(b"%d" % number) for number in range(4)])
        spans.clear()
        async with q.consume("jobs", max_in_flight=2) as leases:
            held = [await anext(leases) for _ in range(2)]
            with trace.get_tracer("test").start_as_current_span("work") as work:
                await asyncio.gather(*(lease.ack() for lease in held))
        settled = [span for span in spans.get_finished_spans() if span.name == "settle jobs"]
        acks = [s for s in settled if s.attributes["messaging.penstock.settlements"] == ("ack",)]
        assert [span.parent.span_id for span in acks] == [work.context.span_id] * 2
        claims = [span for span in spans.get_finished_spans() if span.name == "claim jobs"]
        assert sum(span.attributes["messaging.batch.message_count"] for span in claims) >= 3
        assert all(span.parent is None for span in claims)


@pytest.mark.parametrize("header", ["garbage", 7])
async def test_without_a_valid_traceparent_a_handling_starts_a_trace(
    header: str | int, spans: InMemorySpanExporter
) -> None:
    app = App("http://nowhere")

    @app.worker("q")
    async def handler(payload: bytes) -> None: ...

    async with inline(app) as q:
        await q.publish("q", b"", headers={"traceparent": header})
        await q.run_until_idle()
    assert by_name(spans)["handle q"].parent is None


async def test_a_refused_call_is_refused_the_same(spans: InMemorySpanExporter) -> None:
    async with penstock.open("memory://") as q:
        with pytest.raises(BadName):
            await q.publish("no such/name", b"")
        with pytest.raises(BadInput):
            await q.publish_batch("t", [b"not a message"])  # type: ignore[list-item]
        with pytest.raises(BadInput):
            await q.publish_batch("t", 7)  # type: ignore[arg-type]
        assert (await q.read_log()).entries == ()
    assert {span.status.is_ok for span in spans.get_finished_spans()} == {False}


async def test_a_message_with_many_headers_is_not_given_more(spans: InMemorySpanExporter) -> None:
    headers = {f"h{n}": n for n in range(64)}
    async with penstock.open("memory://") as q:
        await q.publish("t", b"", headers=headers)
        (entry,) = (await q.read_log()).entries
    assert entry.message.headers == headers


PLAIN = """
import asyncio, sys
import penstock

async def main():
    async with penstock.open("memory://") as q:
        await q.publish("t", b"1")
        (delivery,) = await q.claim("t")
        assert delivery.message.headers == {}
        await q.ack(delivery)

asyncio.run(main())
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""


def test_nothing_is_imported_for_a_program_without_opentelemetry() -> None:
    subprocess.run([sys.executable, "-c", PLAIN], check=True, timeout=60)
