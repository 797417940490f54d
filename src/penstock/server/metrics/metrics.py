"""The metrics: the server and the engine report events, and scrapes read the totals.

``Metrics`` is the engine's listener too. Events are counted immediately, in well under a
microsecond; the state of the store is read on each scrape. A reader who is not an operator gets
the queues of one tenant, and no number that other tenants contribute to (T1).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Final, TypeAlias

from penstock.model.delivery import Ack, Extend, Nack, Outcome, Reject, Release, Settlement, Verdict
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.reports import KeeperReport
from penstock.server.budget import Budget
from penstock.server.metrics.counting import Calls, Histogram
from penstock.server.metrics.exposition import (
    Metric,
    call_metrics,
    counter,
    gauge,
    histogram,
    info,
    keeper_metrics,
    labelled_counter,
    process_registry,
    queue_metrics,
    to_text,
)
from penstock.server.metrics.queue_stats import Gathered, gather
from penstock.storage.contract import Engine
from penstock.storage.listener import Listener
from penstock.version import VERSION

__all__ = ["Metrics"]

#: Returns a report on every keeper.
Reports: TypeAlias = Callable[[], Sequence[KeeperReport]]

#: Gets a tenant and a queue.
Changed: TypeAlias = Callable[[str, str], None]

_COMMIT_RECORDS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)
#: From a battery-backed controller to a failing disk.
_COMMIT_SECONDS: Final = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01),
    *(0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0),
)
_SETTLEMENTS: Final = (Ack, Nack, Reject, Release, Extend)


def _ignore(tenant: str, queue: str) -> None:
    """Nothing watches the counts."""


class Metrics(Listener):
    """Counters since the server started.

    Created before the store is opened, so that it can be the store's listener; ``watch`` then
    sets the store to read from.
    """

    def __init__(self, engine: Engine | None = None, keepers: Reports = tuple) -> None:
        self._engine = engine
        self._keepers = keepers
        self._opened_s: float | None = None
        self._calls = Calls()
        self._on_change: Changed = _ignore
        self._waits = 0
        self._budget: Budget | None = None
        self._cut = 0
        self._published = 0
        self._claimed = 0
        self._settled: dict[type, int] = dict.fromkeys(_SETTLEMENTS, 0)
        self._stale = 0
        self._lapsed = 0
        self._repeated = dict.fromkeys(("catalog", "conflict", "connection"), 0)
        self._commit_records = Histogram(_COMMIT_RECORDS)
        self._commit_seconds = Histogram(_COMMIT_SECONDS)
        self._process = process_registry()
        self._reading = asyncio.Lock()

    def watch(
        self, engine: Engine, keepers: Reports = tuple, *, opened_s: float | None = None
    ) -> None:
        """Read queues from this engine and keepers from this function from now on."""
        self._engine = engine
        self._keepers = keepers
        self._opened_s = opened_s

    def report_changes(self, to: Changed) -> None:
        """Call this function with the tenant and name of every queue whose counts may change."""
        self._on_change = to

    # -- events of the server ----------------------------------------------------------

    def began(self) -> None:
        """A call began; ``called`` will say how it ended."""
        self._calls.active += 1

    def called(self, verb: str, outcome: str, seconds: float) -> None:
        """A call is over; ``outcome`` is ``ok``, another outcome, or the name of an error."""
        self._calls.active -= 1
        self._calls.ended(verb, outcome, seconds)

    def waits(self, count: int) -> None:
        """``count`` calls are waiting now."""
        self._waits = count

    def cut(self) -> None:
        """A caller did not read its reply and was disconnected."""
        self._cut += 1

    def watch_budget(self, budget: Budget) -> None:
        """Report how much of this budget calls hold."""
        self._budget = budget

    def published(self, count: int) -> None:
        """``count`` messages were published, duplicates included."""
        self._published += count

    def claimed(self, count: int) -> None:
        """``count`` deliveries were handed out."""
        self._claimed += count

    def settled(self, settlements: Sequence[Settlement], outcomes: Sequence[Outcome]) -> None:
        """A settle was answered; settlements that took effect are counted by verb."""
        settled = self._settled
        if all([outcome.verdict is Verdict.OK for outcome in outcomes]):  # noqa: C419  (faster)
            for kind, count in Counter(map(type, settlements)).items():
                settled[kind] += count
            return
        for settlement, outcome in zip(settlements, outcomes, strict=True):
            if outcome.verdict is Verdict.OK:
                settled[type(settlement)] += 1
            elif outcome.verdict is Verdict.STALE:
                self._stale += 1

    # -- events of the engine ----------------------------------------------------------

    def ready(self, tenant: str, queue: str) -> None:
        """A claim may find more: on a shared store, what another server reports of its changes."""
        self._on_change(tenant, queue.removesuffix(DLQ_SUFFIX))

    def ended(self, tenant: str, queue: str) -> None:
        """Deliveries ended, perhaps on another server."""
        self._on_change(tenant, queue)

    def counted(self, tenant: str, queue: str) -> None:
        """The counts of a queue changed."""
        self._on_change(tenant, queue)

    def lapsed(self, tenant: str, queue: str, count: int) -> None:  # noqa: ARG002
        """Leases lapsed."""
        self._lapsed += count

    def committed(self, records: int, seconds: float) -> None:
        """A commit was made."""
        self._commit_records.observe(records)
        self._commit_seconds.observe(seconds)

    def repeated(self, reason: str) -> None:
        """A transaction was retried."""
        self._repeated[reason] += 1

    # -- reading -----------------------------------------------------------------------

    async def render(self, tenant: str | None = None) -> bytes:
        """All metrics in Prometheus' text format; with a tenant, its queues only (T1)."""
        # One at a time: concurrent scrapes must not multiply the load on the store.
        async with self._reading:
            gathered = Gathered()
            if self._engine is not None:
                gathered = await gather(self._engine, tenant)
            if tenant is not None:
                return await to_text(queue_metrics(gathered))
            return await to_text(chain(self._collect(gathered), self._process.collect()))

    def _collect(self, gathered: Gathered) -> Iterator[Metric]:
        yield info("penstock_build", "The running version.", {"version": VERSION})
        yield gauge("penstock_store_up", "1 if the store answered.", float(gathered.up))
        if self._opened_s is not None:
            yield gauge(
                "penstock_store_open_duration_seconds",
                "How long the store took to open.",
                self._opened_s,
            )
        yield from call_metrics(self._calls)
        yield gauge("penstock_waits_active", "Calls that are waiting.", self._waits)
        yield from self._memory()
        yield from self._flow()
        yield histogram(
            "penstock_commit_records", "Verbs whose changes one commit held.", self._commit_records
        )
        yield histogram(
            "penstock_commit_duration_seconds",
            "How long commits took to be durable.",
            self._commit_seconds,
        )
        yield from keeper_metrics(self._keepers())
        yield from queue_metrics(gathered)

    def _memory(self) -> Iterator[Metric]:
        if self._budget is not None:
            yield gauge(
                "penstock_memory_held_bytes",
                "Requests and replies that the server holds.",
                self._budget.held,
            )
            yield gauge(
                "penstock_memory_budget_bytes",
                "Requests and replies that the server may hold.",
                self._budget.limit,
            )
            yield counter(
                "penstock_memory_refusals",
                "Calls that were refused because the budget was used up.",
                self._budget.refused,
            )
        yield counter("penstock_replies_cut", "Replies that callers did not read.", self._cut)

    def _flow(self) -> Iterator[Metric]:
        yield counter(
            "penstock_messages_published", "Messages published over HTTP.", self._published
        )
        yield counter(
            "penstock_deliveries_claimed", "Deliveries handed out over HTTP.", self._claimed
        )
        yield labelled_counter(
            "penstock_deliveries_settled",
            "Settlements over HTTP that took effect.",
            "verb",
            ((kind.__name__.lower(), count) for kind, count in self._settled.items()),
        )
        yield counter(
            "penstock_receipts_stale", "Settlements whose receipt was stale.", self._stale
        )
        yield counter("penstock_leases_lapsed", "Leases that lapsed.", self._lapsed)
        yield labelled_counter(
            "penstock_transactions_repeated",
            "Transactions that a database rolled back or lost, and that were retried.",
            "reason",
            self._repeated.items(),
        )
