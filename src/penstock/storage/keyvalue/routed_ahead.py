"""Routing ahead: evaluates the filters of a large publish in slices, before it is planned.

A publish excludes other verbs while it is planned and applied. With a thousand filters and ten
thousand messages, evaluating them would take seconds, so that is done first, in turns with other
calls. Planning must see current results: filters that changed meanwhile are evaluated again
(``BatchRoutes``), and so is a keyed message whose first version changed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from typing import Self, TypeAlias

from msgspec.structs import replace

from penstock.filters.batch_routes import INLINE_EVALUATIONS, BatchRoutes
from penstock.model.message import NO_HEADERS, Message, MessageId, NewMessage, Offset
from penstock.storage.contract import Outgoing
from penstock.storage.keyvalue.long_changes import LongChanges
from penstock.storage.keyvalue.queue import Queue
from penstock.storage.keyvalue.tenant import Tenant
from penstock.storage.turns import Slice, Turns

__all__ = ["RoutedAhead", "is_quick", "routed_ahead"]

#: Returns the message that a new message of this topic and key would replace.
Replaced: TypeAlias = Callable[[str, str], Message | None]


def is_quick(tenant: Tenant, topic: str, messages: int, most: int = INLINE_EVALUATIONS) -> bool:
    """Whether this many messages of the topic take at most ``most`` evaluations of filters."""
    if len(tenant.queues) * messages <= most:
        return True  # For any filters.
    filters = tenant.index.evaluations(topic) + tenant.behind.evaluations(topic)
    return filters * messages <= most


@asynccontextmanager
async def routed_ahead(
    turns: Turns,
    changes: LongChanges,
    tenant: Tenant,
    outgoing: Sequence[Outgoing],
    now: int,
    replaced: Replaced,
) -> AsyncIterator[RoutedAhead]:
    """Evaluate the filters of a publish in slices.

    On entry no long change is in progress, and the results hold until another verb begins.
    """
    with RoutedAhead(tenant, outgoing, now, replaced) as ahead:
        await ahead.run(turns, changes)
        yield ahead


class RoutedAhead:
    """The queues that take the messages of one publish; a context manager."""

    def __init__(
        self, tenant: Tenant, outgoing: Sequence[Outgoing], now: int, replaced: Replaced
    ) -> None:
        # Copied now: the producer may change its lists and headers later.
        self._messages = [
            _message(item.topic, new, now) for item in outgoing for new in item.messages
        ]
        self._replaced = replaced
        self._tenant = tenant
        self._caught_up: BatchRoutes[Queue] = BatchRoutes(tenant.index, self._messages)
        self._behind: BatchRoutes[Queue] = BatchRoutes(tenant.behind, self._messages)
        self._open = ExitStack()

    def __enter__(self) -> Self:
        self._open.enter_context(self._caught_up)
        self._open.enter_context(self._behind)
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()

    async def run(self, turns: Turns, changes: LongChanges) -> None:
        """Evaluate in slices. The results are then current until another verb begins."""
        current = Slice(turns, self._tenant.name)
        both = (self._caught_up, self._behind)
        await current.run(self._keep_places())
        for routes in both:
            await current.run(routes.steps())
        while changes.under_way or not all(routes.is_quick for routes in both):
            await changes.over()
            for routes in both:
                await current.run(routes.catch_up_steps())
        for routes in both:
            routes.finish()

    def _keep_places(self) -> Iterator[None]:
        """Copy what keyed messages will keep from the messages that they replace.

        A guess, because that message may be claimed meanwhile: planning decides, and evaluates
        again if it decides otherwise.
        """
        first: dict[tuple[str, str], Message] = {}
        for position, message in enumerate(self._messages):
            if message.key is None:
                continue
            place = (message.topic, message.key)
            before = first.get(place) or self._replaced(*place)
            if before is not None:
                message = replace(  # noqa: PLW2901
                    message,
                    priority=before.priority,
                    published_at=before.published_at,
                    partition_key=before.partition_key,
                )
                self._messages[position] = message
            first[place] = message
            yield

    def message(self, position: int) -> Message:
        """The message that was evaluated, with its own copy of the producer's headers."""
        return self._messages[position]

    def match(self, position: int, message: Message) -> Sequence[Queue]:
        """The caught-up queues that take the message at this position of the publish."""
        if _reads_alike(self.message(position), message):
            return self._caught_up.match(position)
        return self._tenant.index.match(message)

    def match_behind(self, position: int, message: Message) -> Sequence[Queue]:
        """The queues that are not caught up and will take the message."""
        if _reads_alike(self.message(position), message):
            return self._behind.match(position)
        return self._tenant.behind.match(message)


def _reads_alike(ahead: Message, message: Message) -> bool:
    """Whether filters see no difference: a replacement keeps these fields of the first version."""
    return (
        ahead.priority == message.priority
        and ahead.partition_key == message.partition_key
        and ahead.published_at == message.published_at
    )


def _message(topic: str, new: NewMessage, now: int) -> Message:
    """The message with the fields that filters read; the others are set later."""
    return Message(
        MessageId(0),
        Offset(0),
        topic,
        new.priority,
        now,
        now,
        None,
        len(new.payload),
        0,
        new.partition_key,
        new.key,
        new.content_type,
        dict(new.headers) if new.headers else NO_HEADERS,
    )
