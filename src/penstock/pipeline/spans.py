"""Spans of jobs, of the duties of ``pipeline run``, and of micro-batches.

================================  ========  ========================================================
span                              kind      context
================================  ========  ========================================================
``job {name}``                    internal  a child of the current span; everything that the job
                                            does in the driver is below it
``duty {name}``                   internal  a child of its job
``micro-batch {queue or query}``  consumer  a child of its flow's job, linked to the contexts of
                                            the messages that it consumed
================================  ========  ========================================================

Like the spans of ``penstock.tracing`` they need a program that has imported
``opentelemetry.trace``. Each has the id of its run in ``penstock.run``, by which the broker knows
it too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from penstock.errors import PenstockError
from penstock.pipeline.format.batch import Batch
from penstock.pipeline.remote import Remote, Server
from penstock.tracing import context_of, is_traced, span_kind, tracer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
        StreamingQueryProgress,
    )

__all__ = ["job_span", "record_micro_batch", "trace_queries", "work_span"]

_log: Final = logging.getLogger(__name__)

#: Messages of a micro-batch whose spans are linked. An SDK keeps 128 links by default.
MAX_LINKS: Final = 100
_NS_PER_MS: Final = 1_000_000


@contextmanager
def work_span(name: str, attributes: Mapping[str, str]) -> Iterator[dict[str, str | int | float]]:
    """A span of work in the driver; its caller may add attributes until it ends.

    An exception is recorded and propagates.
    """
    more: dict[str, str | int | float] = {}
    if not is_traced():
        yield more
        return
    with tracer().start_as_current_span(name, attributes=dict(attributes)) as span:
        try:
            yield more
        finally:
            span.set_attributes(more)


def job_span(job: str, run: str) -> Any:
    """The span of a job's run."""
    return work_span(f"job {job}", {"penstock.job": job, "penstock.run": run})


def record_micro_batch(
    remote: Remote, progress: StreamingQueryProgress, *, queue: str | None = None, run: str = ""
) -> None:
    """Record the span of a finished micro-batch, linked to the messages of the queue.

    ``run`` is the run of its job; without one, that of the query. Without a queue, a micro-batch
    has no links: it may have read any message of the log.
    """
    if not is_traced():
        return
    begun = datetime.fromisoformat(progress.timestamp)
    start = int(begun.timestamp() * 1000) * _NS_PER_MS
    name = queue or progress.name or str(progress.id)
    attributes: dict[str, Any] = {
        "messaging.system": "penstock",
        "messaging.operation.type": "process",
        "messaging.operation.name": "micro-batch",
        "messaging.batch.message_count": progress.numInputRows,
        "penstock.query": str(progress.id),
        "penstock.batch": progress.batchId,
        "penstock.run": run or str(progress.runId),
    }
    if queue is not None:
        attributes["messaging.destination.name"] = queue
    span = tracer().start_span(
        f"micro-batch {name}", kind=span_kind("CONSUMER"), attributes=attributes, start_time=start
    )
    if queue is not None and span.is_recording():
        for context in _contexts(remote, progress, queue):
            span.add_link(context)
    span.end(start + progress.durationMs.get("triggerExecution", 0) * _NS_PER_MS)


def _contexts(remote: Remote, progress: StreamingQueryProgress, queue: str) -> list[Any]:
    """The contexts of the first messages of a micro-batch, each once; one request."""
    try:
        offsets = [
            claim.offset
            for source in progress.sources
            for claim in Batch.from_offset(json.loads(source.endOffset)).claims[:MAX_LINKS]
        ]
        if not offsets:
            return []
        first = min(offsets)
        page = remote.ask(lambda q: q.queue_log(queue, first, limit=MAX_LINKS))
    except PenstockError as error:
        _log.warning("A micro-batch has no links: %s", error)
        return []
    wanted = frozenset(offsets)
    headers = [e.message.headers for e in page.entries if int(e.message.offset) in wanted]
    found = filter(None, map(context_of, headers))
    return list({(context.trace_id, context.span_id): context for context in found}.values())


def trace_queries(
    spark: SparkSession,
    url: str,
    *,
    credential: str | None = None,
    ca: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    queue: str | None = None,
) -> StreamingQueryListener:
    """Record a span for each micro-batch of the queries of this session that have rows.

    With ``queue`` the queries consume this queue, and their spans are linked to its messages.
    ``credential``, ``ca``, ``cert`` and ``key`` are those of ``penstock.connect``. Flows have such
    spans already. ``spark.streams.removeListener`` ends it.
    """
    listener = _Listener(Server(url, credential, ca, cert, key), queue)
    spark.streams.addListener(listener)
    return listener


class _Listener(StreamingQueryListener):
    def __init__(self, server: Server, queue: str | None) -> None:
        self._server = server
        self._queue = queue

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Record the micro-batch; an error must not reach Spark."""
        if not event.progress.numInputRows:
            return
        try:
            # Spark calls this in threads of its own.
            with self._server.open() as remote:
                record_micro_batch(remote, event.progress, queue=self._queue)
        except PenstockError as error:
            _log.warning("A micro-batch has no span: %s", error)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""
