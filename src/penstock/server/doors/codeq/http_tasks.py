"""The routes of producers and workers: tasks, results, subscriptions."""

from __future__ import annotations

from typing import Final

from penstock.errors import BadInput, PenstockError
from penstock.model.limits import MAX_WAIT_MS
from penstock.model.message import HeaderValue
from penstock.model.names import escape
from penstock.server.call import Call
from penstock.server.claiming import claim_within_bounds, or_wait
from penstock.server.doors.codeq import tasks, work
from penstock.server.doors.codeq.access import Caller, Worker, check_producer, worker
from penstock.server.doors.codeq.bodies import (
    BatchResult,
    ClaimBody,
    CreateBatch,
    CreateBatchReply,
    CreateItem,
    HeartbeatBody,
    NackBody,
    OkReply,
    RaftReply,
    RenewBody,
    StatusReply,
    SubmitBatch,
    SubmitBatchReply,
    SubmitItem,
    SubscribeBody,
    SubscriptionReply,
    TaskAndResult,
    TaskList,
)
from penstock.server.doors.codeq.refusals import CodeqError, refusal_text
from penstock.server.doors.codeq.results import SubmitBody, result_of
from penstock.server.doors.codeq.subscriptions import Subscription, Subscriptions
from penstock.server.doors.codeq.tasks import CreateBody, Found, Task
from penstock.server.doors.json_bodies import (
    SMALL_BYTES,
    decode_json,
    json_reply,
    query_of,
    read_json,
    rfc3339,
    whole_number,
)
from penstock.server.doors.json_lists import json_list, read_json_list
from penstock.server.doors.path_door import DoorRoute
from penstock.server.replies import Plain
from penstock.wire.bodies import ClaimQueuesBody

__all__ = ["TaskRoutes"]

PREFIX: Final = "/v1/codeq"
_MAX_BATCH: Final = 100
_MAX_CLAIM_BATCH: Final = 10
_MAX_RESULT_WAIT_MS: Final = 60_000
#: Members that are any JSON, and stay undecoded.
_OPAQUE: Final = frozenset({"payload", "result"})
_MODES: Final = ("fanout", "group", "hash")


class TaskRoutes:
    """The handlers."""

    def __init__(self, subscriptions: Subscriptions) -> None:
        self._subscriptions = subscriptions

    def routes(self) -> tuple[DoorRoute, ...]:
        """The routes with their handlers."""
        all_, task = PREFIX + "/tasks", PREFIX + "/tasks/{id}"
        subscriptions = PREFIX + "/workers/subscriptions"
        return (
            DoorRoute("POST", all_, "create_task", self.create),
            DoorRoute("POST", all_ + "/batch", "create_tasks", self.create_batch),
            DoorRoute("POST", all_ + "/claim", "claim", self.claim),
            DoorRoute("POST", all_ + "/claim/batch", "claim_batch", self.claim_batch),
            DoorRoute("POST", task + "/heartbeat", "heartbeat", self.heartbeat),
            DoorRoute("POST", task + "/abandon", "abandon", self.abandon),
            DoorRoute("POST", task + "/nack", "nack", self.nack),
            DoorRoute("POST", task + "/result", "submit", self.submit),
            DoorRoute("POST", all_ + "/batch/results", "submit_batch", self.submit_batch),
            DoorRoute("POST", subscriptions, "subscribe", self.subscribe),
            DoorRoute("POST", subscriptions + "/{id}/heartbeat", "renew", self.renew),
            DoorRoute("GET", task, "get_task", self.get),
            DoorRoute("GET", task + "/result", "get_result", self.get_result),
            DoorRoute("GET", PREFIX + "/raft/status", "raft_status", self.raft_status),
        )

    # -- producers ---------------------------------------------------------------------

    async def create(self, call: Call) -> Plain:
        """Create a task."""
        most = call.service.payload_bytes + SMALL_BYTES
        body = await read_json(call, CreateBody, most, _OPAQUE)
        check_producer(call.credential, body.command)
        return json_reply(await tasks.create(call.broker, body, _traced(call)), 202)

    async def create_batch(self, call: Call) -> Plain:
        """Create up to 100 tasks, each on its own."""
        body = await read_json_list(call, CreateBatch, CreateBody, _MAX_BATCH, _OPAQUE)
        items = body.tasks or []
        if not 1 <= len(items) <= _MAX_BATCH:
            raise CodeqError(400, f"tasks must have 1 to {_MAX_BATCH} items", field="tasks")
        for item in items:
            check_producer(call.credential, item.command)
        results = []
        for item in items:
            try:
                made = await tasks.create(call.broker, item, _traced(call))
                results.append(CreateItem(task=made))
            except PenstockError as error:
                results.append(CreateItem(error=_item_text(error)))
        return await json_list(CreateBatchReply(results))

    async def get(self, call: Call) -> Plain:
        """A task."""
        found = await _visible(call)
        return json_reply(tasks.shown_task(call.credential.tenant, found))

    async def get_result(self, call: Call) -> Plain:
        """A finished task and its result, waiting for it."""
        wait_ms = min(
            (whole_number(query_of(call).get("waitSeconds")) or 0) * 1000, _MAX_RESULT_WAIT_MS
        )
        found = await _visible(call)
        while await result_of(call.broker, found) is None and wait_ms > 0:
            step_ms = min(wait_ms, MAX_WAIT_MS)
            waiting = call.broker.result(found.queue, found.message.id, wait_ms=step_ms)
            ended = await call.wait_for(waiting)
            wait_ms = 0 if ended is not None else wait_ms - step_ms
            found = await _visible(call)
        call.end()
        result = await result_of(call.broker, found)
        if result is None:
            raise CodeqError(404, "result not found")
        shown = tasks.shown_task(call.credential.tenant, found)
        return json_reply(TaskAndResult(shown, result))

    async def raft_status(self, call: Call) -> Plain:  # noqa: ARG002
        """There is no cluster."""
        return json_reply(RaftReply(enabled=False, numGroups=0))

    # -- workers -----------------------------------------------------------------------

    async def claim(self, call: Call) -> Plain:
        """The next task of some commands, waiting for it."""
        own = worker(call.credential, "codeq:claim")
        body = await read_json(call, ClaimBody)
        wait_ms = min(max(body.waitSeconds or 0, 0) * 1000, MAX_WAIT_MS)
        found = await self._claim(call, own, body, limit=1, wait_ms=wait_ms)
        return json_reply(found[0]) if found else Plain(204)

    async def claim_batch(self, call: Call) -> Plain:
        """Up to ten tasks."""
        own = worker(call.credential, "codeq:claim")
        body = await read_json(call, ClaimBody)
        count = body.count or 0
        if not 1 <= count <= _MAX_CLAIM_BATCH:
            raise CodeqError(400, f"count must be 1 to {_MAX_CLAIM_BATCH}", field="count")
        found = await self._claim(call, own, body, limit=count)
        return await json_list(TaskList(found)) if found else Plain(204)

    async def _claim(
        self, call: Call, own: Worker, body: ClaimBody, *, limit: int, wait_ms: int = 0
    ) -> list[Task]:
        queues = tuple(escape(command, "commands") for command in own.choose(body.commands))
        for queue in queues:
            await tasks.ensure_queue(call.broker, queue)
        wanted = ClaimQueuesBody(
            queues,
            limit=limit,
            lease_ms=work.lease_ms(body.leaseSeconds),
            wait_ms=wait_ms,
            consumer=own.consumer,
        )
        deliveries = await or_wait(call, wanted, await claim_within_bounds(call, wanted, 0))
        return [tasks.claimed_task(call.broker.tenant, one, own.id) for one in deliveries]

    async def heartbeat(self, call: Call) -> Plain:
        """Extend a lease."""
        own = worker(call.credential, "codeq:heartbeat")
        body = await read_json(call, HeartbeatBody)
        await work.heartbeat(call.broker, own, call.name, body.extendSeconds)
        return json_reply(OkReply(ok=True))

    async def abandon(self, call: Call) -> Plain:
        """Give a task back."""
        own = worker(call.credential, "codeq:abandon")
        await work.abandon(call.broker, own, call.name)
        return json_reply(StatusReply("requeued"))

    async def nack(self, call: Call) -> Plain:
        """Retry a task later, or fail it."""
        own = worker(call.credential, "codeq:nack")
        body = await read_json(call, NackBody)
        reply = await work.nack(call.broker, own, call.name, body.delaySeconds, body.reason)
        return json_reply(reply)

    async def submit(self, call: Call) -> Plain:
        """End a task."""
        own = worker(call.credential, "codeq:result")
        most = call.service.payload_bytes + SMALL_BYTES
        body = await read_json(call, SubmitBody, most, _OPAQUE)
        return json_reply(await work.submit(call.broker, own, call.name, body))

    async def submit_batch(self, call: Call) -> Plain:
        """End up to 100 tasks, each on its own."""
        own = worker(call.credential, "codeq:result")
        body = await read_json_list(call, SubmitBatch, BatchResult, _MAX_BATCH, _OPAQUE)
        items = body.results or []
        if not 1 <= len(items) <= _MAX_BATCH:
            raise CodeqError(400, f"results must have 1 to {_MAX_BATCH} items", field="results")
        results = []
        for item in items:
            try:
                result = await work.submit(call.broker, own, item.taskId, item)
                results.append(SubmitItem(item.taskId, result=result))
            except PenstockError as error:
                results.append(SubmitItem(item.taskId, error=_item_text(error)))
        return await json_list(SubmitBatchReply(results))

    async def subscribe(self, call: Call) -> Plain:
        """Notify a URL when there is work."""
        own = worker(call.credential, "codeq:subscribe")
        body = await read_json(call, SubscribeBody)
        url = tasks.check_url(body.callbackUrl, "callbackUrl")
        mode, group = body.deliveryMode or "fanout", body.groupId or ""
        if mode not in _MODES:
            raise CodeqError(400, "deliveryMode must be fanout, group or hash")
        if mode == "group" and not group:
            raise CodeqError(400, "groupId is required", field="groupId")
        wanted = Subscription(
            id="",
            url=url,
            commands=tuple(own.choose(body.eventTypes)),
            mode=mode,
            group=group,
            min_interval_s=max(body.minIntervalSeconds or 0, 0),
            expires_at=0,
        )
        made = await self._subscriptions.add(call.credential.tenant, wanted, body.ttlSeconds)
        return json_reply(SubscriptionReply(made.id, rfc3339(made.expires_at)))

    async def renew(self, call: Call) -> Plain:
        """Extend a subscription."""
        worker(call.credential, "codeq:subscribe")
        raw = await call.read_body(SMALL_BYTES)
        body = decode_json(raw, RenewBody) if raw else RenewBody()
        known = await self._subscriptions.renew(call.credential.tenant, call.name, body.ttlSeconds)
        return json_reply(SubscriptionReply(known.id, rfc3339(known.expires_at)))


async def _visible(call: Call) -> Found:
    """The task in the path, if the caller may see it."""
    found = await tasks.find(call.broker, call.name)
    if found is None:
        raise CodeqError(404, "task not found")
    caller = call.credential
    if not isinstance(caller, Caller) and not caller.allows("publish", found.queue):
        caller.check("read", found.queue)
    return found


def _traced(call: Call) -> dict[str, HeaderValue]:
    """The trace context of the caller, as headers of the message."""
    found: dict[str, HeaderValue] = {}
    for name in ("traceparent", "tracestate"):
        value = call.headers.get(name.encode())
        if value is not None and value.isascii() and len(value) <= SMALL_HEADER:
            found[name] = value.decode()
    return found


#: Trace headers that are longer are dropped, as the standard demands of tracestate.
SMALL_HEADER: Final = 512


def _item_text(error: PenstockError) -> str:
    if error.status >= 500 and not isinstance(error, CodeqError | BadInput):
        raise error
    return refusal_text(error)
