"""Publishing inside a transaction of Django, through the blocking API (P2)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest
from django import setup
from django.conf import settings
from django.db import connection as proxy
from django.db import connections, transaction

import penstock
from penstock.errors import BadInput
from penstock.storage.sql.urls import parse
from penstock.testing.laws import law
from tests.databases import server, store_url
from tests.unit.storage.sql.callers import DIALECTS

NAME = "outboxdjango"


def database(dialect: str) -> dict[str, Any]:
    address = parse(server(dialect).url(NAME))
    return {
        "ENGINE": f"django.db.backends.{dialect}",
        "NAME": address.database,
        "USER": address.user,
        "PASSWORD": address.password or "",
        "HOST": address.host,
        "PORT": address.port,
    }


@pytest.fixture(scope="module")
def django() -> None:
    # PyMySQL takes the place of mysqlclient, which has to be compiled.
    pymysql.install_as_MySQLdb()
    databases = {dialect: database(dialect) for dialect in DIALECTS}
    settings.configure(DATABASES={"default": databases["postgresql"], **databases})
    setup()


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest, django: None) -> str:
    name: str = request.param
    return name


@pytest.fixture
def q(dialect: str) -> Iterator[Any]:
    url = store_url(dialect, NAME)
    with penstock.sync.open(url, keepers=False) as broker:
        with connections[dialect].cursor() as cursor:
            cursor.execute("DROP TABLE IF EXISTS bill")
            cursor.execute("CREATE TABLE bill (id integer PRIMARY KEY)")
        yield broker
    connections[dialect].close()


def bills(dialect: str) -> list[Any]:
    with connections[dialect].cursor() as cursor:
        cursor.execute("SELECT id FROM bill")
        return list(cursor.fetchall())


@law("P2")
def test_the_commit_makes_it_visible(q: Any, dialect: str) -> None:
    with transaction.atomic(using=dialect):
        own = transaction.get_connection(dialect)
        with own.cursor() as cursor:
            cursor.execute("INSERT INTO bill VALUES (1)")
        q.publish("orders", {"order": 7}, connection=own)
        assert q.read_log().entries == ()
    (delivery,) = q.claim("orders")
    assert delivery.payload == b'{"order":7}'
    assert bills(dialect) == [(1,)]


@law("P2")
def test_a_rollback_leaves_nothing(q: Any, dialect: str) -> None:
    with transaction.atomic(using=dialect):
        own = transaction.get_connection(dialect)
        q.publish("orders", b"never", connection=own)
        with own.cursor() as cursor:
            cursor.execute("INSERT INTO bill VALUES (1)")
        transaction.set_rollback(True, dialect)
    assert q.read_log().entries == ()
    assert bills(dialect) == []


@law("E1")
def test_a_connection_without_a_transaction_and_the_proxy_are_refused(q: Any, dialect: str) -> None:
    for given, words in ((connections[dialect], "atomic"), (proxy, "get_connection")):
        with pytest.raises(BadInput, match=words) as caught:
            q.publish("orders", b"never", connection=given)
        assert caught.value.field == "connection"
    assert q.read_log().entries == ()
