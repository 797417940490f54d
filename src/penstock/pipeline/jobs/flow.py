"""Runs one flow: consume, transform, and write to a topic or a table, each row once.

The query is started again when it fails, after a pause. A failure uses up an attempt of the rows of
its micro-batch, so a row that cannot be processed becomes a dead letter and the flow goes on
(``format.suspects``). A flow that fails again and again without finishing a micro-batch ends.
"""

from __future__ import annotations

import time
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from penstock.errors import BadInput, PipelineError
from penstock.pipeline.context import JobContext, Summary
from penstock.pipeline.exactly_once import exactly_once
from penstock.pipeline.flow import Flow
from penstock.pipeline.spans import record_micro_batch
from penstock.pipeline.tables import server_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

__all__ = ["reason_of", "run_flow"]

#: Between two looks at a running query.
_LOOK_S: Final = 0.5
#: The pause after the first failure; it doubles with each further one.
_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 60.0
#: Failures in a row, in addition to the attempts of a row, after which the flow ends.
_MORE_FAILURES: Final = 5
#: How long a query that is asked to end may take to finish its micro-batch.
_FINISH_S: Final = 30.0
#: Where Spark begins to describe the query of an error.
_QUERY: Final = "=== Streaming Query ==="


def run_flow(context: JobContext, *, flow: Flow, checkpoints: str) -> Summary:
    """Run the flow until it is asked to end, or once until its queue is empty."""
    return _FlowRun(context, flow, checkpoints).run()


class _FlowRun:
    def __init__(self, context: JobContext, flow: Flow, checkpoints: str) -> None:
        self._context = context
        self._flow = flow
        self._checkpoint = str(PurePosixPath(checkpoints) / flow.name)
        if "://" in checkpoints:
            self._checkpoint = f"{checkpoints.rstrip('/')}/{flow.name}"
        self._rows = self._batches = self._failures = 0

    def run(self) -> Summary:
        """The loop around the query."""
        context, flow = self._context, self._flow
        # Fails before Spark starts if there is no such queue.
        policy = context.remote.ask(lambda q: q.queue(flow.consume)).policy
        in_a_row, pause_s = 0, _PAUSE_S
        while not context.stopping.is_set():
            before = self._batches
            error = self._once()
            if error is None:
                break
            self._failures += 1
            in_a_row = 1 if self._batches > before else in_a_row + 1
            if in_a_row > policy.max_attempts + _MORE_FAILURES:
                raise PipelineError(f"The flow {flow.name!r} failed {in_a_row} times: {error}")
            pause_s = _PAUSE_S if in_a_row == 1 else min(2 * pause_s, _MAX_PAUSE_S)
            context.note(f"{flow.name}: starts again in {pause_s:.0f} s: {error}")
            context.wait(pause_s)
        return self._summary()

    def _once(self) -> str | None:
        """Run the query to its end; returns its error."""
        query = self._start()
        seen = -1
        try:
            while query.isActive:
                if self._context.wait(_LOOK_S):
                    self._end(query)
                seen = self._count(query, seen)
                self._record()
        finally:
            if query.isActive:
                query.stop()
        self._count(query, seen)
        error = query.exception()
        return None if error is None else reason_of(str(error))

    def _start(self) -> StreamingQuery:
        context, flow = self._context, self._flow
        source = context.spark.readStream.format("penstock").options(
            **server_options(context.server),
            queue=flow.consume,
            consumer=flow.name,
            leaseMs=str(flow.lease_ms),
            maxOffsetsPerTrigger=str(flow.batch_rows),
        )
        try:
            rows = source.load()
            if flow.transform is not None:
                rows = flow.transform(rows)
            writer = self._writer(rows).queryName(flow.name)
            writer = writer.option("checkpointLocation", self._checkpoint)
            if not context.options.continuous:
                writer = writer.trigger(availableNow=True)
            return writer.start()
        except AnalysisException as error:
            # It would fail the same way again.
            raise BadInput(
                f"The flow {flow.name!r} cannot start: {error.getMessage()}", field="transform"
            ) from error

    def _writer(self, rows: DataFrame) -> DataStreamWriter:
        target = self._flow.target
        if not isinstance(target, str):
            return exactly_once(rows, target)
        return rows.writeStream.format("penstock").options(
            **server_options(self._context.server),
            topic=target,
            # A batch that is run again has the same rows in the same partitions.
            samePartitions="true",
        )

    def _end(self, query: StreamingQuery) -> None:
        """Stop the query, between two micro-batches if possible: a stop costs an attempt."""
        waited = 0.0
        while query.isActive and query.status["isDataAvailable"] and waited < _FINISH_S:
            time.sleep(_LOOK_S)
            waited += _LOOK_S
        query.stop()

    def _count(self, query: StreamingQuery, seen: int) -> int:
        """Count finished micro-batches; returns the number of the last."""
        for progress in query.recentProgress:
            number, rows = progress.batchId, progress.numInputRows
            if number > seen and rows:
                seen = number
                self._batches += 1
                self._rows += rows
                context = self._context
                record_micro_batch(
                    context.remote, progress, queue=self._flow.consume, run=context.run
                )
        return seen

    def _record(self) -> None:
        flow = self._flow
        stats = self._context.remote.ask(lambda q: q.stats(flow.consume))
        self._context.reach(
            flow.name,
            self._rows,
            more={"lag": stats.lag, "dead_letters": stats.failed, "failures": self._failures},
        )

    def _summary(self) -> Summary:
        flow = self._flow
        stats = self._context.remote.ask(lambda q: q.stats(flow.consume))
        return {
            "flow": flow.name,
            "rows": self._rows,
            "batches": self._batches,
            "failures": self._failures,
            "dead_letters": stats.failed,
            "lag": stats.lag,
            "checkpoint": self._checkpoint,
        }


def reason_of(text: str) -> str:
    """The line of a query's error that says what went wrong."""
    # Spark appends a description of the query, whose lines look like errors.
    text = text.partition(_QUERY)[0] or text
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if ": " in line and _is_error(line.split(":")[0])]
    return (errors[-1] if errors else lines[0] if lines else "unknown error")[:500]


def _is_error(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))
