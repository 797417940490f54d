"""Idempotency ids: one id makes one log entry inside its window, across restarts (P4).

The id's record is written in the same commit as its message. To forget ids without
looking at all of them, each commit also writes its ids under the minute their window ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from penstock.storage.keyvalue.encoding import Reader, pack_var_bytes, seal, unseal, untangle
from penstock.storage.keyvalue.keys import DEDUP_SLOT_PREFIX, dedup_key, dedup_slot_key
from penstock.storage.keyvalue.stage import Stage

__all__ = ["Dedup", "FirstPublish"]

_VALUE = struct.Struct("<QQq")
_U16 = struct.Struct("<H")
_SLOT_MS: Final = 60_000
#: Array counts are 16 bits, and two slots may have to become one.
_MAX_KEYS: Final = 32_767
_KEY_PREFIX_BYTES: Final = 3


class FirstPublish(Struct, frozen=True):
    """The message that an id stands for."""

    message_id: int
    offset: int
    at: int


class Dedup:
    """All remembered ids."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._staged: dict[int, list[bytes]] = {}
        self._serial = 0

    def find(self, tenant: str, topic: str, idempotency_id: str) -> FirstPublish | None:
        value = self._stage.get(dedup_key(tenant, topic, idempotency_id))
        if value is None:
            return None
        return FirstPublish(*_VALUE.unpack(unseal(value, "idempotency id")))

    def remember(
        self, tenant: str, topic: str, idempotency_id: str, first: FirstPublish, window_ms: int
    ) -> None:
        key = dedup_key(tenant, topic, idempotency_id)
        value = _VALUE.pack(first.message_id, first.offset, first.at)
        self._stage.put(key, seal(value))
        self._schedule(key, first.at + window_ms)
        self._serial = first.offset

    def write_to(self, stage: Stage) -> None:
        for slot, keys in self._staged.items():
            for begin in range(0, len(keys), _MAX_KEYS):
                part = keys[begin : begin + _MAX_KEYS]
                key = dedup_slot_key(slot, self._serial + begin)
                # Ids whose window was made longer may come to a slot that is there already.
                part += self._keys_of(stage.get(key))
                value = _U16.pack(len(part)) + b"".join(map(pack_var_bytes, part))
                stage.writes[key] = seal(value)
        self._staged = {}

    def sweep(self, now: int, limit: int, window_of: Callable[[str, str], int]) -> int:
        """Forget ids whose window is over; at least ``limit`` of them or all."""
        forgotten = 0
        for slot_key, value in self._stage.scan(
            DEDUP_SLOT_PREFIX, dedup_slot_key(now // _SLOT_MS, 0)
        ):
            for key in self._keys_of(value):
                forgotten += self._forget(key, now, window_of)
            self._stage.delete(slot_key)
            if forgotten >= limit:
                break
        return forgotten

    @staticmethod
    def _keys_of(value: bytes | None) -> list[bytes]:
        if value is None:
            return []
        reader = Reader(unseal(value, "idempotency slot"), "idempotency slot")
        return [reader.var_bytes() for _ in range(reader.u16())]

    def _forget(self, key: bytes, now: int, window_of: Callable[[str, str], int]) -> int:
        value = self._stage.get(key)
        if value is None:
            return 0
        _, _, at = _VALUE.unpack(unseal(value, "idempotency id"))
        tenant, _, topic = untangle(key, _KEY_PREFIX_BYTES)[0].decode().partition("/")
        end = at + window_of(tenant, topic)
        if end <= now:
            self._stage.delete(key)
            return 1
        if end // _SLOT_MS >= now // _SLOT_MS:
            self._schedule(key, end)  # The window was made longer since.
        return 0

    def _schedule(self, key: bytes, end: int) -> None:
        self._staged.setdefault(end // _SLOT_MS, []).append(key)
        self._stage.mark(self)
