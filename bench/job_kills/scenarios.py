"""The jobs that are killed: what each has to do, and an independent count of what it did.

A scenario prepares work, the job does it in as many runs as kills leave it, and the count compares
what there is with what there has to be: missing and doubled rows, by reading the store through the
broker and the lake through deltalake, never through the job's own summary.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable
from msgspec.structs import replace as structs_replace

from bench.job_kills.child import Order
from bench.job_kills.host import JobHost
from penstock import NewMessage
from penstock.model.delivery import Ack, Reject
from penstock.pipeline import Flow
from penstock.pipeline.context import Summary
from penstock.pipeline.jobs.archive import archive
from penstock.pipeline.jobs.flow import run_flow
from penstock.pipeline.jobs.ingest import ingest
from penstock.pipeline.jobs.replay import replay
from penstock.pipeline.jobs.report import report
from penstock.pipeline.jobs.retention import retention
from penstock.pipeline.jobs.route import route
from penstock.pipeline.jobs.vacuum import vacuum
from tests.pipeline.hosted import HOUR_MS, Hosted

__all__ = ["SCENARIOS", "Count", "Scenario"]

_PAGE: Final = 1_000


class Count:
    """What is missing, and what is there too often."""

    def __init__(self, wanted: Iterable[Hashable] = (), found: Iterable[Hashable] = ()) -> None:
        expected, there = Counter(wanted), Counter(found)
        self.rows = expected.total()
        self.lost = (expected - there).total()
        self.doubled = (there - expected).total()

    def __add__(self, other: Count) -> Count:
        total = Count()
        for name in ("rows", "lost", "doubled"):
            setattr(total, name, getattr(self, name) + getattr(other, name))
        return total


class Scenario(ABC):
    """One job on a server of its own."""

    name: ClassVar[str]
    job: ClassVar[Callable[..., Summary]]
    messages: ClassVar[int] = 200
    """Per cycle."""
    needs_archive: ClassVar[bool] = False

    def __init__(self, host: JobHost, folder: Path) -> None:
        self.host = host
        self.folder = folder
        self.lake = folder / "lake"
        folder.mkdir()
        self.cycle = 0
        self._runs = 0
        self.server = Hosted(f"rocksdb://{folder}/store", archive=self.needs_archive).start()

    def begin(self) -> None:
        """Prepare the work of another cycle."""
        self.cycle += 1
        self.prepare()

    @abstractmethod
    def prepare(self) -> None:
        """Give the job something to do."""

    @abstractmethod
    def options(self) -> Mapping[str, Any]:
        """The parameters of the job: the same for every run of a cycle."""

    @abstractmethod
    def count(self) -> Count:
        """What there is after the cycle."""

    def order(
        self,
        kill_at: int | None = None,
        job: Callable[..., Summary] | None = None,
        **options: Any,
    ) -> Order:
        """The next run of the job, or of another one."""
        self._runs += 1
        return Order(
            job=job or type(self).job,
            name=(job or type(self).job).__name__,
            run=f"run-{self._runs}",
            url=self.server.url,
            now_ms=self.server.clock.now(),
            folder=str(self.folder),
            lake=str(self.lake),
            options=options if job is not None else self.options(),
            kill_at=kill_at,
        )

    def between(self) -> None:  # noqa: B027  (most do nothing)
        """What happens between a kill and the next run."""

    def publish(self, topic: str, count: int | None = None, **headers: Any) -> list[bytes]:
        """Publish payloads that no other cycle has."""
        payloads = [
            b"%s %d %d" % (topic.encode(), self.cycle, n) for n in range(count or self.messages)
        ]
        self.server.publish(topic, *(NewMessage(one, headers) for one in payloads))
        return payloads

    def claim(self, queue: str) -> list[Any]:
        """Claim everything that is available."""
        found: list[Any] = []
        while more := self.server.claim(queue, limit=_PAGE):
            found += more
        return found

    def ack(self, queue: str, deliveries: Sequence[Any]) -> None:
        """Ack deliveries."""
        acks = [Ack(one.receipt) for one in deliveries]
        self.server.ask(lambda q: q.settle(queue, acks))

    def log(self) -> list[tuple[int, bytes | None]]:
        """Offset and payload of every entry, as the broker has them."""
        found: list[tuple[int, bytes | None]] = []
        position, end = 0, self.server.ask(lambda q: q.log_end())
        while position < end:
            page = self.server.run(
                self.server.broker.read_log(position, limit=_PAGE, payloads=True)
            )
            found += [(one.message.offset, one.payload) for one in page.entries]
            position = page.next_offset
        return found

    def table(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Rows of a table of the lake."""
        found = DeltaTable(self.lake / name).to_pyarrow_table(columns=list(columns))
        return list(zip(*(found.column(one).to_pylist() for one in columns), strict=True))

    def close(self) -> None:
        """Stop the server."""
        self.server.stop()


class Archive(Scenario):
    """Entries and transitions are in the lake once."""

    name = "archive"
    job: ClassVar[Callable[..., Summary]] = archive

    def prepare(self) -> None:
        if self.cycle == 1:
            self.server.ask(lambda q: q.create_queue("all", "topic = 'orders'"))
        self.publish("orders")
        self.ack("all", self.server.claim("all", limit=self.messages // 2))

    def options(self) -> Mapping[str, Any]:
        return {"step": self.messages // 3, "compaction": False}

    def count(self) -> Count:
        entries = Count(self.log(), self.table("messages", "offset", "value"))
        wanted: list[tuple[int, str]] = []
        position, end = 0, self.server.ask(lambda q: q.log_end())
        while position < end:
            page = self.server.run(self.server.broker.queue_history("all", position))
            wanted += [(one.message_id, one.event.transition) for one in page.entries]
            position = page.next_offset
        return entries + Count(wanted, self.table("history", "id", "transition"))


class Compact(Archive):
    """Small files are merged: the rows stay."""

    name = "compact"

    def prepare(self) -> None:
        super().prepare()
        self.host.run(self.order(job=archive, step=self.messages // 8, compaction=False))
        self._files = len(DeltaTable(self.lake / "messages").file_uris())

    def options(self) -> Mapping[str, Any]:
        return {"compaction": True}

    def count(self) -> Count:
        if len(DeltaTable(self.lake / "messages").file_uris()) >= self._files:
            raise AssertionError("nothing was compacted")
        return super().count()


class Vacuum(Compact):
    """Files that no version needs are removed, and no others."""

    name = "vacuum"
    job: ClassVar[Callable[..., Summary]] = vacuum

    def prepare(self) -> None:
        super().prepare()
        self.host.run(self.order(job=archive, compaction=True))

    def options(self) -> Mapping[str, Any]:
        return {"retention_hours": 0}


class Route(Scenario):
    """A queue over history has every message of its filter once."""

    name = "route"
    job: ClassVar[Callable[..., Summary]] = route
    messages = 40_000

    def __init__(self, host: JobHost, folder: Path) -> None:
        super().__init__(host, folder)
        batch = 5_000
        for start in range(0, self.messages, batch):
            self.server.publish(
                "orders",
                *(NewMessage(b"", {"n": n % 40}) for n in range(start, start + batch)),
            )

    def prepare(self) -> None:
        self._queue = f"queue-{self.cycle}"
        self.server.ask(
            lambda q: q.create_queue(self._queue, f"n = {self.cycle % 40}", start="earliest")
        )

    def options(self) -> Mapping[str, Any]:
        return {"queues": (self._queue,), "step": 8_000}

    def count(self) -> Count:
        found = [one.message.offset for one in self.claim(self._queue)]
        wanted = [n for n in range(self.messages) if n % 40 == self.cycle % 40]
        self.server.ask(lambda q: q.delete_queue(self._queue))
        return Count(wanted, found)


class ReplayFailed(Scenario):
    """Failed deliveries with a fingerprint become available once."""

    name = "replay"
    job: ClassVar[Callable[..., Summary]] = replay

    def prepare(self) -> None:
        if self.cycle == 1:
            self.server.ask(lambda q: q.create_queue("f", "topic = 'f'", max_attempts=1))
        self._wanted = self.publish("f")
        rejects = [Reject(one.receipt, "KeyError: 'a'") for one in self.claim("f")]
        self.server.ask(lambda q: q.settle("f", rejects))

    def options(self) -> Mapping[str, Any]:
        pattern = hashlib.sha256("KeyError: '…'".encode()).hexdigest()[:12]
        return {
            "queue": "f",
            "fingerprints": (pattern,),
            "replay_id": f"replay-{self.cycle}",
        }

    def count(self) -> Count:
        deliveries = self.claim("f")
        found = [one.payload for one in deliveries]
        for one in deliveries:
            events = self.server.run(self.server.broker.history(one.message.id))
            replays = sum(event.transition == "replay" for event in events)
            found += [one.payload] * (replays - 1)
        self.ack("f", deliveries)
        return Count(self._wanted, found)


class ReplayLake(Scenario):
    """Messages of the lake are published again once."""

    name = "replay-lake"
    job: ClassVar[Callable[..., Summary]] = replay

    def prepare(self) -> None:
        self._wanted = self.publish(f"orders-{self.cycle}")
        self.host.run(self.order(job=archive, history=False, compaction=False))

    def options(self) -> Mapping[str, Any]:
        return {
            "source": "lake",
            "where": f"topic = 'orders-{self.cycle}'",
            "topic": f"again-{self.cycle}",
        }

    def count(self) -> Count:
        found = self.server.payloads(f"again-{self.cycle}")
        return Count(self._wanted, found.elements())


class Ingest(Scenario):
    """Every line is a message once."""

    name = "ingest"
    job: ClassVar[Callable[..., Summary]] = ingest

    def prepare(self) -> None:
        self._path = self.folder / f"in-{self.cycle}.jsonl"
        self._lines = [json.dumps({"cycle": self.cycle, "n": n}) for n in range(self.messages)]
        self._path.write_text("\n".join(self._lines) + "\n")

    def options(self) -> Mapping[str, Any]:
        return {
            "path": str(self._path),
            "topic": f"in-{self.cycle}",
            "rejects": str(self.folder / f"rejects-{self.cycle}"),
        }

    def count(self) -> Count:
        found = self.server.payloads(f"in-{self.cycle}")
        return Count((line.encode() for line in self._lines), found.elements())


class Retention(Scenario):
    """What leaves the store is in the lake; what a queue needs stays."""

    name = "retention"
    job: ClassVar[Callable[..., Summary]] = retention
    needs_archive = True

    def __init__(self, host: JobHost, folder: Path) -> None:
        super().__init__(host, folder)
        self._published: list[bytes] = []
        self._needed: list[bytes] = []
        self.server.ask(lambda q: q.create_queue("slow", "topic = 'slow'"))

    def prepare(self) -> None:
        self._published += self.publish("orders")
        self.server.advance(2 * HOUR_MS)
        self._needed += self.publish("slow", 10)
        self.server.advance(48 * HOUR_MS)
        # What is written to stays.
        self._published += self.publish("newest", 1)
        for topic in ("orders", "newest"):
            # Created by the publish; its deliveries would keep the entries.
            self.server.ask(lambda q, topic=topic: q.delete_queue(topic))  # type: ignore[misc]
        self.host.run(self.order(job=archive, tell=False, history=False, compaction=False))
        self._before = self.server.ask(lambda q: q.log_trimmed())

    def options(self) -> Mapping[str, Any]:
        return {}

    def count(self) -> Count:
        stored = [payload for _, payload in self.log()]
        if len(stored) >= len(self._published) + len(self._needed):
            raise AssertionError("retention removed nothing")
        lake = Count(
            [*self._published, *self._needed],
            (value for (value,) in self.table("messages", "value")),
        )
        # Those that a queue waits for are in the store, once.
        return lake + Count(self._needed, [one for one in stored if one in set(self._needed)])


class Report(Scenario):
    """The page and its tables are whole, and count every message once."""

    name = "report"
    job: ClassVar[Callable[..., Summary]] = report

    def prepare(self) -> None:
        if self.cycle == 1:
            self.server.ask(lambda q: q.create_queue("all", "topic = 'orders'"))
        self._wanted = self.cycle * len(self.publish("orders"))
        self.ack("all", self.claim("all"))
        self.server.advance(1_000)

    def options(self) -> Mapping[str, Any]:
        return {"output": str(self.folder / "report"), "period_s": 7 * 24 * 3600}

    def order(self, *arguments: Any, **options: Any) -> Order:
        order = super().order(*arguments, **options)
        return order if options.get("job") else structs_replace(order, lake=None)

    def count(self) -> Count:
        page = (self.folder / "report" / "index.html").read_text()
        if not page.endswith("</html>\n") or f"{self._wanted:,} messages" not in page:
            raise AssertionError("the page is not whole")
        tables = self.folder / "report" / "tables"
        topics = pq.read_table(tables / "topics.parquet").to_pylist()
        activity = pq.read_table(tables / "activity.parquet").to_pylist()
        published = sum(row["messages"] for row in topics)
        acked = sum(row["acks"] or 0 for row in activity)
        return Count(range(self._wanted), range(published)) + Count(
            range(self._wanted), range(acked)
        )


class FlowToTable(Scenario):
    """A flow writes every message to its table once."""

    name = "flow-table"
    job: ClassVar[Callable[..., Summary]] = run_flow
    messages = 60

    def __init__(self, host: JobHost, folder: Path) -> None:
        super().__init__(host, folder)
        self.server.ask(lambda q: q.create_queue("q", "topic = 'orders'", max_attempts=1_000))
        self._wanted: list[bytes] = []

    def prepare(self) -> None:
        self._wanted += self.publish("orders")

    def flow(self) -> Flow:
        """The flow that is killed."""
        return Flow(
            name="to-table",
            consume="q",
            transform=only_values,
            table=str(self.folder / "table"),
            batch_rows=20,
            lease_ms=60_000,
        )

    def options(self) -> Mapping[str, Any]:
        return {"flow": self.flow(), "checkpoints": str(self.folder / "checkpoints")}

    def between(self) -> None:
        # Leases lapse after every other kill.
        self._kills = getattr(self, "_kills", 0) + 1
        self.server.advance(100_000 if self._kills % 2 else 1_000)

    def count(self) -> Count:
        found = DeltaTable(self.folder / "table").to_pyarrow_table().column("value").to_pylist()
        return Count(self._wanted, found)


class FlowToTopic(FlowToTable):
    """A flow publishes every message once."""

    name = "flow-topic"

    def flow(self) -> Flow:
        return Flow(
            name="to-topic",
            consume="q",
            transform=only_values,
            publish="copies",
            batch_rows=20,
            lease_ms=60_000,
        )

    def count(self) -> Count:
        return Count(self._wanted, self.server.payloads("copies").elements())


def only_values(rows: Any) -> Any:
    """The transformation of the flows."""
    return rows.select("value")


SCENARIOS: Final[Mapping[str, type[Scenario]]] = {
    one.name: one
    for one in (
        Archive, Compact, Vacuum, Route, ReplayFailed, ReplayLake, Ingest, Retention, Report,
        FlowToTable, FlowToTopic,
    )
}  # fmt: skip
