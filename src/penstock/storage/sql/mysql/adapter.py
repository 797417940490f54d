"""MySQL and MariaDB, through asyncmy.

It differs from PostgreSQL in four ways. A statement cannot write to several tables, so a
``change`` is a few statements, sent together. A DELETE locks the rows that its subqueries read,
and a range lock extends beyond the range, so rows are looked up before they are deleted. There
are no notifications, so the engine polls. The settled end of the log comes from ``tickets``.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncmy

from penstock.errors import BadInput, StoreBusy
from penstock.storage.sql.caller_connections import driver_connection, driver_name
from penstock.storage.sql.database import (
    ConnectionLost,
    Count,
    Database,
    FirstGroups,
    NewSegment,
    PartitionCount,
    Row,
    Session,
    Stable,
)
from penstock.storage.sql.deliveries import PrimaryKey, numbered
from penstock.storage.sql.deliveries import Row as GroupRow
from penstock.storage.sql.error_mapping import raise_as
from penstock.storage.sql.mysql.binding import Statement
from penstock.storage.sql.mysql.caller_link import DRIVERS, CallerLink, has_transaction
from penstock.storage.sql.mysql.connection import Connector, Link, Pool, Reply
from penstock.storage.sql.mysql.error_mapping import FAILURES, number_of, opening, translate
from penstock.storage.sql.mysql.tickets import Tickets
from penstock.storage.sql.statements import load
from penstock.storage.sql.urls import Address

__all__ = ["MySQL"]

#: Seconds that a rollback may take before the connection is dropped instead.
_ROLLBACK_S: Final = 10
#: Statements that are sent as text. They skip through an index; MariaDB may scan all of it instead
#: after it re-prepared a statement, as it does after ANALYZE TABLE.
_PLAIN: Final = frozenset({"list_partitions"})
#: The ``until`` of a group that is never due and never expires.
_NEVER: Final = (1 << 63) - 1
#: The savepoint in a caller's transaction.
_SAVEPOINT: Final = "penstock"
_NO_SAVEPOINT: Final = 1305


class _Session(Session):
    """A connection, taken from the pool at the first statement."""

    def __init__(
        self,
        statements: dict[str, Statement],
        pool: Pool | None,
        *,
        autocommit: bool = False,
        link: Link | None = None,
    ) -> None:
        self._statements = statements
        self._pool = pool
        self._autocommit = autocommit
        self.link = link
        #: Whether it has written a ticket.
        self.publishes = False

    async def _linked(self) -> Link:
        if self.link is None:
            assert self._pool is not None
            self.link = await self._pool.take(autocommit=self._autocommit)
        return self.link

    async def _execute(self, statement: str, parameters: dict[str, object]) -> Reply:
        link = self.link or await self._linked()
        sql, values = self._statements[statement].bind(parameters)
        return await link.execute(sql, values, prepared=statement not in _PLAIN)

    async def fetch(self, statement: str, **parameters: object) -> list[Row]:
        reply = await self._execute(statement, parameters)
        # A statement that sets LAST_INSERT_ID returns that number.
        return [(reply.number,)] if reply.rows is None else list(reply.rows)

    async def run(self, statement: str, **parameters: object) -> int:
        link = self.link or await self._linked()
        changed = 0
        for sql, values in self._statements[statement].all(parameters):
            changed += (await link.execute(sql, values)).changed
        return changed

    async def write(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            link = self.link or await self._linked()
            for sql, values in self._statements[statement].lots(rows, link.packet // 2):
                await link.execute(sql, values)

    async def publishing(self) -> None:
        link = self.link or await self._linked()
        steps = ("take_ticket", "begin_publishing")
        await link.together([self._statements[step].bind({}) for step in steps])
        self.publishes = True

    async def append(self, segments: Sequence[NewSegment]) -> list[int]:
        link = self.link or await self._linked()
        numbers: list[int] = []
        for segment in segments:
            # One at a time: it is as fast, and each reply has its number.
            for sql, values in self._statements["append"].lots([segment], 0):
                numbers.append((await link.execute(sql, values)).number)
        return numbers

    async def first_groups(
        self, queue: int, phases: Sequence[int], floors: Sequence[int], most: int
    ) -> list[Row]:
        link = self.link or await self._linked()
        del floors  # Not used by this database: see has_floors.
        bind = self._statements["first_groups"].bind
        replies = await link.together(
            [bind({"queue": queue, "phase": phase, "most": most}) for phase in phases]
        )
        return [row for reply in replies for row in reply.rows or ()]

    async def due_groups(self, queue: int, phases: Sequence[int], now: int, most: int) -> list[Row]:
        # Search without locks, then lock the rows found. A locking read of an index range makes
        # MariaDB lock the rows after it too: here the head of the queue, which other claims would
        # then skip (C4).
        found = await self.fetch("due_row_keys", queue=queue, phases=phases, now=now, most=most)
        if not found:
            return []
        link = self.link or await self._linked()
        row_keys = [(row[0], row[1], row[2], row[3]) for row in found]
        replies = await link.together(self._at("due_groups", row_keys, now=now))
        return [row for reply in replies for row in reply.rows or ()]

    async def forget_owners(self, queue: int, partitions: Sequence[bytes]) -> int:
        # Search without locks: the DELETE would wait for the rows that its subquery reads.
        rows = await self.fetch("empty_partitions", queue=queue, partitions=partitions)
        empty = [partition for (partition,) in rows]
        return await self.run("forget_owners", queue=queue, partitions=empty) if empty else 0

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
        del held, version, first  # Every change has a transaction here, which has locked them.
        numbers = await self.append(segments) if segments else []
        groups = [numbered(group, numbers) for group in groups]
        link = self.link or await self._linked()
        most = link.packet // 2
        rows = [_timed(group) for group in sorted(groups, key=_primary_key)]
        over = [_timed(group) for group in sorted(replaced, key=_primary_key)]
        replies = await link.together(
            [
                *self._at("remove_groups", gone),
                *self._statements["replace_groups"].lots(over, most),
                *self._statements["insert_groups"].lots(rows, most),
                *self._statements["count"].lots(counts, most),
                *self._statements["count_partitions"].lots(partition_counts, most),
                self._statements["version"].bind({"tenant": tenant}),
            ]
        )
        ((version,),) = replies[-1].rows or ()
        return int(version), numbers

    def _at(
        self, statement: str, row_keys: Sequence[PrimaryKey], **parameters: object
    ) -> list[tuple[str, list[object]]]:
        """Bind the statement once per queue, phase and rank of the places."""
        by_rank: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        for queue, phase, rank, row_key in sorted(row_keys):
            by_rank[queue, phase, rank].append(row_key)
        return [
            part
            for (queue, phase, rank), there in by_rank.items()
            for part in self._statements[statement].all(
                {"queue": queue, "phase": phase, "rank": rank, "row_keys": there, **parameters}
            )
        ]

    async def notify(self, queues: Sequence[int]) -> None:
        """Does nothing: the engine polls."""


def _primary_key(group: GroupRow) -> PrimaryKey:
    return group.queue, group.phase, group.rank, group.row_key


def _timed(group: GroupRow) -> GroupRow:
    return group._replace(until=_NEVER) if group.until is None else group


class MySQL(Database):
    """A pool of connections to one database."""

    name = "mysql"
    # To find a rank empty, InnoDB scans all deleted rows of the next one. With a floor per rank it
    # would do that several times instead of once.
    has_floors = False

    def __init__(self, address: Address) -> None:
        self._address = address
        connector = Connector(address)
        self.timeouts = connector.timeouts
        self._statements = {name: Statement(text) for name, text in load("mysql").items()}
        patience_s = address.statement_timeout + address.connect_timeout
        self._pool = Pool(connector, address.pool, self._opened, patience_s)
        self._tickets = Tickets(connector, self._statements)

    @classmethod
    async def open(cls, address: Address) -> MySQL:
        """Connect; raises if the address or the server cannot be used."""
        database = cls(address)
        try:
            link = await database._pool.take(autocommit=True)
        except Exception as error:  # noqa: BLE001  (raised again)
            raise_as(opening(error, address.shown), error)
        database._pool.give_back(link)
        return database

    def _opened(self) -> None:
        """Called after the pool has opened a connection."""
        self.renewed()

    def add_statements(self, statements: Mapping[str, str]) -> None:
        self._statements |= {name: Statement(text) for name, text in statements.items()}

    async def set_given(self, session: Session, given: int) -> None:
        # The last segment may be there already.
        if not await session.fetch("segment_exists", given=given):
            await session.run("set_given", given=given)
            await session.run("unset_given", given=given)

    async def number_rows(self, session: Session, table: str) -> None:
        """Does nothing: the server numbers rows above those that were inserted."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        session = _Session(self._statements, self._pool)
        committing = False
        try:
            yield session
            if session.link is not None:
                committing = True
                await session.link.commit()
        except BaseException as error:  # noqa: BLE001  (raised again)
            await self._abandon(session.link, error)
            raise_as(translate(error, committing=committing), error)
        if session.link is not None:
            self._pool.give_back(session.link)
        if session.publishes:
            self._tickets.written()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Session]:
        session = _Session(self._statements, self._pool, autocommit=True)
        try:
            yield session
        except BaseException as error:  # noqa: BLE001  (raised again)
            await self._abandon(session.link, error)
            raise_as(translate(error), error)
        if session.link is not None:
            self._pool.give_back(session.link)

    async def _abandon(self, link: Link | None, error: BaseException) -> None:
        """Roll back, or drop the connection."""
        lost = isinstance(error, Exception) and isinstance(translate(error), ConnectionLost)
        if lost:
            self._pool.close_idle()
        if link is None:
            return
        if lost or not isinstance(error, Exception):
            # A cancelled call may have left half of a reply unread.
            self._pool.discard(link)
            return
        try:
            async with asyncio.timeout(_ROLLBACK_S):
                await link.roll_back()
        except FAILURES:
            self._pool.discard(link)
        except BaseException:
            self._pool.discard(link)
            raise
        else:
            self._pool.give_back(link)

    @asynccontextmanager
    async def borrowed(self, connection: object) -> AsyncIterator[Session]:
        driver: Any = await driver_connection(connection)
        link: Link
        if driver_name(driver) in DRIVERS:
            is_open, link = has_transaction(driver), CallerLink(driver, self.timeouts)
        elif isinstance(driver, asyncmy.Connection):
            in_transaction = not driver.get_autocommit() or driver.get_transaction_status()
            is_open, link = driver.connected and in_transaction, Link(driver, self.timeouts)
        else:
            raise BadInput(
                f"connection is a {type(driver).__name__}; it must be a connection of asyncmy, "
                "aiomysql, PyMySQL or mysqlclient, or of SQLAlchemy or Django over one of them.",
                field="connection",
            )
        if not is_open:
            raise BadInput("connection has no transaction open.", field="connection")
        try:
            await _look_at(link)
            await link.execute_text(f"SAVEPOINT {_SAVEPOINT}")
        except Exception as error:  # noqa: BLE001  (raised again)
            raise_as(translate(error), error)
        try:
            yield _Session(self._statements, None, link=link)
            await link.execute_text(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except BaseException as error:  # noqa: BLE001  (raised again)
            await _undo(link, error)
            raise_as(translate(error), error)
        finally:
            await link.forget_statements()

    async def stable(self) -> Stable:
        return await self._tickets.stable()

    async def now(self) -> int:
        async with self.reading() as session:
            ((now,),) = await session.fetch("now")
        return int(now)

    async def watch(self, heard: Callable[[Sequence[int]], None]) -> None:
        """Does nothing: the engine polls."""

    async def broadcast(self, queues: Sequence[int]) -> None:
        """Does nothing: the other servers poll."""

    async def close(self) -> None:
        await self._tickets.close()
        await self._pool.close()


async def _look_at(link: Link) -> None:
    """Read the packet limit of a caller's connection; refuse other isolation levels."""
    reply = await link.execute(
        "SHOW SESSION VARIABLES WHERE variable_name IN"
        " ('max_allowed_packet', 'tx_isolation', 'transaction_isolation')"
    )
    found = {str(name).lower(): str(value) for name, value in reply.rows or ()}
    link.packet = int(found.pop("max_allowed_packet"))
    if set(found.values()) != {"READ-COMMITTED"}:
        raise BadInput(
            f"connection is {found.popitem()[1]}; run SET SESSION TRANSACTION ISOLATION LEVEL "
            "READ COMMITTED before its transaction begins.",
            field="connection",
        )


async def _undo(link: Link, error: BaseException) -> None:
    """Undo the publish in a caller's transaction, but nothing that the caller did."""
    try:
        async with asyncio.timeout(_ROLLBACK_S):
            await link.execute_text(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
    except FAILURES as failure:
        if number_of(failure) == _NO_SAVEPOINT and isinstance(error, Exception):
            raise StoreBusy(
                "The database rolled back the whole transaction of the connection, including the "
                f"caller's changes: {translate(error)}."
            ) from error
