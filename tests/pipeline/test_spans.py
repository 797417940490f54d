"""Spans of jobs and of micro-batches: one trace from a publish through Spark to a handler."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from pyspark.sql import SparkSession

import penstock
from penstock import NewMessage
from penstock.errors import BadInput
from penstock.pipeline import Flow, trace_queries
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.jobs import run as run_module
from penstock.pipeline.jobs.flow import run_flow
from penstock.telemetry import configure_logging
from penstock.worker import Context
from tests.pipeline.hosted import Hosted
from tests.pipeline.jobs import run


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """The spans of this test; the global provider stays unset for the other tests."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def named(spans: InMemorySpanExporter, name: str) -> list[Any]:
    return [span for span in spans.get_finished_spans() if span.name == name]


def publish_in_a_span(server: Hosted, *payloads: bytes) -> Any:
    """Publish each payload in a call of its own, all in one span, which is returned."""

    async def publish() -> Any:
        async with penstock.connect(server.url) as q:
            with trace.get_tracer("shop").start_as_current_span("POST /orders") as span:
                for payload in payloads:
                    await q.publish("orders", payload)
                return span.get_span_context()

    return asyncio.run(publish())


def handle_alerts(server: Hosted) -> None:
    """Run a worker of the queue ``alerts`` until it has handled one message."""
    app = penstock.App(server.url)

    @app.worker("alerts")
    async def alert(context: Context) -> None:
        app.stop()

    asyncio.run(app.run())


@pytest.mark.slow
def test_one_trace_from_a_publish_through_a_flow_to_a_handler(
    spark: SparkSession, server: Hosted, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    server.ask(lambda q: q.create_queue("orders", "topic = 'orders'"))
    server.ask(lambda q: q.create_queue("alerts", "topic = 'alerts'"))
    origin = publish_in_a_span(server, b"1", b"2")
    flow = Flow(
        name="large",
        consume="orders",
        transform=lambda rows: rows.where("CAST(value AS string) = '2'").select("value", "headers"),
        publish="alerts",
    )
    run(server, spark, run_flow, run="run-7", flow=flow, checkpoints=str(tmp_path))
    handle_alerts(server)

    [job] = named(spans, "job run_flow")
    assert job.attributes["penstock.run"] == "run-7"
    assert job.attributes["penstock.summary.rows"] == 2
    batches = named(spans, "micro-batch orders")
    assert sum(span.attributes["messaging.batch.message_count"] for span in batches) == 2
    assert {span.parent.span_id for span in batches} == {job.context.span_id}
    assert {span.attributes["penstock.run"] for span in batches} == {"run-7"}
    assert all(job.start_time <= span.start_time < span.end_time for span in batches)
    # Without those of the server, which is in this process.
    published = [s for s in named(spans, "publish orders") if s.parent is not None]
    linked = {link.context.span_id for span in batches for link in span.links}
    assert linked == {span.context.span_id for span in published}
    # The flow kept the column headers, so what it published continues the trace.
    [handled] = named(spans, "handle alerts")
    assert handled.context.trace_id == origin.trace_id
    assert handled.parent.span_id == published[1].context.span_id


@pytest.mark.slow
def test_micro_batches_of_any_query(
    spark: SparkSession, server: Hosted, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    server.ask(lambda q: q.create_queue("orders", "topic = 'orders'"))
    origin = publish_in_a_span(server, b"1")
    listener = trace_queries(spark, server.url, queue="orders")
    try:
        rows = spark.readStream.format("penstock").options(**server.options(queue="orders")).load()
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        # Spark reports to listeners a moment later.
        spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty(60_000)
    finally:
        spark.streams.removeListener(listener)
    [batch] = named(spans, "micro-batch orders")
    assert [link.context.trace_id for link in batch.links] == [origin.trace_id]
    assert batch.attributes["penstock.query"] == str(query.id)


def test_a_job_that_fails_has_a_span_with_the_error(
    server: Hosted, spans: InMemorySpanExporter
) -> None:
    written = io.StringIO()
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def broken(context: JobContext) -> Summary:
        logging.getLogger("penstock.test").warning("about to fail")
        raise BadInput("not this lake")

    try:
        root.handlers = []
        configure_logging("json", stream=written)
        with pytest.raises(BadInput):
            run(server, None, broken)
    finally:
        root.handlers, root.level = handlers, level
    [job] = named(spans, "job broken")
    assert not job.status.is_ok
    [event] = job.events
    assert "not this lake" in event.attributes["exception.message"]
    [line] = [json.loads(x) for x in written.getvalue().splitlines() if "about to fail" in x]
    assert line["trace_id"] == f"{job.context.trace_id:032x}"
    assert line["span_id"] == f"{job.context.span_id:016x}"


def test_each_duty_has_a_span_below_its_job(
    server: Hosted, tmp_path: Path, spans: InMemorySpanExporter
) -> None:
    """No Spark: an empty log has nothing to archive."""
    run(server, None, run_module.run, lake=tmp_path, without=("retention", "report"))
    [job] = named(spans, "job run")
    duties = [span for span in spans.get_finished_spans() if span.name.startswith("duty ")]
    assert [span.name for span in duties] == ["duty route", "duty archive"]
    assert {span.parent.span_id for span in duties} == {job.context.span_id}


def test_a_trace_that_is_not_recorded_reads_no_messages(
    server: Hosted, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.pipeline import spans as module

    monkeypatch.setattr(trace, "get_tracer", TracerProvider(sampler=ALWAYS_OFF).get_tracer)
    monkeypatch.setattr(module, "_contexts", lambda *_: pytest.fail("it reads messages"))
    server.publish("orders", NewMessage(b"1"))
    module.record_micro_batch(None, progress_of_a_query(), queue="orders")  # type: ignore[arg-type]


def progress_of_a_query() -> Any:
    from pyspark.sql.streaming.listener import StreamingQueryProgress

    identity = "00000000-0000-0000-0000-000000000001"
    return StreamingQueryProgress.fromJson(
        {
            "id": identity,
            "runId": identity,
            "name": None,
            "timestamp": "2026-11-01T12:00:00.000Z",
            "batchId": 1,
            "batchDuration": 20,
            "durationMs": {"triggerExecution": 20},
            "eventTime": {},
            "stateOperators": [],
            "sources": [],
            "sink": {"description": "noop", "numOutputRows": 1, "metrics": {}},
            "numInputRows": 1,
            "inputRowsPerSecond": 1.0,
            "processedRowsPerSecond": 1.0,
            "observedMetrics": {},
        }
    )
