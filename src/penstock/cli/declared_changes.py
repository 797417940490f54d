"""The changes that make a store's queues and topics those of a declaration.

All of them are computed and checked before the first is made, so that a mistake in the file
changes nothing. A field that the file leaves out keeps its value; in a new queue or topic it has
its default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from penstock.api import QueueApi
from penstock.cli.declaration import Declaration, plain_policy
from penstock.errors import BadInput, BadSchema, Forbidden, NotFound, QueueNotEmpty
from penstock.model.fixed_fields import changed_fixed_field, not_empty
from penstock.model.limits import check_name
from penstock.model.policy_fields import PolicyChanges
from penstock.model.queue import (
    QueuePolicy,
    TopicPolicy,
    changed_policy,
    check_events,
    check_topic_policy,
)
from penstock.model.queue_events import RESERVED_PREFIX, MessageEvent, check_unreserved
from penstock.model.webhooks import message_events, watches
from penstock.wire.decode_errors import explain

__all__ = ["Change", "find_changes", "make_change"]

#: The values with which a file removes a field of a topic.
_NONE: Final = {"default_ttl_ms": 0, "schema": "", "schema_type": ""}


class Change(Struct, frozen=True):
    """One queue or topic that is created, updated or deleted."""

    action: Literal["create", "update", "delete"]
    kind: Literal["queue", "topic"]
    name: str
    fields: dict[str, tuple[Any, Any]] = {}
    """The value before and after, of the fields that change or are given for a new one."""
    made: bool = False


async def find_changes(q: QueueApi, declared: Declaration, *, prune: bool) -> list[Change]:
    """The changes in order; ``prune`` also deletes queues and topics that are not declared."""
    queues = {
        info.name: info.policy
        for info in await q.queues()
        if not info.name.startswith(RESERVED_PREFIX)
    }
    topics = dict(await q.topics())
    needed = await _webhook_events(q, declared, queues)
    changes = [_topic_change(declared, name, topics.get(name)) for name in declared.topics]
    changes += [
        _queue_change(declared, name, queues.get(name), needed.get(name, ()))
        for name in declared.queues
    ]
    if prune:
        changes += [Change("delete", "topic", name) for name in topics.keys() - declared.topics]
        changes += [Change("delete", "queue", name) for name in queues.keys() - declared.queues]
    found = [change for change in changes if change is not None]
    await _check_fixed_fields(q, declared, queues, found)
    # Topics first: a schema that the server refuses leaves the queues alone. Deletions last.
    return sorted(found, key=lambda one: (one.action == "delete", one.kind == "queue", one.name))


async def make_change(q: QueueApi, declared: Declaration, change: Change) -> None:
    """Make one change."""
    name = change.name
    if change.action == "delete":
        with suppress(NotFound):  # Another caller was faster.
            await (q.delete_queue(name) if change.kind == "queue" else q.delete_topic(name))
    elif change.kind == "topic":
        await q.put_topic(name, _topic_policy(declared, name, await q.topic(name)))
    elif change.action == "create":
        await q.create_queue(name, **cast(PolicyChanges, dict(declared.queues[name])))
    else:
        changed = {field: declared.queues[name][field] for field in change.fields}
        await q.update_queue(name, **cast(PolicyChanges, changed))


async def _check_fixed_fields(
    q: QueueApi,
    declared: Declaration,
    queues: Mapping[str, QueuePolicy],
    changes: Sequence[Change],
) -> None:
    """Refuse the change of a field that is fixed while its queue has deliveries."""
    for change in changes:
        if change.kind == "topic" or change.action != "update":
            continue
        before = queues[change.name]
        field = changed_fixed_field(before, changed_policy(before, declared.queues[change.name]))
        if field is None:
            continue
        stats = await q.stats(change.name)
        if stats.depth or stats.failed:
            error = not_empty(change.name, field)
            text = declared.at(["queues", change.name, field], error.detail)
            raise QueueNotEmpty(text, field=f"queues.{change.name}.{field}")


async def _webhook_events(
    q: QueueApi, declared: Declaration, queues: Mapping[str, QueuePolicy]
) -> dict[str, tuple[MessageEvent, ...]]:
    """By queue, the events that it reports because of webhooks, even if the file has none."""
    needed: dict[str, tuple[MessageEvent, ...]] = {}
    known = [name for name, fields in declared.queues.items() if "events" in fields]
    if any(queues[name].events for name in known if name in queues):
        with suppress(Forbidden):  # Then the difference is shown, and applying it changes nothing.
            for webhook in await q.webhooks():
                for name in known:
                    if watches(webhook, name):
                        needed[name] = (*needed.get(name, ()), *message_events(webhook))
    return needed


def _queue_change(
    declared: Declaration,
    name: str,
    before: QueuePolicy | None,
    needed: tuple[MessageEvent, ...],
) -> Change | None:
    # The parser of filters; `--help` does not need it.
    from penstock.broker.queues import new_policy, updated_policy  # noqa: PLC0415

    fields = declared.queues[name]
    try:
        check_unreserved(check_name(name, "queue"), "queue")
        if before is None:
            after = new_policy(fields)
        else:
            after = updated_policy(before, fields, QueuePolicy())
            after = replace(after, events=check_events((*after.events, *needed)))
    except BadInput as error:
        raise _refused(declared, "queues", name, error) from error
    return _compared("queue", name, fields, before, after)


def _topic_change(declared: Declaration, name: str, before: TopicPolicy | None) -> Change | None:
    after = _topic_policy(declared, name, before)
    return _compared("topic", name, declared.topics[name], before, after)


def _topic_policy(declared: Declaration, name: str, before: TopicPolicy | None) -> TopicPolicy:
    from penstock.broker.schemas import compile_schema  # noqa: PLC0415

    given = {
        field: None if value == _NONE.get(field, ...) else value
        for field, value in declared.topics[name].items()
    }
    fields = {**to_builtins(before or TopicPolicy()), **given}
    try:
        check_name(name, "topic")
        policy = check_topic_policy(msgspec.convert(fields, TopicPolicy))
    except msgspec.ValidationError as error:
        field, text = explain(error, TopicPolicy)
        raise _refused(declared, "topics", name, BadInput(f"{text}.", field=field)) from error
    except BadInput as error:
        raise _refused(declared, "topics", name, error) from error
    try:
        compile_schema(policy)
    except BadSchema as error:
        # The server checks it if this program has no library for that.
        if not isinstance(error.__cause__, ImportError):
            raise _refused(declared, "topics", name, error) from error
    return policy


def _compared(
    kind: Literal["queue", "topic"],
    name: str,
    given: Mapping[str, Any],
    before: QueuePolicy | TopicPolicy | None,
    after: QueuePolicy | TopicPolicy,
) -> Change | None:
    new = plain_policy(after)
    if before is None:
        return Change("create", kind, name, {field: (None, new.get(field)) for field in given})
    old = plain_policy(before)
    fields = {
        field: (old.get(field), new.get(field))
        for field in given
        if getattr(before, field) != getattr(after, field)
    }
    return Change("update", kind, name, fields) if fields else None


def _refused(declared: Declaration, table: str, name: str, error: BadInput) -> BadInput:
    given = getattr(declared, table)[name]
    field = (error.field or "").partition(".")[0]
    if field not in given and field in given.get("queue_defaults", ()):
        field = "queue_defaults"
    path = [table, name, *([field] if field in given else ())]
    return declared.refused(path, error.detail, error.limit)
