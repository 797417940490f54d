"""Pages of docs/how-to/ whose commands need servers, followed to the letter."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import Forbidden
from tests.object_stores import s3_endpoint, s3_url
from tests.service.reader import Reader, Step, steps

FOLDER = Path(__file__).parents[2] / "docs" / "how-to"
BINARIES = Path(sys.executable).parent


@pytest.fixture
def read(tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """``read(**replaced)``: a reader in an empty folder, with this Penstock on the path."""
    readers: list[Reader] = []

    def begin(replaced: dict[str, str] | None = None) -> Reader:
        found = Reader(tmp_path, BINARIES, replaced)
        # The environment of the tests has the sources.
        found.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        readers.append(found)
        return found

    yield begin
    for reader in readers:
        reader.close()


def page(name: str) -> list[Step]:
    return steps((FOLDER / name).read_text())


def defined(reader: Reader, found: list[Step]) -> dict[str, Any]:
    """What the Python of a page defines."""
    names: dict[str, Any] = {"__name__": "page"}
    for step in found:
        if step.language == "python":
            exec(compile(reader.text_of(step), "page", "exec"), names)
    return names


def test_backup(read: Callable[..., Reader]) -> None:
    reader = read()
    found = page("backup.md")
    assert [step.promised for step in found if step.promised]
    for step in found:
        reader.shell(step)


def test_access_and_tls(read: Callable[..., Reader], monkeypatch: pytest.MonkeyPatch) -> None:
    reader = read()
    found = page("access-and-tls.md")
    # The context of the page is about this server.
    del reader.environment["PENSTOCK_URL"]
    names = defined(reader, found)
    monkeypatch.chdir(reader.folder)
    for step in found:
        if step.language == "python":
            asyncio.run(names["publish"]())
            continue
        if "key create --name me" in step.text:
            reader.end("penstock serve")
            reader.shell(step)
            (reader.folder / "background.log").unlink()
            reader.shell(next(one for one in found if one.text.startswith("penstock serve")))
        else:
            reader.shell(step)
    keys = json.loads(reader.run("penstock key list --json", None))
    assert sorted(key["name"] for key in keys if key["name"] in {"me", "shop", "billing"}) == [
        "billing",
        "me",
        "shop",
    ]
    asyncio.run(names["publish"]())

    async def publish_as(key: str) -> None:
        url = f"https://localhost:{reader.port}"
        async with penstock.connect(url, credential=f"file:{key}", ca="cert.pem") as q:
            await q.publish("orders", b"")

    with pytest.raises(Forbidden):
        asyncio.run(publish_as("billing.key"))


@pytest.mark.slow
def test_servers_on_a_bucket(read: Callable[..., Reader]) -> None:
    reader = read(
        {"slatedb+s3://my-bucket/queues?region=eu-west-1": s3_url(s3_endpoint("seaweedfs"))}
    )
    found = page("object-store.md")
    for step in found:
        if step.language == "sh":
            reader.shell(step)
    publish = defined(reader, found)["publish"]
    asyncio.run(publish(1))
    status = "penstock status --json --url http://127.0.0.1:8080,http://127.0.0.1:8081"
    script = reader.text_of(Step("sh", status))
    before = json.loads(reader.run(script, None))
    [writer] = [server["server"] for server in before if server["role"] == "writer"]
    reader.end(
        next(name for name in reader.running if f"--advertised-url {writer}" in name),
        signal.SIGKILL,
    )
    asyncio.run(publish(2))
    script = reader.text_of(Step("sh", f"{status} || true"))
    after = json.loads(reader.run(script, None))
    [other] = [server["server"] for server in after if server["role"] == "writer"]
    assert other != writer
