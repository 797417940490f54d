"""Creates the queue and the topic that a library's messages go through, if they are missing."""

from __future__ import annotations

from contextlib import suppress
from typing import Final, Unpack

from penstock.api import QueueApi
from penstock.errors import Forbidden
from penstock.model.policy_fields import PolicyFields
from penstock.model.queue import TopicPolicy

__all__ = ["ensure_queue"]

#: Results are found by idempotency id, which a topic remembers for an hour by default.
_DEDUP_WINDOW_MS: Final = 7 * 24 * 3600 * 1000


async def ensure_queue(verbs: QueueApi, queue: str, **policy: Unpack[PolicyFields]) -> None:
    """Create the queue for the topic of the same name; what is there already is not changed.

    A credential that may not create queues relies on an operator who has created them.
    """
    with suppress(Forbidden):
        if await verbs.topic(queue) is None:
            await verbs.put_topic(queue, TopicPolicy(dedup_window_ms=_DEDUP_WINDOW_MS))
    with suppress(Forbidden):
        await verbs.ensure_queue(queue, f"topic = '{queue}'", **policy)
