"""Statements as MySQL takes them, and what its failures mean. Run on MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import asyncmy
import pytest

from penstock.errors import (
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreTooOld,
    StoreUnavailable,
    TooLarge,
)
from penstock.storage.sql.database import ConnectionLost, Overdue, RetryTransaction
from penstock.storage.sql.deliveries import Phase, Row
from penstock.storage.sql.mysql.adapter import MySQL
from penstock.storage.sql.mysql.binding import Statement
from penstock.storage.sql.mysql.error_mapping import opening, translate
from penstock.storage.sql.statements import PARAMETER, load
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import server, store_url

NAME: Final = "mysql_statements"


@pytest.fixture
async def database() -> AsyncIterator[MySQL]:
    found = await MySQL.open(parse(store_url("mysql", NAME)))
    server("mysql").sql("INSERT INTO penstock_tenant (number, name) VALUES (1, 't')", NAME)
    yield found
    await found.close()


# -- statements ------------------------------------------------------------------------


async def test_the_server_takes_every_statement(database: MySQL) -> None:
    async with database.reading() as session:
        link = await session._linked()  # type: ignore[attr-defined]
        for name, text in load("mysql").items():
            statement = Statement(text)
            if ":rows" in text:
                columns = text.partition("(")[2].partition(")")[0].count(",") + 1
                ((found, _),) = statement.lots([(None,) * columns], 0)
            else:
                found, _ = statement.bind(dict.fromkeys(PARAMETER.findall(text), 1))
            assert await link._prepare(found) is not None, name


def test_lists_are_filled_up_to_a_power_of_two() -> None:
    statement = Statement("SELECT a FROM t WHERE a IN (:many) AND b = :one AND c IN (:many)")
    assert statement.bind({"many": [7], "one": 1}) == (
        "SELECT a FROM t WHERE a IN (?) AND b = ? AND c IN (?)",
        [7, 1, 7],
    )
    text, values = statement.bind({"many": [1, 2, 3], "one": b"x"})
    assert text == "SELECT a FROM t WHERE a IN (?, ?, ?, ?) AND b = ? AND c IN (?, ?, ?, ?)"
    assert values == [1, 2, 3, 3, b"x", 1, 2, 3, 3]
    assert statement.bind({"many": [], "one": None})[1] == [None, None, None]


def test_what_deletes_names_its_rows_in_a_table() -> None:
    statement = Statement(
        "DELETE gone FROM (SELECT CAST(:places AS SIGNED) AS place) AS old "
        "STRAIGHT_JOIN t AS gone ON gone.a = :a AND gone.place = old.place"
    )
    one = "SELECT CAST(? AS SIGNED) AS place"
    rest = "AS old STRAIGHT_JOIN t AS gone ON gone.a = ? AND gone.place = old.place"
    assert list(statement.all({"places": [7], "a": 1})) == [
        (f"DELETE gone FROM ({one}) {rest}", [7, 1])
    ]
    ((text, values),) = statement.all({"places": [7, 8], "a": 1})
    assert text == f"DELETE gone FROM ({one} UNION ALL {one}) {rest}"
    assert values == [7, 8, 1]
    many = list(statement.all({"places": list(range(300)), "a": 1}))
    assert [len(values) for _, values in many] == [129, 129, 65]
    assert statement.bind({"places": [], "a": 1})[1] == [None, 1]


def test_rows_are_written_in_few_shapes() -> None:
    statement = Statement("INSERT INTO t (a, b) VALUES :rows ON DUPLICATE KEY UPDATE b = VALUES(b)")
    ((text, values),) = statement.lots([(1, b"x"), (2, None)], 1_000)
    assert (
        text == "INSERT INTO t (a, b) VALUES (?, ?), (?, ?) ON DUPLICATE KEY UPDATE b = VALUES(b)"
    )
    assert values == [1, b"x", 2, None]
    for count, lots in ((0, []), (8, [8]), (99, [64, 32, 3]), (200, [64, 64, 64, 8])):
        found = list(statement.lots([(n, n) for n in range(count)], 10_000))
        assert [len(values) // 2 for _, values in found] == lots
        assert [value for _, values in found for value in values[::2]] == list(range(count))


def test_rows_are_written_in_lots_that_fit() -> None:
    statement = Statement("INSERT INTO t (a) VALUES :rows")
    found = list(statement.lots([(b"x" * 400,)] * 5 + [(b"y" * 2_000,)] * 2, 1_000))
    assert [len(values) for _, values in found] == [2, 2, 1, 1, 1]


async def test_together_gives_what_each_alone_gives(database: MySQL) -> None:
    values = [0, -1, 2**63 - 1, None, b"", bytes(range(256)), "", "it's a \\ 'quote' ü", True]
    columns = ", ".join(["?"] * len(values))
    one = (f"SELECT {columns}", values)
    count = ("SELECT COUNT(*) FROM penstock_document", ())
    write = ("INSERT INTO penstock_document (kind, name, value) VALUES (?, ?, ?)", ["k", "n", b"v"])
    async with database.transaction() as session:
        link = await session._linked()  # type: ignore[attr-defined]
        replies = await link.together([one, write, one, count])
    assert [reply.changed for reply in replies] == [1, 1, 1, 1]
    assert [reply.rows is None for reply in replies] == [False, True, False, False]
    for reply in (replies[0], replies[2]):
        assert list(reply.rows[0]) == values
    assert replies[3].rows[0][0] == 1
    async with database.reading() as session:
        assert await session.fetch("list_documents", kind="k") == [("n", b"v")]


async def test_more_values_than_are_prepared(database: MySQL) -> None:
    rows = [
        Row(1, Phase.FRESH, 5, place, place, 1, None, None, None, b"\0\0", b"life")
        for place in range(1_500)
    ]
    async with database.transaction() as session:
        await session.change(1, [], [], rows, [])
    async with database.transaction() as session:
        places = [row.row_key for row in rows]
        found = await session.fetch("lock_groups", queue=1, phase=0, rank=5, row_keys=places)
        assert [row[3] for row in found] == places
        await session.change(1, [], [row[:4] for row in rows], [], [])
    assert server("mysql").sql("SELECT COUNT(*) FROM penstock_run", NAME) == [["0"]]


@law("E1")
async def test_more_than_the_server_takes_at_once(database: MySQL) -> None:
    with pytest.raises(TooLarge, match="max_allowed_packet"):
        async with database.transaction() as session:
            await session.append([(1, 1, 1, b"", bytes(17 * 1024 * 1024))])
    # Without a word with the server, whose connection would be lost by it.
    async with database.transaction() as session:
        await session.append([(1, 1, 1, b"", bytes(15 * 1024 * 1024))])


# -- failures --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number, kind",
    [
        *((number, RetryTransaction) for number in (1213, 1205, 1020, 1062, 1412, 1317)),
        *((number, Overdue) for number in (1969, 3024)),
        *((number, ConnectionLost) for number in (2003, 2006, 2013, 1927, 1053, 1152, 3169, 4031)),
        *((number, StoreBusy) for number in (1040, 1203, 1226, 1041)),
        *((number, StoreReadOnly) for number in (1290, 1792, 1836)),
        *((number, StoreUnavailable) for number in (1045, 1044, 1049, 1130, 1142)),
        *((number, StoreFull) for number in (1021, 1114)),
        *((number, StoreTooOld) for number in (1146, 1054)),
        *((number, StoreCorrupt) for number in (1034, 1712, 1877)),
        *((number, TooLarge) for number in (1153, 1406)),
        *((number, StoreError) for number in (1064, 9999)),
    ],
)
def test_what_a_number_means(number: int, kind: type[Exception]) -> None:
    found = translate(asyncmy.OperationalError(number, "some words.\nmore"))
    assert type(found) is kind
    assert "some words. more" in str(found)


@law("P2")
def test_only_during_a_commit_the_outcome_is_unknown() -> None:
    for number in (2013, 1053, 1180, 1026):
        found = translate(asyncmy.OperationalError(number, "x"), committing=True)
        assert isinstance(found, ConnectionLost)
        assert found.committing
    for number in (2013, 1927):
        found = translate(asyncmy.OperationalError(number, "x"))
        assert isinstance(found, ConnectionLost)
        assert not found.committing
    assert isinstance(
        translate(asyncmy.OperationalError(1213, "x"), committing=True), RetryTransaction
    )
    assert isinstance(
        translate(asyncmy.OperationalError(1290, "x"), committing=True), StoreReadOnly
    )


def test_what_the_driver_says_itself() -> None:
    for lost in (
        asyncmy.InterfaceError(0, "Not connected"),
        asyncmy.InternalError("Packet sequence number wrong"),
        ConnectionResetError("reset"),
        TimeoutError(),
    ):
        assert isinstance(translate(lost), ConnectionLost)
    assert type(translate(asyncmy.ProgrammingError("Expected 2 parameters"))) is StoreError
    mistake = KeyError("x")
    assert translate(mistake) is mistake
    with pytest.raises(asyncio.CancelledError):
        translate(asyncio.CancelledError())


def test_nobody_answers_at_an_address() -> None:
    found = opening(asyncmy.OperationalError(2003, "Can't connect"), "mysql://host/db")
    assert isinstance(found, StoreUnavailable)
    assert "mysql://host/db cannot be reached" in str(found)
