"""The inbox of a store in files: what is moved there is published exactly once (P4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import penstock
from penstock import Broker, BrokerOptions, EngineOptions
from penstock.errors import StoreFull
from penstock.keepers import InboxFiles, Keepers
from penstock.keepers import inbox as inbox_module
from penstock.model.limits import Limits
from penstock.model.message import Offset
from penstock.testing.laws import law

OPTIONS = BrokerOptions(engine=EngineOptions(limits=Limits(payload_bytes=1000)))


async def opened(path: Path) -> tuple[Broker, InboxFiles]:
    q = await penstock.open(f"files://{path}", options=OPTIONS, keepers=False)
    root = q.engine.capabilities.inbox_root
    assert root == path
    return q, InboxFiles(q.engine, OPTIONS, root)


def put(path: Path, name: str, content: bytes, topic: str = "orders") -> Path:
    """As ``mv`` does it: written elsewhere, then renamed."""
    folder = path / "inbox" / topic
    folder.mkdir(parents=True, exist_ok=True)
    (path / "outside").write_bytes(content)
    (path / "outside").rename(folder / name)
    return folder / name


async def published(q: Broker, tenant: str = "default") -> list[tuple[str, bytes, object]]:
    page = await q.engine.read_log(tenant, Offset(0), 1000, payloads=True)
    return [
        (entry.message.topic, entry.payload or b"", entry.message.headers.get("file"))
        for entry in page.entries
    ]


def left(path: Path) -> list[str]:
    """Every file below the inbox."""
    return sorted(file.name for file in (path / "inbox").rglob("*") if file.is_file())


@law("P4")
async def test_a_file_becomes_a_message(tmp_path: Path) -> None:
    q, keeper = await opened(tmp_path / "store")
    put(tmp_path / "store", "b.json", b'{"b": 1}')
    put(tmp_path / "store", "a.bin", bytes(range(256)), "other")
    assert (await keeper.run()).work == 2
    assert sorted(await published(q)) == [
        ("orders", b'{"b": 1}', "b.json"),
        ("other", bytes(range(256)), "a.bin"),
    ]
    assert left(tmp_path / "store") == []
    assert (await keeper.run()).work == 0
    await q.close()


@law("P4")
async def test_the_same_name_and_inode_twice_are_two_messages(tmp_path: Path) -> None:
    q, keeper = await opened(tmp_path / "store")
    for number in range(5):
        put(tmp_path / "store", "job", b"%d" % number)
        await keeper.run()
    assert [payload for _, payload, _ in await published(q)] == [b"0", b"1", b"2", b"3", b"4"]
    await q.close()


@law("P4")
async def test_a_crash_between_the_commit_and_the_removal_publishes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, keeper = await opened(tmp_path / "store")
    put(tmp_path / "store", "job", b"once")

    def crash(path: Path, missing_ok: bool = False) -> None:
        raise OSError("killed here")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", crash)
        with pytest.raises(OSError, match="killed here"):
            await keeper.run()
    assert len(left(tmp_path / "store")) == 1
    await q.close()
    q, keeper = await opened(tmp_path / "store")
    await keeper.run()
    assert await published(q) == [("orders", b"once", "job")]
    assert left(tmp_path / "store") == []
    await q.close()


@law("P4")
async def test_a_crash_between_taking_and_publishing_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, keeper = await opened(tmp_path / "store")
    put(tmp_path / "store", "job", b"kept")

    async def full(*_: object, **__: object) -> None:
        raise StoreFull("no space")

    monkeypatch.setattr(q.engine, "publish", full)
    with pytest.raises(StoreFull):
        await keeper.run()
    assert await published(q) == []
    await q.close()
    q, keeper = await opened(tmp_path / "store")
    await keeper.run()
    assert await published(q) == [("orders", b"kept", "job")]
    await q.close()


@law("E1")
async def test_a_refused_file_is_kept_with_the_reason(tmp_path: Path) -> None:
    store = tmp_path / "store"
    q, keeper = await opened(store)
    put(store, "large", bytes(2000))
    put(store, "large.json", b"x", "no topic")
    put(store, "fine", b"x")
    await keeper.run()
    put(store, "large", bytes(3000))
    await keeper.run()
    assert await published(q) == [("orders", b"x", "fine")]
    assert (store / "refused" / "orders" / "large").read_bytes() == bytes(2000)
    assert "over the limit" in (store / "refused" / "orders" / "large.error.txt").read_text()
    assert "topic" in (store / "refused" / "no topic" / "large.json.error.txt").read_text()
    # The second file of that name did not replace the first.
    assert len(list((store / "refused" / "orders").iterdir())) == 4
    assert left(store) == []
    await q.close()


async def test_what_is_not_a_file_to_publish_is_left_alone(tmp_path: Path) -> None:
    store = tmp_path / "store"
    q, keeper = await opened(store)
    put(store, ".hidden.XyZ", b"a copy in progress by rsync")
    (store / "inbox" / "orders" / "folder").mkdir()
    (store / "inbox" / "orders" / "link").symlink_to("/etc/hostname")
    os.mkfifo(store / "inbox" / "orders" / "pipe")
    (store / "inbox" / "loose").write_bytes(b"in no topic")
    assert (await keeper.run()).work == 0
    assert await published(q) == []
    await q.close()


async def test_a_file_that_is_being_copied_waits(tmp_path: Path) -> None:
    store = tmp_path / "store"
    q, keeper = await opened(store)
    path = put(store, "growing", b"half")
    with path.open("ab") as file:
        assert (await keeper.run()).work == 0
        file.write(b" and half")
    assert (await keeper.run()).work == 1
    assert await published(q) == [("orders", b"half and half", "growing")]
    await q.close()


@law("T1")
async def test_another_tenant_has_its_own_inbox(tmp_path: Path) -> None:
    store = tmp_path / "store"
    q, keeper = await opened(store)
    (store / "tenants" / "acme").mkdir(parents=True)
    put(store / "tenants" / "acme", "job", b"theirs")
    await keeper.run()
    assert await published(q) == []
    assert await published(q, "acme") == [("orders", b"theirs", "job")]
    await q.close()


async def test_many_files_take_several_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "FILES_A_PASS", 4)
    store = tmp_path / "store"
    q, keeper = await opened(store)
    for number in range(10):
        put(store, f"{number}", b"%d" % number)
    passes = [await keeper.run() for _ in range(3)]
    assert [(one.work, one.more) for one in passes] == [(4, True), (4, True), (2, False)]
    assert len(await published(q)) == 10
    await q.close()


async def test_a_full_queue_does_not_hold_up_other_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "FILES_A_PASS", 2)
    q, keeper = await opened(tmp_path / "store")
    await q.create_queue("small", "topic = 'orders'", max_depth=1)
    for number in range(6):
        put(tmp_path / "store", f"{number}.json", b"%d" % number)
    await keeper.run()
    put(tmp_path / "store", "b.json", b"other", "others")
    await keeper.run()
    assert [item[0] for item in await published(q)] == ["orders", "others"]
    for _ in range(6):
        (delivery,) = await q.claim("small")
        await q.ack(delivery)
        while (await keeper.run()).more:
            pass
    assert left(tmp_path / "store") == []
    assert len(await published(q)) == 7
    await q.close()


async def test_only_a_store_in_files_has_the_keeper(tmp_path: Path) -> None:
    for url, names in (
        ("memory://", ["sweep", "catch-up", "webhooks"]),
        (f"files://{tmp_path / 'store'}", ["sweep", "catch-up", "webhooks", "inbox"]),
    ):
        async with penstock.open(url, keepers=False) as q:
            keepers = Keepers(q.engine, q.engine.clock, options=OPTIONS)
            assert [report.name for report in keepers.reports()] == names
