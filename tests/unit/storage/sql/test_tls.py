"""TLS to real servers: what is asked of them is kept, and nobody falls back on less."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StoreUnavailable
from penstock.storage.sql.database import load_module
from penstock.storage.sql.migrations import Migrated, migrate
from penstock.storage.sql.urls import parse
from tests.databases import MariaDB, PostgreSQL, Server, server
from tests.service.certificates import Pair, self_signed

NAME = "encrypted"
#: By dialect, how much is asked: the option's name, and its value from a little to all.
LEVELS = {
    "postgresql": ("sslmode", "disable", "prefer", "require", "verify-ca", "verify-full"),
    "mysql": ("ssl-mode", "DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"),
}
AUTHORITY = {"postgresql": "sslrootcert", "mysql": "ssl-ca"}


class EncryptedPostgreSQL(PostgreSQL):
    """With a certificate for this machine."""

    pair: Pair

    def _command(self) -> list[str]:
        files = {"ssl_cert_file": self.pair.cert, "ssl_key_file": self.pair.key}
        flags = [part for name, file in files.items() for part in ("-c", f"{name}={file}")]
        return [*super()._command(), "-c", "ssl=on", *flags]


class EncryptedMariaDB(MariaDB):
    """With a certificate for this machine."""

    pair: Pair

    def _command(self) -> list[str]:
        return [*super()._command(), f"--ssl-cert={self.pair.cert}", f"--ssl-key={self.pair.key}"]


@pytest.fixture(scope="module", params=["postgresql", "mysql"])
def encrypted(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with TLS, and a database."""
    found = EncryptedPostgreSQL() if request.param == "postgresql" else EncryptedMariaDB()
    found.pair = self_signed(found.folder)
    for file in (found.pair.cert, found.pair.key):
        file.chmod(0o600)
        if found._user:
            shutil.chown(file, found._user)
    found.start()
    found.create_database(NAME)
    yield found
    found.close()


def asking(found: Server, level: int, authority: Path | None = None, host: str = "") -> str:
    name, *levels = LEVELS[found.SCHEME]
    url = found.url(NAME)
    if host:
        url = url.replace("127.0.0.1", host)
    more = "" if authority is None else f"&{AUTHORITY[found.SCHEME]}={authority}"
    return f"{url}?connect_timeout=5&{name}={levels[level]}{more}"


async def is_encrypted(url: str) -> bool:
    """What the server says of the connection."""
    address = parse(url)
    async with load_module(address.scheme, "schema").opened(address) as schema:
        if address.scheme == "postgresql":
            asked = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()"
            return bool(await schema._connection.fetchval(asked))
        reply = await schema._link.execute("SHOW SESSION STATUS LIKE 'Ssl_cipher'")
        return bool(reply.rows[0][1])


@pytest.mark.parametrize("level", range(5))
async def test_a_connection_is_as_safe_as_is_asked(encrypted: Server, level: int) -> None:
    authority = encrypted.pair.cert if level > 2 else None  # type: ignore[attr-defined]
    assert await is_encrypted(asking(encrypted, level, authority)) is (level > 0)


async def test_a_stranger_is_refused(encrypted: Server, tmp_path: Path) -> None:
    for authority in (None, self_signed(tmp_path).cert):
        for level in (3, 4):
            with pytest.raises(StoreUnavailable, match="certificate"):
                await migrate(asking(encrypted, level, authority))
    # Whom we trust is whom we ask for, even if only encryption is asked for.
    with pytest.raises(StoreUnavailable, match="certificate"):
        await migrate(asking(encrypted, 2, self_signed(tmp_path).cert))


async def test_a_certificate_of_another_host_is_refused_if_that_is_asked(
    encrypted: Server,
) -> None:
    authority = encrypted.pair.cert  # type: ignore[attr-defined]
    # The same machine, by an address that its certificate does not have.
    elsewhere = "[::ffff:127.0.0.1]"
    assert isinstance(await migrate(asking(encrypted, 3, authority, elsewhere)), Migrated)
    with pytest.raises(StoreUnavailable, match="certificate"):
        await migrate(asking(encrypted, 4, authority, elsewhere))


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
async def test_a_server_without_tls_is_refused_if_tls_is_asked(dialect: str) -> None:
    found = server(dialect)
    found.drop_database(NAME)
    found.create_database(NAME)
    for level in (2, 3, 4):
        with pytest.raises(StoreUnavailable, match=r"TLS|SSL"):
            await migrate(asking(found, level))
    for level in (1, 0):
        assert not await is_encrypted(asking(found, level))
    found.drop_database(NAME)
