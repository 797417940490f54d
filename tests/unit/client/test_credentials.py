"""Credentials that change: files and functions."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client import connect
from penstock.client.credentials import Credentials, check_source
from penstock.errors import BadInput, Unauthenticated
from tests.unit.client.conftest import QUICK
from tests.unit.client.test_transport import Peer

pytestmark = pytest.mark.timeout(60)

BODY = b"\x81\xa6queues\x90"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)
REFUSED = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


class Guard(Peer):
    """A server that accepts one credential."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = "one"
        self.answer = lambda head: OK if f"Bearer {self.wanted}\r\n".encode() in head else REFUSED


@pytest.fixture
async def guard() -> AsyncIterator[Guard]:
    guard = Guard()
    guard.url = await guard.start()  # type: ignore[attr-defined]
    yield guard
    await guard.stop()


def rewrite(path: Path, text: str) -> None:
    """Replace a file as tools do that write secrets: another file under the same name."""
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


async def test_a_file_is_read_again_after_a_401(guard: Any, tmp_path: Path) -> None:
    path = tmp_path / "credential"
    path.write_text("one\n")
    async with connect(guard.url, credential=f"file:{path}", options=QUICK) as q:
        assert await q.queues() == ()
        guard.wanted = "two"
        rewrite(path, "two\n")
        assert await q.queues() == ()
        guard.wanted = "three"
        with pytest.raises(penstock.PenstockError):
            await q.queues()
        rewrite(path, "three")
        assert await q.queues() == ()


async def test_a_file_that_changed_is_read_before_the_server_refuses(tmp_path: Path) -> None:
    path = tmp_path / "credential"
    path.write_text("one")
    found = Credentials(f"file://{path}")
    assert await found.line() == "Authorization: Bearer one\r\n"
    rewrite(path, "two")
    # A second later, as far as the object knows.
    found._checked_at -= 2
    assert await found.line() == "Authorization: Bearer two\r\n"


async def test_functions_are_called_once_and_after_a_401(guard: Any) -> None:
    calls: list[str] = []

    def plain() -> str:
        calls.append(guard.wanted)
        return guard.wanted

    async def later() -> str:
        return plain()

    for source in (plain, later):
        calls.clear()
        guard.wanted = "one"
        async with connect(guard.url, credential=source, options=QUICK) as q:
            await q.queues()
            await q.queues()
            guard.wanted = "two"
            await asyncio.gather(*(q.queues() for _ in range(8)))
        assert calls == ["one", "two"]


async def test_a_call_is_repeated_once_only(guard: Any) -> None:
    numbers = iter(range(100))
    async with connect(guard.url, credential=lambda: f"n{next(numbers)}", options=QUICK) as q:
        with pytest.raises(penstock.PenstockError):
            await q.queues()
    assert len(guard.heads) == 2
    assert next(numbers) == 2


@pytest.mark.parametrize(
    "source",
    [
        lambda: "",
        lambda: None,
        lambda: "two words",
        lambda: 1 / 0,
        lambda: b"bytes",
        "file:/does/not/exist",
        "file:/",
    ],
    ids=range(7),
)
async def test_without_a_credential_nothing_is_sent(guard: Any, source: Any) -> None:
    async with connect(guard.url, credential=source, options=QUICK) as q:
        with pytest.raises(Unauthenticated):
            await q.queues()
    assert guard.heads == []


@pytest.mark.parametrize("source", ["", "two words", 5, b"x", "file:", "file://"])
def test_bad_sources_are_refused(source: Any) -> None:
    with pytest.raises(BadInput) as refusal:
        check_source(source)
    assert refusal.value.field == "credential"


def test_the_sync_twin_takes_a_function(tmp_path: Path) -> None:
    guard = Guard()

    async def serve() -> None:
        url = await guard.start()
        await asyncio.to_thread(use, url)
        await guard.stop()

    def use(url: str) -> None:
        with penstock.sync.connect(url, credential=lambda: "one", options=QUICK) as q:
            assert q.queues() == ()

    asyncio.run(serve())


def test_an_app_takes_a_function() -> None:
    penstock.App("http://localhost:1", credential=lambda: "one")


def test_a_path_is_refused_with_how_to_name_a_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'file:' and the path") as refused:
        connect("http://localhost", credential=tmp_path / "key")  # type: ignore[arg-type]
    assert refused.value.field == "credential"
