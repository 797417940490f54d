"""The metadata log: an OpenData-Log in the same store, segmented, one log per tenant.

Laws: L1 (offsets strictly increase, an entry never changes), L2 (readers see a stable prefix:
offsets are assigned on one loop and commits are sequential, so the committed entries are always
everything below some offset).

One sequence numbers log entries and payloads: a payload is stored under the offset of the entry
that introduced it. Numbers are reserved in blocks, in the same commit as the data that uses them.
After a restart the next block begins, so offsets may have gaps but never repeat.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from penstock.errors import StoreCorrupt
from penstock.model.message import Message
from penstock.storage.keyvalue.encoding import prefix_end, seal, unpack_var_u64, unseal
from penstock.storage.keyvalue.keys import (
    SEQ_BLOCK_KEY,
    TENANT_PREFIX,
    LogKeys,
    listing_prefix,
    payload_key,
    replaced_key,
    replacement_key,
    segment_meta_key,
    segment_range,
    tenant_key,
    tenant_of_listing,
)
from penstock.storage.keyvalue.log_pairs import entry_end, offset_of, pick_pairs
from penstock.storage.keyvalue.log_records import (
    decode_block,
    decode_segment,
    decode_tenant,
    encode_block,
    encode_segment,
    encode_tenant,
)
from penstock.storage.keyvalue.metadata import decode_metadata
from penstock.storage.keyvalue.records import Logged, log_value, read_log_value
from penstock.storage.keyvalue.stage import STEP_BYTES, Stage

__all__ = ["SEGMENT_AGE_MS", "SEGMENT_ENTRIES", "Log", "Segment"]

_BLOCK: Final = 4096
#: A segment is sealed by size or by age, and a sealed segment is removed as a whole.
SEGMENT_ENTRIES: Final = 65_536
SEGMENT_AGE_MS: Final = 3600 * 1000
#: Records that are skipped one by one before the next wanted one is located by key.
_MAX_PASSED: Final = 64
#: Records, and their bytes, that are counted between two yields: about a millisecond.
_MAX_COUNTED: Final = 256
_MAX_COUNTED_BYTES: Final = 1024 * 1024

_U64 = struct.Struct("<Q")


class Segment:
    """A range of offsets that is removed as a whole."""

    __slots__ = ("count", "last", "number", "start", "started_at")

    def __init__(self, number: int, start: int, started_at: int) -> None:
        self.number = number
        self.start = start
        self.started_at = started_at
        #: Of a sealed segment, computed on first use: its number of entries, and the last message
        #: of every tenant.
        self.count: int | None = None
        self.last: list[tuple[TenantLog, Message]] | None = None


class TenantLog:
    """One tenant's part of the log."""

    __slots__ = (
        "archived",
        "committed_end",
        "end",
        "keys",
        "listed",
        "name",
        "staged",
        "tail",
        "trimmed",
    )

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys = LogKeys(name)
        #: The offsets after the last staged and after the last committed entry.
        self.end = 0
        self.committed_end = 0
        #: The highest offset with a verified archived copy.
        self.archived = -1
        #: The offset after the last entry that retention has removed.
        self.trimmed = 0
        #: Messages with metadata that the next commit writes as one entry.
        self.staged: list[Logged] = []
        #: The newest segment known to list this tenant.
        self.listed: Segment | None = None
        #: All uncommitted entries, in batches, in order of offset.
        self.tail: list[list[Logged]] = []

    def uncommitted(self, start: int) -> Iterator[Logged]:
        """Uncommitted entries from offset ``start`` on."""
        start = max(start, self.committed_end)
        for batch in self.tail:
            if batch[-1][0].offset >= start:
                yield from islice(batch, bisect_left(batch, start, key=_logged_offset), None)


class Log:
    """Appends to and reads from every tenant's log."""

    def __init__(self, stage: Stage, segment_entries: int = SEGMENT_ENTRIES) -> None:
        self._stage = stage
        self._segment_entries = segment_entries
        self.tenants: dict[str, TenantLog] = {}
        self.segments: list[Segment] = []
        self.next_offset = 0
        self._block_end = 0
        #: The latest publish time so far. A publish that was routed ahead may have an older one.
        self._latest = 0
        self._marked = 0
        self._appended: dict[TenantLog, None] = {}
        #: Tenants in the commit in progress, with the new end of their logs.
        self._committing: list[tuple[TenantLog, int]] = []
        #: The record that was read last, with its key, and its tenant.
        self._last_read: tuple[bytes, list[tuple[int, bytes]]] = (b"", [])
        self._last_reader: TenantLog | None = None
        #: Incremented whenever a queue may need an entry that it did not need before.
        self.wanted = 0

    def load(self) -> None:
        """Load the block, the segments and the ends of all tenants' logs after opening."""
        value = self._stage.get(SEQ_BLOCK_KEY)
        if value is not None:
            base, size = decode_block(value)
            self.next_offset = self._block_end = base + size
        first = segment_meta_key(0)
        for key, meta in self._stage.scan(first, prefix_end(first[:-4])):
            start, started_at = decode_segment(meta)
            self.segments.append(Segment(int.from_bytes(key[-4:], "big"), start, started_at))
        for key, state in self._stage.prefix(TENANT_PREFIX):
            tenant = self.tenant(key[len(TENANT_PREFIX) :].decode())
            tenant.end, tenant.archived, tenant.trimmed = decode_tenant(state)
            tenant.committed_end = tenant.end

    def tenant(self, name: str) -> TenantLog:
        tenant = self.tenants.get(name)
        if tenant is None:
            tenant = self.tenants[name] = TenantLog(name)
        return tenant

    # -- appending ---------------------------------------------------------------------

    def reserve(self, count: int, now: int) -> int:
        """Reserve ``count`` offsets for one ``append``, which must come before the next.

        Returns the first. They are all in one segment.
        """
        self._latest = max(self._latest, now)
        first = self.next_offset
        self.next_offset = first + count
        self._extend_block()
        last = self.segments[-1] if self.segments else None
        if (
            last is None
            or first - last.start >= self._segment_entries
            or now - last.started_at >= SEGMENT_AGE_MS
        ):
            self.open_segment(first, now)
        return first

    def return_unused(self, first: int) -> None:
        """Return the end of the last reservation, from ``first`` on, which duplicates left."""
        self.next_offset = first

    def draw_position(self) -> int:
        """A number above all offsets so far and below all later ones; no entry has it."""
        position = self.next_offset
        self.next_offset += 1
        self._extend_block()
        return position

    def _extend_block(self) -> None:
        """Reserve another block in this commit, if the last one is used up."""
        if self.next_offset > self._block_end:
            size = max(_BLOCK, self.next_offset - self._block_end)
            self._stage.put(SEQ_BLOCK_KEY, encode_block(self._block_end, size))
            self._block_end += size

    def open_segment(self, start: int, now: int) -> None:
        """Seal the current segment, and begin the next at ``start``.

        No entry of an earlier segment may be later than its beginning: queues that start at a time
        search from the last segment that began before.
        """
        self._flush()
        now = max(now, self._latest)
        number = self.segments[-1].number + 1 if self.segments else 1
        self.segments.append(Segment(number, start, now))
        self._stage.put(segment_meta_key(number), encode_segment(start, now))

    def append(self, tenant: TenantLog, batch: list[Logged]) -> None:
        """Stage messages with their metadata. Their offsets must be reserved."""
        tenant.staged += batch
        tenant.tail.append(batch)
        tenant.end = batch[-1][0].offset + 1
        if tenant not in self._appended:
            self._appended[tenant] = None
            if self._marked != self._stage.number:
                self._marked = self._stage.number
                self._stage.mark(self)

    def write_to(self, stage: Stage) -> int:
        written = self._flush(STEP_BYTES)
        if written >= STEP_BYTES:
            stage.mark(self)  # The rest is another step.
            return written
        self._committing = [(tenant, tenant.end) for tenant in self._appended]
        self._appended = {}
        for tenant, _ in self._committing:
            self._write_tenant(tenant)
        return written

    def committed(self) -> None:
        """Record that the last written entries are committed."""
        for tenant, end in self._committing:
            tenant.committed_end = end
            keep = next(
                (i for i, batch in enumerate(tenant.tail) if batch[-1][0].offset >= end), None
            )
            tenant.tail = [] if keep is None else tenant.tail[keep:]
        self._committing = []

    def archive(self, name: str, through: int) -> None:
        tenant = self.tenant(name)
        if through > tenant.archived:
            tenant.archived = through
            self._write_tenant(tenant)

    def _write_tenant(self, tenant: TenantLog) -> None:
        value = encode_tenant(tenant.end, tenant.archived, tenant.trimmed)
        self._stage.put(tenant_key(tenant.name), value)

    def _flush(self, most: float = math.inf) -> int:
        """Turn the staged messages into log entries of the current segment.

        Stops after ``most`` bytes of metadata; returns how many were written.
        """
        size = 0
        for tenant in self._appended:
            staged = tenant.staged
            if not staged:
                continue
            segment = self.segments[-1]
            if tenant.listed is not segment:
                tenant.listed = segment
                self._stage.writes[tenant.keys.listing(segment.number)] = b""
            begin = 0
            while begin < len(staged) and size < most:
                end = entry_end(staged, begin)
                part = staged[begin:end]
                key = tenant.keys.entry(segment.number, part[0][0].offset - segment.start)
                value = self._stage.writes[key] = log_value(part)
                size += len(value)
                begin = end
            tenant.staged = staged[begin:]
        return size

    # -- reading -----------------------------------------------------------------------

    def read(self, name: str, start: int, *, staged: bool) -> Iterator[Logged]:
        """(message, metadata) from offset ``start`` on, with ``staged`` uncommitted ones too."""
        tenant = self.tenants.get(name)
        if tenant is None:
            return
        for segment_index in range(max(0, self._segment_index(start)), len(self.segments)):
            for message, metadata in self._read_segment(tenant, segment_index, start):
                if message.offset >= tenant.committed_end:
                    break
                yield message, metadata
        if staged:
            yield from tenant.uncommitted(start)

    def records(self, tenant: TenantLog, start: int) -> Iterator[tuple[int, bytes]]:
        """(first offset, value) of the tenant's records that may hold entries from ``start`` on."""
        for index in range(max(0, self._segment_index(start)), len(self.segments)):
            for _, value, first in self._records(tenant, index, start):
                yield first, value

    def find(self, name: str, message_id: int) -> Logged | None:
        """The newest entry of a message of this tenant, committed or not."""
        found = self.at(name, self.newest(message_id))
        # The offset of a replacement entry is no message's id.
        return found if found is not None and found[0].id == message_id else None

    def newest(self, message_id: int) -> int:
        """The offset of a message's newest entry."""
        value = self._stage.get(replaced_key(message_id))
        if value is None:
            return message_id
        (offset,) = _U64.unpack(unseal(value, "replaced"))
        return int(offset)

    def pick(self, name: str, offsets: Sequence[int]) -> Iterator[Logged]:
        """The committed entries at ascending offsets; missing ones are skipped."""
        tenant = self.tenants.get(name)
        position = 0
        while tenant is not None and position < len(offsets):
            index = self._segment_index(offsets[position])
            end = bisect_left(offsets, self.segment_end(index), position + 1)
            if index >= 0:
                yield from self._pick_in(tenant, index, offsets[position:end])
            position = end

    def at(self, name: str, offset: int) -> Logged | None:
        """The tenant's entry at an offset, or None."""
        tenant = self.tenants.get(name)
        if tenant is None:
            return None
        if offset >= tenant.committed_end:
            for message, metadata in tenant.uncommitted(offset):
                return (message, metadata) if message.offset == offset else None
            return None
        if self._last_reader is tenant:
            # Messages that were published together are often read together.
            pairs = self._last_read[1]
            first, last = offset_of(pairs[0]), offset_of(pairs[-1])
            if first <= offset <= last:
                return next(pick_pairs(pairs, first, (offset,)), None)
        index = self._segment_index(offset)
        if index < 0:
            return None
        for message, metadata in self._read_segment(tenant, index, offset):
            return (message, metadata) if message.offset == offset else None
        return None

    def replaced(self, message_id: int, offset: int) -> None:
        """Record that the message's newest entry is at ``offset``."""
        if message_id < self.segments[-1].start:
            self.wanted += 1  # It may join queues that did not have it.
        self._stage.put(replaced_key(message_id), seal(_U64.pack(offset)))
        self._stage.put(replacement_key(offset), seal(_U64.pack(message_id)))

    def _pick_in(self, tenant: TenantLog, index: int, offsets: Sequence[int]) -> Iterator[Logged]:
        """The entries of one segment. Decodes only records that may hold one of them."""
        position = 0
        while position < len(offsets):
            record: tuple[bytes, bytes, int] | None = None
            passed = 0
            for key, value, first in self._records(tenant, index, offsets[position]):
                end = bisect_left(offsets, first, position)
                if record is not None and end > position:
                    pairs = self._pairs_of(tenant, *record[:2])
                    yield from pick_pairs(pairs, record[2], offsets[position:end])
                    position, passed = end, 0
                record = key, value, first
                passed += 1
                if passed > _MAX_PASSED or position == len(offsets):
                    break  # The next one is far away: seek to its key.
            else:
                if record is not None:
                    pairs = self._pairs_of(tenant, *record[:2])
                    yield from pick_pairs(pairs, record[2], offsets[position:])
                return

    def _read_segment(self, tenant: TenantLog, index: int, start: int) -> Iterator[Logged]:
        for key, value, first in self._records(tenant, index, start):
            pairs = self._pairs_of(tenant, key, value)
            # One commit's entry may hold thousands of messages; skip the earlier ones undecoded.
            skipped = bisect_left(pairs, start, key=offset_of) if first < start else 0
            for message_id, metadata in islice(pairs, skipped, None):
                message = decode_metadata(message_id, metadata)
                if message.offset < first:
                    raise StoreCorrupt("A log entry holds an offset below its own.")
                if message.offset >= start:
                    yield message, metadata

    def _records(
        self, tenant: TenantLog, index: int, start: int
    ) -> Iterator[tuple[bytes, bytes, int]]:
        """A segment's records from the one that holds ``start``, with their first offsets."""
        segment = self.segments[index]
        prefix = tenant.keys.prefix(segment.number)
        begin = prefix
        if start > segment.start:
            # The entry that holds ``start`` begins at or below it.
            below = tenant.keys.entry(segment.number, start - segment.start) + b"\x00"
            for key, _ in self._stage.scan(prefix, below, reverse=True):
                begin = key
                break
        for key, value in self._stage.scan(begin, prefix_end(prefix)):
            yield key, value, segment.start + unpack_var_u64(key, len(prefix))[0]

    def _pairs_of(self, tenant: TenantLog, key: bytes, value: bytes) -> list[tuple[int, bytes]]:
        """The decoded record, cached: records never change and reads are often sequential."""
        if self._last_read[0] != key:
            self._last_read = key, list(read_log_value(value))
            self._last_reader = tenant
        return self._last_read[1]

    def _segment_index(self, offset: int) -> int:
        return bisect_right(self.segments, offset, key=lambda segment: segment.start) - 1

    # -- removing ----------------------------------------------------------------------

    @property
    def is_committed(self) -> bool:
        """Whether all appended entries are committed."""
        return not self._appended and not self._committing

    def segment_end(self, index: int) -> int:
        """The offset after the segment's last one."""
        if index + 1 < len(self.segments):
            return self.segments[index + 1].start
        return self.next_offset

    def last_entries(self, index: int) -> list[tuple[TenantLog, Message]]:
        """The last message of every tenant that has entries in the segment."""
        segment = self.segments[index]
        if segment.last is not None:
            return segment.last
        out = []
        for tenant in self._tenants_in(segment):
            prefix = tenant.keys.prefix(segment.number)
            for _, value in self._stage.scan(prefix, prefix_end(prefix), reverse=True):
                message_id, metadata = list(read_log_value(value))[-1]
                out.append((tenant, decode_metadata(message_id, metadata)))
                break
        if segment is not self.segments[-1]:
            segment.last = out
        return out

    def _tenants_in(self, segment: Segment) -> list[TenantLog]:
        prefix = listing_prefix(segment.number)
        return [
            self.tenant(tenant_of_listing(key, len(prefix)))
            for key, _ in self._stage.prefix(prefix)
        ]

    def replacements(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """(offset, message id) of replacements with low <= offset < high."""
        for key, value in self._stage.scan(replacement_key(low), replacement_key(high)):
            message_id = int(_U64.unpack(unseal(value, "replacement"))[0])
            yield int.from_bytes(key[-8:], "big"), message_id

    def count_entries(self, segment: Segment) -> Iterator[None]:
        """Count the entries of a sealed segment, yielding after every few records."""
        total = 0
        for tenant in self._tenants_in(segment):
            prefix = tenant.keys.prefix(segment.number)
            start, end = prefix, prefix_end(prefix)
            while start < end:
                size = 0
                pairs = islice(self._stage.scan(start, end), _MAX_COUNTED)
                start = end
                for key, value in pairs:
                    total += int.from_bytes(value[:2], "little")
                    size += len(value)
                    start = key + b"\x00"
                    if size > _MAX_COUNTED_BYTES:
                        break
                yield
        segment.count = total

    def remove_segment(self, index: int) -> int:
        """Remove a sealed segment with its payloads. Returns how many entries it had."""
        segment, end = self.segments[index], self.segment_end(index)
        for tenant, message in self.last_entries(index):
            tenant.trimmed = max(tenant.trimmed, message.offset + 1)
            self._write_tenant(tenant)
        if segment.count is None:
            deque(self.count_entries(segment), 0)
        self._last_read, self._last_reader = (b"", []), None
        self._stage.remove_range(*segment_range(segment.number))
        self._stage.delete(segment_meta_key(segment.number))
        for key_of in (payload_key, replaced_key, replacement_key):
            self._stage.remove_range(key_of(segment.start), key_of(end))
        del self.segments[index]
        return segment.count or 0


def _logged_offset(pair: Logged) -> int:
    return pair[0].offset
