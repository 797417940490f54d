"""Servers with the SQS door: one that anybody may use, one that asks for signatures."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.doors.sqs.scenario import new_client
from tests.service.serving import Serve, Served

#: Where scripts/sqs-clients installs what does not fit this environment.
CLIENTS = Path(sys.prefix) / "sqs-clients"


class Keys(Struct, frozen=True):
    """An API key, as AWS's clients and as Penstock's name it."""

    access: str
    secret: str
    credential: str


class Signed(Struct, frozen=True):
    """A server that asks for signatures, and a key that may do everything."""

    server: Served
    key: Keys

    def new_key(self, *grants: str) -> Keys:
        made = self.server.call(
            "POST", "/v1/keys", {"grants": grants}, credential=self.key.credential
        ).json()
        return Keys(made["info"]["id"], made["signing_secret"], made["key"])

    def client(self, key: Keys | None = None) -> Any:
        key = key or self.key
        return new_client(self.server.url, key.access, key.secret)


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    starting = Serve(tmp_path_factory.mktemp("sqs"))
    try:
        yield starting
    finally:
        starting.end()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts servers for one test."""
    starting = Serve(tmp_path)
    try:
        yield starting
    finally:
        starting.end()


@pytest.fixture(scope="session")
def server(servers: Serve) -> Served:
    return servers("--door", "sqs", store=f"rocksdb://{servers.folder}/open")


@pytest.fixture(scope="session")
def signed(servers: Serve) -> Signed:
    server = servers("--door", "sqs", "--auth", store=f"rocksdb://{servers.folder}/signed")
    first = Signed(server, Keys("", "", server.told["key"]))
    return Signed(server, first.new_key("admin:*"))


@pytest.fixture
def sqs(server: Served) -> Any:
    return new_client(server.url)


def installed(*path: str) -> Path:
    """Something that scripts/sqs-clients installs; a failure if it is missing."""
    found = CLIENTS.joinpath(*path)
    assert found.exists(), f"{found} is missing: run scripts/sqs-clients"
    return found
