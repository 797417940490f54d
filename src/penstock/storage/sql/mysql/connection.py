"""One connection to MySQL or MariaDB, through asyncmy.

Every session is READ COMMITTED, strict, and in UTC. Statements are prepared once per connection:
the server need not parse them again, and values are sent in binary, which for a hundred kilobytes
takes a twentieth of the time of quoting them. Several small statements are sent together as
text, which saves round trips.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import asyncmy
from asyncmy.constants import CLIENT

from penstock.errors import StoreUnavailable, TooLarge
from penstock.storage.sql.mysql.error_mapping import FAILURES, number_of
from penstock.storage.sql.urls import Address
from penstock.storage.timeouts import Timeouts

__all__ = ["IDLE_S", "Connector", "Link", "Pool", "Reply", "to_text"]

#: Prepared statements per connection. A server has 16,382 for all connections together.
_STATEMENTS: Final = 120
#: Statements with more values are sent as text: the server would describe each of them.
_MAX_VALUES: Final = 1_000
#: Statements are batched as text; with more bytes than this they are sent one by one, prepared.
_MAX_TEXT: Final = 32 * 1024
#: The approximate length of a number as text.
_NUMBER: Final = 10
#: Bytes of a packet that are reserved for everything but large values.
_MARGIN: Final = 64 * 1024
#: The error number for too many prepared statements.
_NO_ROOM: Final = 1461
#: Seconds for closing a connection properly.
_PARTING_S: Final = 5

_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # No session waits for a lock forever. Locks of a machine that vanished are released after two
    # minutes; the pool closes connections before they are idle for so long.
    "SET SESSION innodb_lock_wait_timeout = {lock_s}, lock_wait_timeout = {lock_s}",
    "SET SESSION wait_timeout = 120",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'",
)
# A recursive query takes one step per partition, and both servers stop at a thousand by default.
# MySQL caches AUTO_INCREMENT for a day unless configured otherwise.
# MariaDB ends every statement that takes too long, MySQL only those that read.
_MARIADB: Final = (
    "SET SESSION max_recursive_iterations = 10000000, idle_transaction_timeout = {statement_s}, "
    "max_statement_time = {statement_s}"
)
_MYSQL: Final = (
    "SET SESSION cte_max_recursion_depth = 10000000, information_schema_stats_expiry = 0, "
    "max_execution_time = {statement_s}000"
)
#: Seconds that a statement waits for a lock, unless the statement timeout is shorter.
_LOCK_S: Final = 10
#: Seconds that the server has to report that it ended a statement; the connection is dropped only
#: if it does not.
_GRACE_S: Final = 2


class Reply(NamedTuple):
    """The result of a statement."""

    rows: Sequence[Sequence[Any]] | None
    """None if the statement returns no rows."""
    changed: int
    number: int
    """The first number that AUTO_INCREMENT assigned."""


class Link:
    """A connection, and the statements that are prepared on it.

    Every method that waits for the server raises ``TimeoutError`` at its deadline. The state of
    the connection is then unknown, and it must be closed.
    """

    def __init__(self, connection: Any, timeouts: Timeouts) -> None:
        self.connection = connection
        self.timeouts = timeouts
        #: The maximum packet size of the server, once it was read.
        self.packet = _MARGIN
        self._statements: OrderedDict[str, Any] = OrderedDict()

    async def execute(
        self, sql: str, values: Sequence[object] = (), *, prepared: bool = True
    ) -> Reply:
        """Run a statement with a value for each of its question marks."""
        self._refuse_large(values)
        return await self.timeouts.run(self._execute(sql, values, prepared=prepared))

    async def _execute(self, sql: str, values: Sequence[object], *, prepared: bool) -> Reply:
        few = prepared and len(values) <= _MAX_VALUES
        statement = await self._prepare(sql) if few else None
        if statement is None:
            cursor = self.connection.cursor()
            await cursor.execute(to_text(sql, values))
            return await _reply(cursor)
        result = await statement.execute(values)
        return Reply(result.rows, result.affected_rows, result.insert_id)

    async def together(self, parts: Sequence[tuple[str, Sequence[object]]]) -> list[Reply]:
        """Run statements in order, in one round trip if they are small."""
        if len(parts) == 1 or sum(_weight(values) for _, values in parts) > _MAX_TEXT:
            return [await self.execute(sql, values) for sql, values in parts]
        text = ";".join([to_text(sql, values) for sql, values in parts])
        return await self.timeouts.run(self._execute_many(text))

    async def _execute_many(self, text: str) -> list[Reply]:
        cursor = self.connection.cursor()
        await cursor.execute(text)
        replies = [await _reply(cursor)]
        while await cursor.nextset():
            replies.append(await _reply(cursor))
        return replies

    async def execute_text(self, sql: str) -> None:
        """Run a statement that has no values and returns no rows."""
        await self.timeouts.run(self.connection.query(sql))

    async def autocommit(self, value: bool) -> None:
        """Switch autocommit on or off."""
        await self.timeouts.run(self.connection.autocommit(value))

    async def commit(self) -> None:
        """Commit the transaction."""
        await self.timeouts.run(self.connection.commit())

    async def roll_back(self) -> None:
        """Roll back the transaction, if there is one, which is unknown after an error."""
        await self.timeouts.run(self.connection.rollback())

    async def forget_statements(self) -> None:
        """Close the prepared statements."""
        with suppress(*FAILURES):
            while self._statements:
                await self._statements.popitem()[1].close()

    def close(self) -> None:
        """Drop the connection; the server rolls back an open transaction."""
        self.connection.close()

    async def part(self) -> None:
        """Close the connection properly."""
        with suppress(*FAILURES):
            async with asyncio.timeout(_PARTING_S):
                await self.connection.ensure_closed()
        self.close()

    async def _prepare(self, sql: str) -> Any | None:
        """The prepared statement; None if the server accepts no more of them."""
        prepared = self._statements.get(sql)
        if prepared is not None:
            self._statements.move_to_end(sql)
            return prepared
        try:
            prepared = await self.connection.prepare(sql)
        except asyncmy.MySQLError as error:
            if number_of(error) != _NO_ROOM:
                raise
            return None
        self._statements[sql] = prepared
        if len(self._statements) > _STATEMENTS:
            _, oldest = self._statements.popitem(last=False)
            await oldest.close()
        return prepared

    def _refuse_large(self, values: Sequence[object]) -> None:
        # Otherwise the server would drop the connection in the middle of the request.
        size = sum([len(value) for value in values if isinstance(value, bytes)])
        if size > self.packet - _MARGIN:
            raise TooLarge(
                f"{size} bytes are more than the database accepts in one statement; its "
                f"max_allowed_packet is {self.packet}.",
                limit=self.packet,
            )


async def _reply(cursor: Any) -> Reply:
    rows = await cursor.fetchall() if cursor.description else None
    return Reply(rows, cursor.rowcount, cursor.lastrowid)


def _weight(values: Sequence[object]) -> int:
    """The approximate length of the values as text, in bytes."""
    return sum([2 * len(v) if isinstance(v, bytes | str) else _NUMBER for v in values])


def to_text(sql: str, values: Sequence[object]) -> str:
    """The statement with its values as literals."""
    pieces = sql.split("?")
    return "".join(
        [pieces[0], *(_literal(v) + piece for v, piece in zip(values, pieces[1:], strict=True))]
    )


def _literal(value: object) -> str:
    # Hex digits only: no value can end a literal, in any SQL mode of the session.
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"x'{value.hex()}'"
        case str():
            return f"_utf8mb4 x'{value.encode().hex()}'"
        case int():
            return str(int(value))
        case _:
            raise TypeError(f"{type(value).__name__} in a statement")


class _Connection(asyncmy.Connection):
    """The driver's connection, which checks whether the server offers TLS before it asks for it."""

    takes_plain = False

    async def _get_server_information(self) -> None:
        await super()._get_server_information()  # type: ignore[misc]
        driver: Any = self
        if driver._ssl_context is None or driver.server_capabilities & CLIENT.SSL:  # noqa: SLF001
            return
        if not self.takes_plain:
            raise StoreUnavailable("The database does not offer TLS.", field="url")
        driver._ssl_context = None  # noqa: SLF001
        driver._client_flag &= ~CLIENT.SSL  # noqa: SLF001


class Connector:
    """Opens connections to one database."""

    def __init__(self, address: Address) -> None:
        self._address = address
        tls = address.tls()
        self._takes_plain = tls is None
        if tls is None and address.unix_socket is None:
            # Encrypted if the server supports it, without verification.
            tls = ssl.create_default_context()
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        self._tls = tls or None
        #: The statement timeout of all its connections.
        self.timeouts = Timeouts(address.statement_timeout + _GRACE_S)

    async def connect(self) -> Link:
        """Open a connection. Raises the driver's errors."""
        address = self._address
        connection: Any = _Connection(  # type: ignore[no-untyped-call]
            host=address.host,
            port=address.port,
            unix_socket=address.unix_socket,
            user=address.user,
            # asyncmy would encode a str as Latin-1.
            password=(address.password or "").encode(),
            database=address.database,
            ssl=self._tls,
            connect_timeout=address.connect_timeout,
            charset="utf8mb4",
            # An UPDATE reports how many rows it matched, even if it did not change them.
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            program_name="penstock",
            autocommit=None,
        )
        connection.takes_plain = self._takes_plain
        try:
            # The driver's own timeout covers only the socket.
            async with asyncio.timeout(address.connect_timeout):
                await connection.connect()
                statement_s = address.statement_timeout
                lock_s = min(_LOCK_S, statement_s)
                for setting in (*_SETTINGS, _of_server(connection)):
                    await connection.query(setting.format(lock_s=lock_s, statement_s=statement_s))
                link = Link(connection, self.timeouts)
                ((link.packet,),) = (await link.execute("SELECT @@max_allowed_packet")).rows or ()
                return link
        except BaseException:
            connection.close()
            raise


def _of_server(connection: Any) -> str:
    """The settings that only one of the two servers has."""
    return _MARIADB if "MariaDB" in connection.get_server_info() else _MYSQL


# -- the pool ------------------------------------------------------------------------
# A transaction gets a connection with autocommit off, which saves a BEGIN; a read gets one with
# autocommit on, which saves a COMMIT. A connection is returned only if no transaction is open on it
# and every reply was read. When one is lost the idle ones are closed too: the server is probably
# gone, and each caller would otherwise discover that separately.

#: Seconds that a connection may stay idle; the server closes it after two minutes.
IDLE_S: Final = 60.0


class Pool:
    """A bounded number of connections; callers wait if all are in use."""

    def __init__(
        self, connector: Connector, size: int, opened: Callable[[], None], patience_s: float
    ) -> None:
        self._connector = connector
        #: Seconds that a caller waits for a free connection.
        self._patience_s = patience_s
        #: Called after a connection was opened.
        self._opened = opened
        self._free = asyncio.Semaphore(size)
        #: Idle connections with the time of their last use, most recent last.
        self._idle: list[tuple[Link, float]] = []

    async def take(self, *, autocommit: bool) -> Link:
        """A connection without an open transaction."""
        if self._free.locked():
            async with asyncio.timeout(self._patience_s):
                await self._free.acquire()
        else:
            await self._free.acquire()  # Immediate, so no timer is needed.
        try:
            link = self._pick(autocommit=autocommit)
            if link is None:
                link = await self._connector.connect()
                self._opened()
            try:
                await link.autocommit(autocommit)
            except BaseException:
                link.close()
                raise
        except BaseException:
            self._free.release()
            raise
        return link

    def give_back(self, link: Link) -> None:
        """Return a connection without an open transaction."""
        self._idle.append((link, time.monotonic()))
        self._free.release()

    def discard(self, link: Link) -> None:
        """Close a connection whose state is unknown."""
        link.close()
        self._free.release()

    def close_idle(self) -> None:
        """Close the idle connections."""
        for link, _ in self._idle:
            link.close()
        self._idle.clear()

    async def close(self) -> None:
        """Close the idle connections properly."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(link.part() for link, _ in idle))

    def _pick(self, *, autocommit: bool) -> Link | None:
        """The connection used last, preferably one with the right autocommit mode."""
        oldest = time.monotonic() - IDLE_S
        while self._idle and self._idle[0][1] < oldest:
            self._idle.pop(0)[0].close()
        fitting = [
            i
            for i, (link, _) in enumerate(self._idle)
            if link.connection.get_autocommit() is autocommit
        ]
        return self._idle.pop(fitting[-1] if fitting else -1)[0] if self._idle else None
