"""A store in files after power loss, cuts and flipped bits: whole, or refused (P1, P2, S3, X1).

Of the journal everything up to the last fdatasync survives a power loss, and of the rest any
sectors. Message files that no checkpoint has synced, and the directories of queues, may be missing,
empty or full of zeros.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Ack, Nack, Reject
from penstock.model.message import NewMessage, Offset
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.contract import EngineOptions
from penstock.storage.keyvalue.adapters.files import adapter as adapter_module
from penstock.storage.keyvalue.adapters.files import checkpoint as checkpoint_module
from penstock.storage.keyvalue.adapters.files.adapter import FilesAdapter
from penstock.storage.keyvalue.adapters.files.frames import read_frames
from penstock.storage.keyvalue.adapters.files.journal import read_title
from penstock.storage.keyvalue.adapters.files.recovery import read_store
from penstock.storage.keyvalue.adapters.mark_file import MarkFile
from penstock.storage.keyvalue.chain import check_links, read_links
from penstock.storage.keyvalue.encoding import prefix_end
from penstock.storage.keyvalue.engine import KeyValueEngine
from penstock.storage.keyvalue.keys import LINK_PREFIX
from penstock.storage.keyvalue.repair import accept_loss, examine
from penstock.testing.clock import FakeClock
from penstock.testing.laws import law
from penstock.testing.simulation.local_files import LocalFiles
from penstock.testing.simulation.local_stores import LocalStore
from tests.crash.program import ALL, TENANT, Program, everything, states
from tests.live_copy import copy_store

SECTOR = 512


async def open_files(path: Path, clock: FakeClock) -> KeyValueEngine:
    options = EngineOptions(clock=clock, jitter=lambda ceiling_ms: ceiling_ms // 2)
    return await KeyValueEngine.open(FilesAdapter(path), options)


def adapter_of(engine: KeyValueEngine) -> FilesAdapter:
    adapter = engine._core.adapter
    assert isinstance(adapter, FilesAdapter)
    return adapter


@pytest.fixture
def small_journals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several checkpoints in a short program, which do not sync the disk of this machine."""
    monkeypatch.setattr(adapter_module, "CHECKPOINT_BYTES", 30_000)
    for module in (adapter_module, checkpoint_module):
        monkeypatch.setattr(module, "sync_file_system", lambda _: None)


# -- power loss ----------------------------------------------------------------------------


def lose_power(store: Path, synced: int, random: Random) -> None:
    """Drop what was not synced: ``synced`` bytes of the last journal are safe."""
    last = max((store / "journal").glob("*.journal"))
    content = bytearray(last.read_bytes())
    for start in range(synced - synced % SECTOR, len(content), SECTOR):
        if random.random() < 0.4:
            begin, end = max(start, synced), min(start + SECTOR, len(content))
            content[begin:end] = bytes(end - begin)
    del content[random.randint(synced, len(content)) :]
    last.write_bytes(content)
    kept = {path.name for path in synced_messages(store)}
    for path in (store / "messages").glob("*/*"):
        fate = random.randrange(4)
        if path.name in kept or fate == 0:
            continue
        size = path.stat().st_size
        path.unlink()
        if fate > 1:
            path.write_bytes(b"" if fate == 2 else bytes(size))
    shutil.rmtree(store / "queues", ignore_errors=True)


def synced_messages(store: Path) -> list[Path]:
    """The message files that a checkpoint has synced: those of the snapshot's payloads."""
    number = max(int(path.stem) for path in (store / "journal").glob("*.snapshot"))
    only = store.with_name("only-the-snapshot")
    shutil.rmtree(only, ignore_errors=True)
    only.mkdir()
    for kind in ("snapshot", "journal"):
        name = f"{number:010}.{kind}"
        shutil.copyfile(store / "journal" / name, only / name)
    journal = only / f"{number:010}.journal"
    found = read_store(only)
    written = {offset for region in found.behind for offset in region.offsets}
    journal.unlink()
    offsets = [offset for offset in found.payloads.copy() if offset not in written]
    return [store / "messages" / f"{o // 1000:014}" / f"{o:017}" for o in offsets]


@law("P1", "P2", "S3")
@pytest.mark.usefixtures("small_journals")
@pytest.mark.parametrize("seed", range(3))
async def test_after_a_power_loss_the_store_is_what_it_was_after_a_commit(
    tmp_path: Path, seed: int
) -> None:
    random, clock = Random(seed), FakeClock()
    engine = await open_files(tmp_path / "store", clock)
    program = Program(engine, clock, seed)
    await program.begin()
    moments: dict[int, tuple[int, Mapping[str, object]]] = {}
    images: list[tuple[Path, int, int]] = []
    synced = 0
    for step in range(50):
        await program.step()
        chain, journal = engine._core.chain, adapter_of(engine)._journal
        assert chain is not None
        moments[chain.number] = clock.now(), await everything(engine)
        if journal.is_synced:
            synced = chain.number
        if step % 5 == 4:
            path = tmp_path / f"image{step}"
            copy_store(tmp_path / "store", path)
            safe = journal.size if journal.is_synced else synced_size(engine)
            lose_power(path, safe, random)
            images.append((path, synced, chain.number))
    await engine.close()
    for path, least, most in images:
        now = moments[max(n for n in moments if n <= most)][0]
        survivor = await open_files(path, FakeClock(now))
        chain = survivor._core.chain
        assert chain is not None
        assert chain.loaded is not None
        kept = chain.loaded.number
        assert least <= kept <= most, path.name
        if kept in moments:
            await survivor.close()
            survivor = await open_files(path, FakeClock(moments[kept][0]))
            assert await everything(survivor) == moments[kept][1], path.name
        for info in await survivor.list_queues(TENANT):
            found = await states(survivor, info.name)
            assert all(len(one) == 1 for one in found.values())
        await survivor.close()


def synced_size(engine: KeyValueEngine) -> int:
    """The size of the journal at its last sync, from the frames themselves."""
    adapter = adapter_of(engine)
    journal = adapter._journal
    content = journal.path.read_bytes()
    title, first = read_title(content, "journal", journal.number)
    end = first.end
    for frame in read_frames(content, first, title.salt):
        if frame.sequence <= journal._synced:
            end = frame.end
    return end


# -- damage --------------------------------------------------------------------------------


@pytest.fixture
async def killed(tmp_path: Path) -> Path:
    """A small store as a kill leaves it."""
    engine = await open_files(tmp_path / "store", FakeClock())
    await engine.put_queue(TENANT, "q", QueuePolicy(bucket_size=1), Start())
    await engine.publish(TENANT, "t", [NewMessage(b"first"), NewMessage(bytes(700))])
    for delivery in await engine.claim(TENANT, "q", "c", 1, None):
        await engine.settle(TENANT, "q", [Ack(delivery.receipt)])
    await engine.publish(TENANT, "t", [NewMessage(b"last\x01")], "os")
    copy_store(tmp_path / "store", tmp_path / "killed")
    await engine.close()
    return tmp_path / "killed"


def recovered(store: Path) -> dict[bytes, bytes]:
    """The records, after all checks that opening makes before it changes anything."""
    found = read_store(store / "journal")
    stored = MarkFile(store).read()
    records = found.records
    keys = records.irange(LINK_PREFIX, prefix_end(LINK_PREFIX), (True, False))
    check_links(read_links(records[key] for key in keys), stored[0] if stored else None)
    payloads = {
        b"payload %d" % offset: payload.tobytes()
        for region in found.behind
        for offset, payload in region.rest()
    }
    return {**records, **payloads}


@law("X1")
async def test_a_flipped_bit_of_a_journal_is_refused(killed: Path) -> None:
    """One bit of every byte; test_frames flips all of them."""
    (journal,) = (killed / "journal").glob("*.journal")
    content = journal.read_bytes()
    whole = recovered(killed)
    with journal.open("r+b") as file:
        for place, byte in enumerate(content):
            os.pwrite(file.fileno(), bytes((byte ^ 1 << place % 8,)), place)
            with pytest.raises(StoreCorrupt):
                recovered(killed)
            os.pwrite(file.fileno(), bytes((byte,)), place)
    assert recovered(killed) == whole


@law("X1", "P2")
async def test_a_journal_that_is_cut_anywhere_is_a_prefix_of_commits_or_refused(
    killed: Path,
) -> None:
    (journal,) = (killed / "journal").glob("*.journal")
    content = journal.read_bytes()
    title, first = read_title(content, "journal", 1)
    ends = [first.end, *(frame.end for frame in read_frames(content, first, title.salt))]
    states_: dict[int, dict[bytes, bytes] | None] = {}
    for size in range(len(content), -1, -1):
        os.truncate(journal, size)
        try:
            states_[size] = recovered(killed)
        except StoreCorrupt:
            states_[size] = None
    for size, found in states_.items():
        whole = max((end for end in ends if end <= size), default=None)
        assert found == (None if whole is None else states_[whole]), size
    # The mark names a commit: cuts behind it are torn tails, the others are refused.
    kept = [states_[end] is not None for end in ends]
    assert kept == sorted(kept)
    assert kept[0] is False
    assert kept[-2:] == [True, True]


@law("X1")
@pytest.mark.parametrize("damage", ["flipped", "removed", "cut", "mark"])
async def test_a_loss_can_be_accepted(tmp_path: Path, damage: str) -> None:
    """What is kept is everything before the damage, and it can be worked on."""
    store, clock = tmp_path / "killed", FakeClock()
    engine = await open_files(tmp_path / "store", clock)
    published: dict[int, bytes] = {}
    for number in range(8):
        payload = b"%d" % number * 500
        reply = await engine.publish(TENANT, "t", [NewMessage(payload)])
        published[reply.messages[0].id] = payload
    assert engine._committer._marks is not None
    await engine._committer._marks.close()
    copy_store(tmp_path / "store", store)
    await engine.close()
    (journal,) = (store / "journal").glob("*.journal")
    content = bytearray(journal.read_bytes())
    content[len(content) // 2] ^= 4
    if damage == "flipped":
        journal.write_bytes(content)
    elif damage == "cut":
        os.truncate(journal, len(content) // 2)
    elif damage == "removed":
        journal.unlink()
    else:
        (store / "PENSTOCK").unlink()
    with pytest.raises(StoreCorrupt):
        await open_files(store, clock)
    assert examine(store) is not None
    if damage == "removed":
        with pytest.raises(StoreCorrupt):
            await accept_loss(store, EngineOptions(clock=clock))
        return
    loss = await accept_loss(store, EngineOptions(clock=clock))
    assert loss is not None
    assert bool(loss.set_aside) == (damage != "mark")
    survivor = await open_files(store, clock)
    page = await survivor.read_log(TENANT, Offset(0), ALL, payloads=True)
    kept = [(int(entry.message.id), entry.payload) for entry in page.entries]
    assert kept == list(published.items())[: len(kept)]
    assert len(kept) == 8 if damage == "mark" else 2 < len(kept) < 6
    reply = await survivor.publish(TENANT, "t", [NewMessage(b"new")])
    assert reply.messages[0].id > max(published)
    await survivor.close()
    assert examine(store) is None


# -- what a queue looks like ---------------------------------------------------------------


def shown(store: Path, queue: str) -> dict[str, dict[str, bytes]]:
    folder = store / "queues" / queue
    return {
        state.name: {path.name: path.read_bytes() for path in sorted(state.iterdir())}
        for state in sorted(folder.iterdir())
        if any(state.iterdir())
    }


async def test_the_directories_of_a_queue_show_its_deliveries(tmp_path: Path) -> None:
    store, clock = tmp_path / "store", FakeClock(1_700_000_000_123)
    engine = await open_files(store, clock)
    adapter = adapter_of(engine)
    await engine.put_queue(TENANT, "jobs", QueuePolicy(max_attempts=3), Start())
    batch = [NewMessage(b"%d" % n, priority=9 if n == 4 else 4) for n in range(6)]
    late = NewMessage(b"late", deliver_at=clock.now() + 1000)
    await engine.publish(TENANT, "orders", [*batch, late])
    adapter.flush()
    name = "5-{:017}.orders".format
    first, later = "0-00000000000000004.orders", "20231114T221321.123Z-" + name(6)
    rest = {name(n): b"%d" % n for n in (0, 1, 2, 3, 5)}
    assert shown(store, "jobs") == {
        "available": {first: b"4", **rest},
        "delayed": {later: b"late"},
    }
    assert list(shown(store, "jobs")["available"]) == [first, *sorted(rest)]  # Claim order.
    claimed = await engine.claim(TENANT, "jobs", "c", 4, None)
    await engine.settle(
        TENANT,
        "jobs",
        [Ack(claimed[0].receipt), Reject(claimed[1].receipt, "no"), Nack(claimed[2].receipt)],
    )
    adapter.flush()
    seen = shown(store, "jobs")
    assert {state: sorted(names) for state, names in seen.items() if state != "delayed"} == {
        "available": [name(3), name(5)],
        "done": [first],
        "failed": [name(0)],
        "in_flight": [name(2)],
    }
    assert (store / "queues" / "jobs.dlq" / "available" / name(0)).read_bytes() == b"0"
    message = store / "messages" / f"{0:014}" / f"{3:017}"
    assert message.samefile(store / "queues" / "jobs" / "available" / name(3))
    copy_store(store, tmp_path / "copy")
    await engine.close()
    # After a crash, also of the whole tree, the directories are what they were.
    shutil.rmtree(tmp_path / "copy" / "queues")
    (tmp_path / "copy" / "messages" / f"{0:014}" / f"{999:017}").write_bytes(b"of no commit")
    engine = await open_files(tmp_path / "copy", clock)
    adapter_of(engine).flush()
    assert shown(tmp_path / "copy", "jobs") == shown(store, "jobs") == seen
    assert not (tmp_path / "copy" / "messages" / f"{0:014}" / f"{999:017}").exists()
    await engine.delete_queue(TENANT, "jobs")
    adapter_of(engine).flush()
    assert list((tmp_path / "copy" / "queues").iterdir()) == []
    await engine.close()


async def test_a_replaced_message_is_shown_with_its_new_payload(tmp_path: Path) -> None:
    engine = await open_files(tmp_path, FakeClock())
    await engine.put_queue("acme", "q", QueuePolicy(), Start())
    await engine.publish("acme", "t", [NewMessage(b"old", key="k")])
    adapter_of(engine).flush()
    await engine.publish("acme", "t", [NewMessage(b"new", key="k")])
    adapter_of(engine).flush()
    assert list(shown(tmp_path / "tenants" / "acme", "q")["available"].values()) == [b"new"]
    await engine.close()


@pytest.mark.parametrize("seed", range(2))
async def test_the_directories_agree_with_the_engine_after_a_random_program(
    tmp_path: Path, seed: int
) -> None:
    clock = FakeClock()
    engine = await open_files(tmp_path, clock)
    program = Program(engine, clock, seed)
    await program.begin()
    for _ in range(120):
        await program.step()
    adapter_of(engine).flush()
    for info in await engine.list_queues(TENANT):
        found = await states(engine, info.name)
        seen = {
            int(name.removesuffix(".orders").rsplit("-", 1)[1]): state
            for state, names in shown(tmp_path, info.name).items()
            for name in names
        }
        dead = await states(engine, f"{info.name}.dlq")
        expected = {id_: str(where[0]) for id_, where in found.items() if id_ not in dead}
        expected |= {id_: "failed" for id_, where in dead.items() if where == ["available"]}
        assert seen == expected
    await engine.close()


@law("P1", "X1")
@pytest.mark.parametrize("seed", range(12))
def test_commits_that_a_kill_left_unsynced_may_be_lost_with_the_power(seed: int) -> None:
    """They are not damage, although the process that opened the store read them."""
    store: LocalStore = LocalFiles(seed)
    try:
        for sync in (True, False):
            store.write({b"key%d" % sync: b"x" * 5000}, (), sync)
        store = store.process_loss()
        store.write({b"later": b"x"}, (), False)
        store = store.power_loss()
        assert store.get(b"key1") == b"x" * 5000
    finally:
        store.remove()
