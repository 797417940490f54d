"""Routing ahead: the filters of a large publish are evaluated in slices, before it is planned.

A publish is planned and applied in one go. With a thousand filters and ten thousand messages,
evaluating them alone would hold the loop for seconds, so that part is done first, in turns with
other calls. The answers hold for the state that planning finds: filters that changed in between
are evaluated again (``BatchRoutes``), and a keyed message whose first version changed is too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from types import TracebackType
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

#: The message that another one of this topic and key would replace.
Replaced: TypeAlias = Callable[[str, str], Message | None]


def is_quick(tenant: Tenant, topic: str, messages: int, most: int = INLINE_EVALUATIONS) -> bool:
    """Whether so many messages of the topic take no more than ``most`` evaluations of filters."""
    if len(tenant.queues) * messages <= most:
        return True  # Whatever the filters are.
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

    Afterwards no long change is under way, and the answers hold until another verb begins.
    """
    with RoutedAhead(tenant, outgoing, now, replaced) as ahead:
        await ahead.run(turns, changes)
        yield ahead


class RoutedAhead:
    """Which queues take the messages of one publish; a context manager."""

    def __init__(
        self, tenant: Tenant, outgoing: Sequence[Outgoing], now: int, replaced: Replaced
    ) -> None:
        # At once: the producer may go on using its lists and headers.
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.close()

    async def run(self, turns: Turns, changes: LongChanges) -> None:
        """Evaluate in slices. Afterwards, until another verb begins, the answers are current."""
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
        """Give keyed messages what they will keep of the message that they replace.

        A guess, as that message may be claimed meanwhile: planning decides, and evaluates again
        where it decides otherwise.
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
        """The message as it was evaluated; its headers are a copy of the producer's."""
        return self._messages[position]

    def match(self, position: int, message: Message) -> Sequence[Queue]:
        """The queues that are caught up and take the message at this position of the publish."""
        if _reads_alike(self.message(position), message):
            return self._caught_up.match(position)
        return self._tenant.index.match(message)

    def match_behind(self, position: int, message: Message) -> Sequence[Queue]:
        """The queues that are behind and will take the message."""
        if _reads_alike(self.message(position), message):
            return self._behind.match(position)
        return self._tenant.behind.match(message)


def _reads_alike(ahead: Message, message: Message) -> bool:
    """Whether filters see no difference: a replaced message keeps these of its first version."""
    return (
        ahead.priority == message.priority
        and ahead.partition_key == message.partition_key
        and ahead.published_at == message.published_at
    )


def _message(topic: str, new: NewMessage, now: int) -> Message:
    """The message with what filters read; the rest is decided later."""
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
