"""The spans of a client. The server runs in the same process, and has spans of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from penstock.broker import Broker
from penstock.client import Client


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this test; the global provider stays unset for the other tests."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


async def test_the_verbs_of_a_client_have_spans(
    q: Client, broker: Broker, spans: InMemorySpanExporter
) -> None:
    await q.create_queue("jobs", "topic = 't'")
    await q.publish("t", b"1")
    (entry,) = (await broker.read_log()).entries
    # The server's own span is the first to end, and the client's is what the message carries.
    client = [span for span in spans.get_finished_spans() if span.name == "publish t"][-1]
    context = client.get_span_context()
    assert context is not None
    span_id = f"{context.span_id:016x}-{context.trace_flags:02x}"
    assert entry.message.headers == {"traceparent": f"00-{context.trace_id:032x}-{span_id}"}
    (delivery,) = await q.claim("jobs")
    await q.ack(delivery)
    kinds = {span.name: span.kind for span in spans.get_finished_spans()}
    assert kinds["claim jobs"] is kinds["settle jobs"] is trace.SpanKind.CLIENT
