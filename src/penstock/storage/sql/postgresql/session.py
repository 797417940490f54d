"""A PostgreSQL session: statements on one connection, with or without a transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

from penstock.storage.sql.database import (
    Count,
    FirstGroups,
    FreshGroup,
    NeedsTransaction,
    NewSegment,
    PartitionCount,
    Row,
    RowChanged,
    Session,
    Stale,
)
from penstock.storage.sql.deliveries import PrimaryKey
from penstock.storage.sql.deliveries import Row as GroupRow
from penstock.storage.sql.postgresql.notifications import NOTIFY, announcements
from penstock.storage.timeouts import Timeouts

__all__ = ["PostgreSQLSession"]

T = TypeVar("T")

#: Statements that need no transaction: ``change`` checks later that their rows are unchanged.
_READS: Final = frozenset({"look_at_first_groups", "read_segments"})


class PostgreSQLSession(Session):
    """A connection with a transaction from its first statement on; with ``loose``, without one."""

    def __init__(
        self,
        connection: Any,
        statements: dict[str, tuple[str, tuple[str, ...]]],
        *,
        begun: bool,
        loose: bool = False,
        timeouts: Timeouts | None = None,
    ) -> None:
        """With ``timeouts``, statements that take too long raise ``TimeoutError``."""
        self._connection = connection
        self.timeouts = timeouts
        self._statements = statements
        self._loose = loose
        self._publishes = False
        self.begun = begun
        #: Whether a commit, or a change that is one, has been sent.
        self.committing = False

    def _in_time(self, statement: Awaitable[T]) -> Awaitable[T]:
        return statement if self.timeouts is None else self.timeouts.run(statement)

    async def _begin(self) -> None:
        if self.begun:
            return
        if self._loose:
            raise NeedsTransaction
        assert not self.committing, "what is written at once is written last"
        begin = "BEGIN"
        if self._publishes:
            # All in one round trip.
            begin = f"BEGIN; {self._announcement()}"
        await self._in_time(self._connection.execute(begin))
        self.begun = True

    def _announcement(self) -> str:
        """Two statements without parameters, to be sent together."""
        steps = ("announce_publishing", "begin_publishing")
        return "; ".join(self._statements[step][0] for step in steps)

    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        if not (self._loose and statement in _READS):
            await self._begin()
        text, names = self._statements[statement]
        rows: list[Row] = await self._in_time(
            self._connection.fetch(text, *[parameters[n] for n in names])
        )
        return rows

    async def run(self, statement: str, **parameters: object) -> int:
        await self._begin()
        text, names = self._statements[statement]
        status: str = await self._in_time(
            self._connection.execute(text, *[parameters[n] for n in names])
        )
        return int(status.rpartition(" ")[2])

    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            await self._begin()
            text, _ = self._statements[statement]
            columns = map(list, zip(*rows, strict=True))
            await self._in_time(self._connection.execute(text, *columns))

    async def notify(self, queues: Sequence[int]) -> None:
        await self._begin()
        await self._in_time(self._connection.execute(NOTIFY, announcements(queues)))

    async def publishing(self) -> None:
        self._publishes = True
        if self.begun:
            await self._in_time(self._connection.execute(self._announcement()))

    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        await self._begin()
        text, _ = self._statements["append"]
        columns = map(list, zip(*segments, strict=True))
        rows: list[Row] = await self._in_time(self._connection.fetch(text, *columns))
        return sorted(row[0] for row in rows)

    async def first_groups(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        statement = "look_at_first_groups" if self._loose else "first_groups"
        return await self.fetch(statement, queue=queue, phases=phases, floors=floors, most=most)

    async def due_groups(self, queue: int, phases: Sequence[int], now: int, most: int) -> list[Row]:
        return await self.fetch("due_groups", queue=queue, phases=phases, now=now, most=most)

    async def forget_owners(self, queue: int, partitions: Sequence[bytes]) -> int:
        return await self.run("forget_owners", queue=queue, partitions=partitions)

    async def change(
        self,
        tenant: int,
        segments: Sequence[NewSegment],
        gone: Sequence[PrimaryKey],
        groups: Sequence[GroupRow],
        counts: Sequence[Count],
        partition_counts: Sequence[PartitionCount] = (),
        held: Sequence[Row] = (),
        version: int | None = None,
        replaced: Sequence[GroupRow] = (),
        first: FirstGroups | None = None,
    ) -> tuple[int, list[int]]:
        single_statement = version is not None and not self.begun
        if single_statement:
            assert not self.committing, "what is written at once is written last"
            self.committing = True
        else:
            await self._begin()
        _, appended_at, entries, metadata, payloads = _columns(segments, 5)
        publishes = single_statement and self._publishes
        assumed = first if single_statement else None
        statement = "write_publishing" if publishes else "write"
        changing = self._connection.fetchrow(
            self._statements[statement if assumed is None else "write_first"][0],
            tenant,
            publishes,
            version if single_statement else None,
            appended_at[0] if appended_at else 0,
            *(entries, metadata, payloads),
            *_columns(
                [(*row[:4], row[5], *row[9:]) for row in held] if single_statement else (), 7
            ),
            *_columns(gone, 4),
            *_columns([*replaced, *groups], 11),
            len(replaced),
            *_columns(counts, 3),
            *_columns(partition_counts, 3),
            *(() if assumed is None else assumed),
        )
        found, written, numbers = await self._in_time(changing)
        if not written:
            raise RowChanged if found == version else Stale
        # A caller's transaction may be older than the tenant, and not see its version.
        return found or 0, numbers

    async def publish(
        self,
        tenant: int,
        version: int,
        segments: Sequence[NewSegment],
        groups: Sequence[FreshGroup],
    ) -> list[int]:
        assert not self.begun, "a publish that is one statement is all of its transaction"
        self.committing = True
        *row_keys, partitions, members, records = _columns(groups, 8)
        publishing = self._connection.fetchval(
            self._statements["publish"][0],
            tenant,
            version,
            segments[0][1],
            *_columns([segment[2:] for segment in segments], 3),
            *row_keys,
            partitions if any(group.partition_key is not None for group in groups) else None,
            *(members, records),
        )
        numbers: list[int] | None = await self._in_time(publishing)
        if numbers is None:
            raise Stale
        return numbers


def _columns(rows: Sequence[Sequence[object]], width: int) -> Sequence[list[Any] | None]:
    """The rows as one list per column; None per column is cheaper than empty lists."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else (None,) * width
