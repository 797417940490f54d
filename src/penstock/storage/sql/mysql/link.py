"""One connection to MySQL or MariaDB, through asyncmy.

Every session is READ COMMITTED, strict, and in UTC. Statements are prepared once a connection: the
server need not parse them again, and values go as they are, which for a hundred kilobytes takes a
twentieth of the time of quoting them. Several small ones go together as text, which saves the
ways to the server and back.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import asyncmy
from asyncmy.constants import CLIENT

from penstock.errors import StoreUnavailable, TooLarge
from penstock.storage.patience import Patience
from penstock.storage.sql.mysql.failures import FAILURES, number_of
from penstock.storage.sql.urls import Address

__all__ = ["Connector", "Link", "Reply"]

#: Statements that a connection remembers. A server has 16,382 for everybody together.
_STATEMENTS: Final = 120
#: What has more values is sent as text: the server would describe each of them.
_MAX_VALUES: Final = 1_000
#: Statements that go together are text; with more bytes than this they go one by one, prepared.
_MAX_TEXT: Final = 32 * 1024
#: What a number takes as text, about.
_NUMBER: Final = 10
#: Bytes of a packet that are left for what goes along with large values.
_MARGIN: Final = 64 * 1024
#: The server has no more room for prepared statements.
_NO_ROOM: Final = 1461
#: Seconds for a farewell.
_PARTING_S: Final = 5

_SETTINGS: Final = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    # Nobody waits for a lock for ever. What a machine that vanished had locked is free after two
    # minutes; connections that nobody has used for so long are closed before (see ``pool``).
    "SET SESSION innodb_lock_wait_timeout = {lock_s}, lock_wait_timeout = {lock_s}",
    "SET SESSION wait_timeout = 120",
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', time_zone = '+00:00'",
)
# A recursive query goes one step a partition, and both stop at a thousand by default. MySQL
# tells AUTO_INCREMENT as it was a day ago, unless it is asked not to.
# A statement that takes too long is ended by MariaDB whatever it does, by MySQL if it only reads.
_MARIADB: Final = (
    "SET SESSION max_recursive_iterations = 10000000, idle_transaction_timeout = {statement_s}, "
    "max_statement_time = {statement_s}"
)
_MYSQL: Final = (
    "SET SESSION cte_max_recursion_depth = 10000000, information_schema_stats_expiry = 0, "
    "max_execution_time = {statement_s}000"
)
#: Seconds that a statement waits for a lock, if it may take that long.
_LOCK_S: Final = 10
#: Seconds that the server is given to say that it has ended a statement: the connection is
#: dropped only if it does not say so.
_GRACE_S: Final = 2


class Reply(NamedTuple):
    """What a statement gave or did."""

    rows: Sequence[Sequence[Any]] | None
    """None: it is not one that gives rows."""
    changed: int
    number: int
    """The first one that AUTO_INCREMENT gave out."""


class Link:
    """A connection, and the statements that are prepared on it.

    Everything that waits for the server raises ``TimeoutError`` when it misses its deadline; nobody
    knows then what is under way on the connection, and it has to be closed.
    """

    def __init__(self, connection: Any, patience: Patience) -> None:
        self.connection = connection
        self._patience = patience
        #: The most bytes that the server takes at once, as soon as it was asked for that.
        self.packet = _MARGIN
        self._statements: OrderedDict[str, Any] = OrderedDict()

    async def execute(
        self, sql: str, values: Sequence[object] = (), *, prepared: bool = True
    ) -> Reply:
        """Run a statement with a value for each of its question marks."""
        self._refuse_large(values)
        return await self._patience.bear(self._execute(sql, values, prepared=prepared))

    async def _execute(self, sql: str, values: Sequence[object], *, prepared: bool) -> Reply:
        few = prepared and len(values) <= _MAX_VALUES
        statement = await self._prepare(sql) if few else None
        if statement is None:
            cursor = self.connection.cursor()
            await cursor.execute(_text(sql, values))
            return await _reply(cursor)
        result = await statement.execute(values)
        return Reply(result.rows, result.affected_rows, result.insert_id)

    async def together(self, parts: Sequence[tuple[str, Sequence[object]]]) -> list[Reply]:
        """Run statements one after the other, in one round trip if they are small."""
        if len(parts) == 1 or sum(_weight(values) for _, values in parts) > _MAX_TEXT:
            return [await self.execute(sql, values) for sql, values in parts]
        text = ";".join([_text(sql, values) for sql, values in parts])
        return await self._patience.bear(self._execute_many(text))

    async def _execute_many(self, text: str) -> list[Reply]:
        cursor = self.connection.cursor()
        await cursor.execute(text)
        replies = [await _reply(cursor)]
        while await cursor.nextset():
            replies.append(await _reply(cursor))
        return replies

    async def plainly(self, sql: str) -> None:
        """Run a statement that has no values and gives no rows."""
        await self._patience.bear(self.connection.query(sql))

    async def autocommit(self, value: bool) -> None:
        """Have every statement be a transaction of its own, or not."""
        await self._patience.bear(self.connection.autocommit(value))

    async def commit(self) -> None:
        """End the transaction."""
        await self._patience.bear(self.connection.commit())

    async def roll_back(self) -> None:
        """End the transaction, if there is one: after a failure nobody knows."""
        await self._patience.bear(self.connection.rollback())

    async def forget_statements(self) -> None:
        """Have the server forget what was prepared here."""
        with suppress(*FAILURES):
            while self._statements:
                await self._statements.popitem()[1].close()

    def close(self) -> None:
        """Drop the connection; the server rolls back what was open."""
        self.connection.close()

    async def part(self) -> None:
        """Close the connection with a word of farewell."""
        with suppress(*FAILURES):
            async with asyncio.timeout(_PARTING_S):
                await self.connection.ensure_closed()
        self.close()

    async def _prepare(self, sql: str) -> Any | None:
        """The statement, prepared; None: the server has no room for one more."""
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
        # The server would drop the connection while all of it is still on its way.
        size = sum([len(value) for value in values if isinstance(value, bytes)])
        if size > self.packet - _MARGIN:
            raise TooLarge(
                f"{size} bytes are more than the database takes at once; its max_allowed_packet "
                f"is {self.packet}.",
                limit=self.packet,
            )


async def _reply(cursor: Any) -> Reply:
    rows = await cursor.fetchall() if cursor.description else None
    return Reply(rows, cursor.rowcount, cursor.lastrowid)


def _weight(values: Sequence[object]) -> int:
    """About how many bytes the values are as text."""
    return sum([2 * len(v) if isinstance(v, bytes | str) else _NUMBER for v in values])


def _text(sql: str, values: Sequence[object]) -> str:
    """The statement with its values in it."""
    pieces = sql.split("?")
    return "".join(
        [pieces[0], *(_literal(v) + piece for v, piece in zip(values, pieces[1:], strict=True))]
    )


def _literal(value: object) -> str:
    # Digits only: no text of anybody's can end a literal, whatever the modes of the session.
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
    """The driver's, but it knows whether the server offers TLS before it asks for it."""

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
            # Encrypted if the server can, whoever it is.
            tls = ssl.create_default_context()
            tls.check_hostname = False
            tls.verify_mode = ssl.CERT_NONE
        self._tls = tls or None
        #: With the statements of all its connections.
        self.patience = Patience(address.statement_timeout + _GRACE_S)

    async def connect(self) -> Link:
        """A new connection. Raises what the driver raises."""
        address = self._address
        connection: Any = _Connection(  # type: ignore[no-untyped-call]
            host=address.host,
            port=address.port,
            unix_socket=address.unix_socket,
            user=address.user,
            # As text it would become Latin-1.
            password=(address.password or "").encode(),
            database=address.database,
            ssl=self._tls,
            connect_timeout=address.connect_timeout,
            charset="utf8mb4",
            # An UPDATE tells how many rows it found, whether or not that changed them.
            client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            program_name="penstock",
            autocommit=None,
        )
        connection.takes_plain = self._takes_plain
        try:
            # The driver's own timeout is for the socket alone.
            async with asyncio.timeout(address.connect_timeout):
                await connection.connect()
                statement_s = address.statement_timeout
                lock_s = min(_LOCK_S, statement_s)
                for setting in (*_SETTINGS, _of_server(connection)):
                    await connection.query(setting.format(lock_s=lock_s, statement_s=statement_s))
                link = Link(connection, self.patience)
                ((link.packet,),) = (await link.execute("SELECT @@max_allowed_packet")).rows or ()
                return link
        except BaseException:
            connection.close()
            raise


def _of_server(connection: Any) -> str:
    """The settings that only one of the two servers knows."""
    return _MARIADB if "MariaDB" in connection.get_server_info() else _MYSQL
