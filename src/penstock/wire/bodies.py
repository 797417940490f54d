"""The bodies of requests and replies that are not values of the model.

Requests refuse unknown fields: a misspelt option would otherwise be ignored silently (E1).
The broker checks the values.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock.api import ANONYMOUS, BULK_LIMIT, ROUTE_BATCH
from penstock.model.delivery import ClaimOrder, Delivery, Event, ReplaySource, Result, Settlement
from penstock.model.identity import StoreIdentity
from penstock.model.message import (
    Durability,
    NewMessage,
    Offset,
    Outgoing,
)
from penstock.model.queue import QueueInfo, QueuePolicy, TopicPolicy
from penstock.model.reports import Preview
from penstock.model.runs import NO_VALUES, Run, RunState, RunValue, StoredReport
from penstock.model.states import State
from penstock.model.webhooks import Webhook

__all__ = [
    "ArchivedBody",
    "AssignBody",
    "BeginWriteBody",
    "ClaimBody",
    "ClaimQueuesBody",
    "ClaimReply",
    "CompleteBody",
    "DryRunReply",
    "EventList",
    "FinishWriteBody",
    "JoinBody",
    "LogEnd",
    "LogSplits",
    "PublishBody",
    "PurgeBody",
    "QueueList",
    "ReplayBody",
    "ReportBody",
    "ReportReply",
    "ResultReply",
    "RouteBody",
    "RunBody",
    "RunList",
    "SettleBody",
    "SweepBody",
    "TopicInfo",
    "TopicList",
    "ValidateBody",
    "WebhookBody",
    "WebhookList",
]

SWEEP_LIMIT: Final = 10_000


class PublishBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A batch: all of it is stored, or nothing (P2)."""

    messages: list[NewMessage]
    durability: Durability = "fsync"
    batch_id: str | None = None
    batch_ms: int | None = None


class ClaimBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How many deliveries, for how long, for which consumer, and how long to wait.

    Defaults are omitted, because an older server refuses fields that it does not know.
    """

    limit: int = 1
    lease_ms: int | None = None
    wait_ms: int = 0
    consumer: str = ANONYMOUS
    where: str | None = None
    """A filter: only deliveries that match are leased."""
    apart: bool = False
    """For callers that work independently: what as many claims of one would get, without a wait."""


class ClaimQueuesBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A claim of several queues: in the given order, or fairly."""

    queues: tuple[str, ...]
    order: ClaimOrder = "given"
    limit: int = 1
    lease_ms: int | None = None
    wait_ms: int = 0
    consumer: str = ANONYMOUS
    where: str | None = None


class ClaimReply(Struct, frozen=True):
    """The deliveries handed out, possibly none."""

    deliveries: list[Delivery]


class SettleBody(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Settlements, the messages published in the same commit, and the claim after them.

    Defaults are omitted, as in a claim.
    """

    settlements: list[Settlement]
    publish: list[Outgoing] = []
    claim: ClaimBody | None = None


class ReplayBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries become available again."""

    source: ReplaySource = ReplaySource.FAILED
    where: str | None = None
    limit: int = BULK_LIMIT
    rate: int | None = None
    dry_run: bool = False
    replay_id: str | None = None
    ids: tuple[int, ...] | None = None
    """Message ids; None: all that match ``where``."""
    ttl_ms: int | None = None
    """The new expiry of each, from when it is due; None: expired ones are skipped."""


class PurgeBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Which deliveries are removed for good."""

    state: State
    where: str | None = None
    limit: int = BULK_LIMIT
    ids: tuple[int, ...] | None = None
    """Message ids; None: all that match ``where``."""


class ValidateBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A text that may be a filter."""

    text: str


class CompleteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A text, the cursor in it, and the header names that the editor knows."""

    text: str
    cursor: int
    headers: list[str] = []


class JoinBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The consumer that joins an ordered queue, or heartbeats."""

    consumer: str


class RouteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How many log entries to catch up by."""

    limit: int = ROUTE_BATCH


class AssignBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The entries that an external router found in a range of the log."""

    filter: str
    start: Offset
    end: Offset
    offsets: list[Offset]
    store: StoreIdentity | None = None
    """The identity of the log that was read; None: not checked."""


class SweepBody(Struct, frozen=True, forbid_unknown_fields=True):
    """How much one sweep may do."""

    limit: int = SWEEP_LIMIT


class ArchivedBody(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything at or below this offset has a verified copy (A1)."""

    through: Offset
    store: StoreIdentity
    """The identity of the copied store at the time of the copy."""


class BeginWriteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A write of many batches, and the run that begins it."""

    id: str
    run: str
    number: int | None = None
    """The number of the write, among those that follow each other under one id."""
    all_topics: bool = False
    """The id means one write to all topics: the run that began one of them began the others."""


class FinishWriteBody(Struct, frozen=True, forbid_unknown_fields=True):
    """A finished write, and how many messages it has published."""

    id: str
    run: str
    rows: int
    number: int | None = None


class RunBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run of a pipeline job; its id is in the path."""

    job: str
    state: RunState
    started_at: int
    updated_at: int
    finished_at: int | None = None
    progress: dict[str, RunValue] = NO_VALUES
    summary: dict[str, RunValue] = NO_VALUES
    error: str | None = None
    report: str | None = None


class RunList(Struct, frozen=True):
    """Runs of pipeline jobs, the newest first."""

    runs: tuple[Run, ...]


class ReportBody(Struct, frozen=True, forbid_unknown_fields=True):
    """The page of a report, as HTML."""

    page: str


class ReportReply(Struct, frozen=True):
    """The newest report, if there is one."""

    report: StoredReport | None


class WebhookBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook; its id is in the path."""

    url: str
    queue: str
    events: list[str]
    threshold: int | None = None
    headers: dict[str, str] | None = None
    description: str = ""
    enabled: bool = True
    secret: str | None = None


class WebhookList(Struct, frozen=True):
    """All webhooks of the tenant by id, without their secrets."""

    webhooks: tuple[Webhook, ...]


class QueueList(Struct, frozen=True):
    """All queues of the tenant by name."""

    queues: tuple[QueueInfo, ...]


class DryRunReply(Struct, frozen=True):
    """What a queue with this policy would take from the log."""

    policy: QueuePolicy
    preview: Preview
    explanation: str


class TopicInfo(Struct, frozen=True):
    """A registered topic."""

    name: str
    policy: TopicPolicy


class TopicList(Struct, frozen=True):
    """All registered topics of the tenant by name."""

    topics: tuple[TopicInfo, ...]


class LogEnd(Struct, frozen=True):
    """An end of the log: the offset after its last entry, or that of its first."""

    offset: Offset


class LogSplits(Struct, frozen=True):
    """Offsets that split a part of the log into pieces."""

    offsets: tuple[Offset, ...]


class ResultReply(Struct, frozen=True):
    """How a delivery ended, or null while it has not."""

    result: Result | None


class EventList(Struct, frozen=True):
    """Every transition of one message that is still on record."""

    events: tuple[Event, ...]
