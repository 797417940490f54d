"""What producers and workers of codeQ send, and what they get, with codeQ's own field names."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from penstock.server.doors.codeq.results import ResultBody, SubmitBody
from penstock.server.doors.codeq.tasks import CreateBody, Task

__all__ = [
    "BatchResult",
    "ClaimBody",
    "CreateBatch",
    "CreateBatchReply",
    "CreateItem",
    "HeartbeatBody",
    "NackBody",
    "OkReply",
    "RaftReply",
    "RenewBody",
    "StatusReply",
    "SubmitBatch",
    "SubmitBatchReply",
    "SubmitItem",
    "SubscribeBody",
    "SubscriptionReply",
    "TaskAndResult",
    "TaskList",
]


class CreateBatch(Struct, frozen=True):
    """Tasks to create."""

    tasks: list[CreateBody] | None = None


class CreateItem(Struct, frozen=True, omit_defaults=True):
    """What became of one task of a batch."""

    task: Task | UnsetType = UNSET
    error: str = ""


class CreateBatchReply(Struct, frozen=True):
    """In the order of the call."""

    results: list[CreateItem]


class ClaimBody(Struct, frozen=True):
    """What a worker asks for."""

    commands: list[str] | None = None
    leaseSeconds: int | None = None  # noqa: N815  (codeQ's names)
    waitSeconds: int | None = None  # noqa: N815
    count: int | None = None


class TaskList(Struct, frozen=True):
    """Claimed tasks."""

    tasks: list[Task]


class HeartbeatBody(Struct, frozen=True):
    """How long to extend."""

    extendSeconds: int | None = None  # noqa: N815


class NackBody(Struct, frozen=True):
    """When to retry, and why."""

    delaySeconds: int | None = None  # noqa: N815
    reason: str | None = None


class BatchResult(SubmitBody, frozen=True):
    """The result of one task of a batch."""

    taskId: str = ""  # noqa: N815


class SubmitBatch(Struct, frozen=True):
    """Results of several tasks."""

    results: list[BatchResult] | None = None


class SubmitItem(Struct, frozen=True, omit_defaults=True):
    """What became of one result of a batch."""

    taskId: str  # noqa: N815
    result: ResultBody | UnsetType = UNSET
    error: str = ""


class SubmitBatchReply(Struct, frozen=True):
    """In the order of the call."""

    results: list[SubmitItem]


class TaskAndResult(Struct, frozen=True):
    """A finished task."""

    task: Task
    result: ResultBody


class SubscribeBody(Struct, frozen=True):
    """Whom to notify, and of what."""

    callbackUrl: str = ""  # noqa: N815
    eventTypes: list[str] | None = None  # noqa: N815
    ttlSeconds: int | None = None  # noqa: N815
    deliveryMode: str | None = None  # noqa: N815
    groupId: str | None = None  # noqa: N815
    minIntervalSeconds: int | None = None  # noqa: N815


class RenewBody(Struct, frozen=True):
    """How long to extend."""

    ttlSeconds: int | None = None  # noqa: N815


class SubscriptionReply(Struct, frozen=True):
    """A subscription and its end."""

    subscriptionId: str  # noqa: N815
    expiresAt: str  # noqa: N815


class OkReply(Struct, frozen=True):
    """It worked."""

    ok: bool


class StatusReply(Struct, frozen=True):
    """What became of a task."""

    status: str


class RaftReply(Struct, frozen=True):
    """There is no cluster."""

    enabled: bool
    numGroups: int  # noqa: N815
