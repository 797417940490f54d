"""The contents of a store, as plain values that a later release can be compared with."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from penstock.model.message import Offset
from penstock.model.states import State
from penstock.storage.contract import Engine

__all__ = ["TENANT", "Json", "Kept", "describe", "missing"]

TENANT = "default"
LIMIT = 1_000
Json: TypeAlias = Any


class Kept(msgspec.Struct, frozen=True):
    """What is known of a store that a release has written."""

    now: int
    """The time of the store's clock."""
    held: dict[str, str]
    """By queue, a receipt of a delivery in flight."""
    contents: dict[str, Json]


async def describe(engine: Engine) -> dict[str, Json]:
    """Everything that readers can see of a small store."""
    queues = await engine.list_queues(TENANT)
    names = [name for queue in queues for name in (queue.name, f"{queue.name}.dlq")]
    log = await engine.read_log(TENANT, Offset(0), LIMIT, payloads=True)
    found: dict[str, Json] = {
        "queues": {queue.name: queue for queue in queues},
        "topics": dict(await engine.list_topics(TENANT)),
        "log": log.entries,
        "stats": {name: await engine.stats(TENANT, name) for name in names},
        "deliveries": {
            name: {
                state.value: (await engine.peek(TENANT, name, state, None, LIMIT)).items
                for state in State
            }
            for name in names
        },
        "histories": {
            str(message): await engine.history(TENANT, message)
            for message in sorted({entry.message.id for entry in log.entries})
        },
        "documents": dict(await engine.list_documents("notes")),
    }
    plain: dict[str, Json] = msgspec.json.decode(msgspec.json.encode(found))
    return plain


def missing(before: Json, now: Json, path: str = "") -> list[str]:
    """The paths of values that are not the same any more; fields that are new do not count."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            item
            for name, value in before.items()
            for item in (
                missing(value, now[name], f"{path}/{name}") if name in now else [f"{path}/{name}"]
            )
        ]
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [
            item
            for nth, (one, other) in enumerate(zip(before, now, strict=True))
            for item in missing(one, other, f"{path}/{nth}")
        ]
    return [] if before == now else [f"{path}: {before!r} became {now!r}"]
