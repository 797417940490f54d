"""URLs of databases: what they mean, what is refused, and that no password is ever shown."""

from __future__ import annotations

import io
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.pretty import pprint

from penstock.errors import BadUrl
from penstock.model.secrets import mask_password
from penstock.storage.engines import open_engine
from penstock.storage.sql.urls import Address, Security, Tls, parse
from penstock.testing.laws import law
from tests.service.certificates import self_signed

SECRET = "hunter2"


def address(**fields: Any) -> Address:
    given: dict[str, Any] = {
        "scheme": "postgresql",
        "host": "db",
        "port": 5432,
        "unix_socket": None,
        "user": None,
        "password": None,
        "database": "store",
        "pool": 10,
        "connect_timeout": 10,
        "statement_timeout": 30,
        "security": Tls(Security.IF_OFFERED),
    }
    return Address(**{**given, **fields})


@pytest.mark.parametrize(
    "url, expected",
    [
        ("postgresql://db/store", address()),
        ("mysql://db/store", address(scheme="mysql", port=3306)),
        ("POSTGRESQL://db/store", address()),
        ("postgresql://db:6543/store", address(port=6543)),
        ("postgresql://me@db/store", address(user="me")),
        ("postgresql://me:@db/store", address(user="me", password="")),
        ("postgresql://me:pw@db/store", address(user="me", password="pw")),
        ("postgresql://:pw@db/store", address(password="pw")),
        ("postgresql://a%40b:p%3Aq%2Fr%20s@db/my%20%2Fstore%40", None),
        ("postgresql://me:p@ss:word@db/store", address(user="me", password="p@ss:word")),
        ("postgresql://me:pä+%2B@db/store", address(user="me", password="pä++")),
        ("postgresql://[::1]/store", address(host="::1")),
        ("postgresql://me:pw@[fe80::1%25eth0]:1/store", None),
        ("postgresql:///store?host=/run/postgresql", address(host="/run/postgresql")),
        ("postgresql://me@:7/store?host=/tmp", address(user="me", port=7, host="/tmp")),
        ("postgresql://%2Frun%2Fpostgresql/store", address(host="/run/postgresql")),
        ("mysql:///store?unix_socket=/run/my%20sock", None),
        ("postgresql://db/store?pool=1&connect_timeout=3", address(pool=1, connect_timeout=3)),
        ("postgresql://db/store?statement_timeout=5", address(statement_timeout=5)),
        ("postgresql://db/store?pool=100", address(pool=100)),
        ("postgresql://db/store?", address()),
    ],
)
def test_what_a_url_means(url: str, expected: Address | None) -> None:
    found = parse(url)
    if "my%20%2Fstore" in url:
        expected = address(user="a@b", password="p:q/r s", database="my /store@")
    elif "fe80" in url:
        expected = address(user="me", password="pw", host="fe80::1%eth0", port=1)
    elif "unix_socket" in url:
        expected = address(scheme="mysql", host="", port=3306, unix_socket="/run/my sock")
    assert found == expected


@law("E1")
@pytest.mark.parametrize(
    "url, why",
    [
        ("postgresql://me:hunter2@db", "no database"),
        ("postgresql://me:hunter2@db/", "no database"),
        ("postgresql://me:hunter2@/store", "no host"),
        ("postgresql:store", "no host"),
        ("postgresql:", "no host"),
        ("postgresql://me:hunter2@db:/store", None),
        ("postgresql://me:hunter2@db:x/store", "port must be a whole number"),
        ("postgresql://me:hunter2@db:0/store", "port must be a whole number"),
        ("postgresql://me:hunter2@db:65536/store", "port must be a whole number"),
        ("postgresql://me:hunter2@db:1:2/store", "not a host and a port"),
        ("postgresql://me:hunter2@[::1/store", "not a URL"),
        ("postgresql://me:hunter2@::1/store", "not a host and a port"),
        ("postgresql://me:hunter2@a,b/store", "several hosts"),
        ("postgresql://me:hunter2@db/a/b", "percent-encode"),
        ("postgresql://me:hunter2/x@db/store", "port must be a whole number"),
        ("postgresql://me:99/hunter2@db", "percent-encode"),
        ("postgresql://me:hunter2?@db/store", "no option"),
        ("postgresql://me:hunter2#@db/store", "%23"),
        ("postgresql://me:hunter2@db/store#", "%23"),
        ("postgresql://me:hunter2@db/sto re", "space"),
        ("postgresql://me:hunter2@db/store\n", "control character"),
        ("postgresql://me:hunter2@db/store%00", "control character"),
        ("postgresql://me:hunter2%ff@db/store", "UTF-8"),
        (
            "postgresql://me:hunter2@db/store?pol=3",
            "options are pool, connect_timeout, statement_timeout, host, ssl",
        ),
        ("postgresql://db/store?password=hunter2", "options are pool"),
        ("postgresql://me:hunter2@db/store?pool", "pool must be a whole number from 1 to 100"),
        ("postgresql://me:hunter2@db/store?pool=0", "pool must be a whole number from 1 to 100"),
        ("postgresql://me:hunter2@db/store?pool=101", "pool must be a whole number"),
        ("postgresql://me:hunter2@db/store?pool=-1", "pool must be a whole number"),
        ("postgresql://me:hunter2@db/store?pool=1e1", "pool must be a whole number"),
        ("postgresql://me:hunter2@db/store?pool=٣", "pool must be a whole number"),
        ("postgresql://me:hunter2@db/store?pool=" + "9" * 5000, "pool must be a whole number"),
        ("postgresql://me:hunter2@db/store?pool=1&pool=2", "pool is given twice"),
        ("postgresql://me:hunter2@db/store?connect_timeout=0", "connect_timeout must be"),
        ("postgresql://me:hunter2@db/store?statement_timeout=0", "statement_timeout must be"),
        ("postgresql://me:hunter2@db/store?host=/tmp", "names a host twice"),
        ("postgresql:///store?host=db", "host must be an absolute path"),
        ("postgresql://me:hunter2@db/store?sslmode=allow", "one of disable, prefer, require"),
        ("mysql://me:hunter2@db/store?ssl-mode=required", "one of DISABLED, PREFERRED, REQUIRED"),
        ("mysql://me:hunter2@db/store?sslmode=require", "there is no option 'sslmode'"),
        ("mysql://me:hunter2@db/store?ssl-cert=/c", "ssl-cert and ssl-key must be given together"),
        ("mysql://me:hunter2@db/store?ssl-ca=", "no value"),
        ("postgres://me:hunter2@db/store", "one of postgresql, mysql"),
        ("postgresql://me:hunter2℀@db/store", "not a URL"),
        ("", "one of postgresql, mysql"),
    ],
)
async def test_what_is_refused_and_why_without_the_password(url: str, why: str | None) -> None:
    if why is None:
        assert parse(url).port == 5432
        return
    with pytest.raises(BadUrl) as caught:
        parse(url)
    assert why in caught.value.detail
    assert SECRET not in str(caught.value)
    assert caught.value.field
    # Nor in what a traceback would print below it.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    if not url.endswith(("\n", "#")):  # Which nobody sees any more once the URL is taken apart.
        with pytest.raises(BadUrl) as opened:
            await open_engine(url)
        assert SECRET not in str(opened.value)


TEXT = st.text(st.characters(blacklist_categories=["C"]), max_size=12)


@given(
    user=TEXT.filter(bool),
    password=TEXT,
    host=st.sampled_from(["db", "127.0.0.1", "::1", "db.example.com"]),
    port=st.integers(1, 65535),
    database=TEXT.filter(bool),
)
def test_whatever_is_percent_encoded_is_read_as_it_was(
    user: str, password: str, host: str, port: int, database: str
) -> None:
    place = f"[{host}]" if ":" in host else host
    parts = [quote(part, safe="") for part in (user, password, database)]
    url = f"mysql://{parts[0]}:{parts[1]}@{place}:{port}/{parts[2]}"
    found = parse(url)
    assert (found.user, found.password, found.database) == (user, password, database)
    assert (found.host, found.port) == (host, port)
    # What is shown is a URL, of the same place.
    again = parse(found.shown)
    assert (again.user, again.host, again.port, again.database) == (user, host, port, database)
    assert again.password == "***"


@law("E1")
@given(st.text(max_size=40))
def test_nonsense_is_refused_by_name(rest: str) -> None:
    with suppress(BadUrl):
        assert parse(f"postgresql://{rest}").database


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://me:hunter2@db/store?pool=3", "postgresql://me:***@db:5432/store"),
        ("mysql://me@[::1]/store", "mysql://me@[::1]:3306/store"),
        ("postgresql://:hunter2@db/store", "postgresql://:***@db:5432/store"),
        ("postgresql:///s?host=/run/pg", "postgresql://:5432/s?host=/run/pg"),
        ("mysql:///s?unix_socket=/run/my", "mysql:///s?unix_socket=/run/my"),
    ],
)
def test_an_address_is_shown_without_its_password(url: str, shown: str) -> None:
    found = parse(url)
    assert found.shown == shown
    assert repr(found) == f"Address({shown!r})"
    assert SECRET not in f"{found} {[found]}"
    page = io.StringIO()
    pprint(found, console=Console(file=page))
    assert SECRET not in page.getvalue()


@pytest.mark.parametrize(
    "url, masked",
    [
        ("postgresql://me:hunter2@db/store", "postgresql://me:***@db/store"),
        ("postgresql://me:hunter2@x/y@db/store", "postgresql://me:***@db/store"),
        ("'mysql://me:hunter2#?/@db/store'", "'mysql://me:***@db/store'"),
        ("postgresql://:hunter2@db", "postgresql://:***@db"),
        ("postgresql://db?password=hunter2&pool=3", "postgresql://db?password=***&pool=3"),
        ("'mysql://db?pool=3&passwd=hunter2'", "'mysql://db?pool=3&passwd=***'"),
        ("postgresql://me@db/store", "postgresql://me@db/store"),
        ("http://host:8080/path", "http://host:8080/path"),
        ("rocksdb:///var/lib/a:b@c", "rocksdb:///var/lib/a:b@c"),
        ("memory://", "memory://"),
    ],
)
def test_a_password_in_any_url_is_masked(url: str, masked: str) -> None:
    assert mask_password(url) == masked


# -- TLS -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, expected",
    [
        ("postgresql://db/s", None),
        ("postgresql://db/s?sslmode=prefer", None),
        ("postgresql://db/s?sslmode=disable", False),
        ("postgresql://db/s?sslmode=require", (ssl.CERT_NONE, False)),
        ("postgresql://db/s?sslmode=verify-ca", (ssl.CERT_REQUIRED, False)),
        ("postgresql://db/s?sslmode=verify-full", (ssl.CERT_REQUIRED, True)),
        ("postgresql://db/s?sslmode=require&sslrootcert={ca}", (ssl.CERT_REQUIRED, False)),
        ("mysql://db/s", None),
        ("mysql://db/s?ssl-mode=PREFERRED", None),
        ("mysql://db/s?ssl-mode=DISABLED", False),
        ("mysql://db/s?ssl-mode=REQUIRED", (ssl.CERT_NONE, False)),
        ("mysql://db/s?ssl-mode=VERIFY_CA&ssl-ca={ca}", (ssl.CERT_REQUIRED, False)),
        ("mysql://db/s?ssl-mode=VERIFY_IDENTITY", (ssl.CERT_REQUIRED, True)),
        (
            "mysql://db/s?ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}&ssl-cert={ca}&ssl-key={key}",
            (ssl.CERT_REQUIRED, True),
        ),
    ],
)
def test_what_a_connection_asks_of_tls(options: str, expected: object, tmp_path: Path) -> None:
    pair = self_signed(tmp_path)
    context = parse(options.format(ca=pair.cert, key=pair.key)).tls()
    if isinstance(context, ssl.SSLContext):
        assert (context.verify_mode, context.check_hostname) == expected
        if "{ca}" in options:
            assert context.cert_store_stats()["x509"] == 1
    else:
        assert context is expected


@law("E1")
def test_files_for_tls_that_are_not(tmp_path: Path) -> None:
    (tmp_path / "junk").write_text("junk")
    for option in (f"sslrootcert={tmp_path}/none", f"sslrootcert={tmp_path}/junk"):
        found = parse(f"postgresql://me:hunter2@db/s?sslmode=verify-full&{option}")
        with pytest.raises(BadUrl, match="cannot be used for TLS") as caught:
            found.tls()
        assert SECRET not in str(caught.value)
