"""Positions: where deliveries wait that moved to the back of their queue (C4).

Such a delivery has a claim id with a number of its own instead of its message id, and a position
record from its message id to that claim id. Only waiting deliveries have one: a claim brings a
delivery back to its publish position, which it has in every other state.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from penstock.storage.keyvalue.encoding import prefix_end, seal, unseal
from penstock.storage.keyvalue.entry import Entry
from penstock.storage.keyvalue.keys import QueueKeys, publish_claim_id
from penstock.storage.keyvalue.stage import Stage

__all__ = ["Positions"]

_U64 = struct.Struct("<Q")


class Positions:
    """The position records of one queue."""

    def __init__(self, stage: Stage, keys: QueueKeys, draw: Callable[[], int]) -> None:
        """``draw`` returns a number behind all messages so far."""
        self._stage = stage
        self._prefix = keys.position
        self._draw = draw
        self._drawn: list[int] = []

    def find(self, message_id: int) -> int | None:
        """The claim id of a message's delivery, if it waits where it moved to."""
        value = self._stage.get(self._prefix + message_id.to_bytes(8, "big"))
        return None if value is None else int(_U64.unpack(unseal(value, "position"))[0])

    def draw_ahead(self, count: int) -> None:
        """Draw the numbers of the next ``count`` moves; ``drop_drawn`` must follow."""
        self._drawn = [self._draw() for _ in range(count)][::-1]

    def drop_drawn(self) -> None:
        """Forget numbers that were drawn ahead and not used."""
        self._drawn = []

    def behind_all(self, entry: Entry) -> int:
        """A claim id behind every delivery that waits now, within the entry's priority."""
        number = self._drawn.pop() if self._drawn else self._draw()
        return publish_claim_id(entry.claim_id, number)

    def move(self, entry: Entry, claim_id: int) -> None:
        """Give an entry that is on no shelf and in no index another position."""
        entry.claim_id = claim_id
        key = self._prefix + entry.message_id.to_bytes(8, "big")
        self._stage.put(key, seal(_U64.pack(claim_id)))

    def bring_home(self, entry: Entry) -> None:
        """Give an entry that is on no shelf and in no index its publish position."""
        claim_id = publish_claim_id(entry.claim_id, entry.message_id)
        if claim_id != entry.claim_id:
            self._stage.delete(self._prefix + entry.message_id.to_bytes(8, "big"))
            entry.claim_id = claim_id

    def lowest(self) -> int | None:
        """The lowest message id that has a position."""
        for key, _ in self._stage.scan(self._prefix, prefix_end(self._prefix)):
            return int.from_bytes(key[-8:], "big")
        return None

    def all(self) -> Iterator[tuple[int, int]]:
        """(message id, claim id) of every delivery that has a position."""
        for key, value in self._stage.scan(self._prefix, prefix_end(self._prefix)):
            claim_id = int(_U64.unpack(unseal(value, "position"))[0])
            yield int.from_bytes(key[-8:], "big"), claim_id

    def between(self, low: int, high: int) -> Iterator[bytes]:
        """The keys of the records of messages with low <= id < high; each ends in the id."""
        start, end = (self._prefix + at.to_bytes(8, "big") for at in (low, high))
        return (key for key, _ in self._stage.scan(start, end))
