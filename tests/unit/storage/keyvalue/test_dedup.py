from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from penstock.errors import StoreCorrupt
from penstock.model.delivery import Ack, Outcome, Receipt, Verdict
from penstock.model.message import MessageId, Offset, Published
from penstock.model.queue import TopicPolicy
from penstock.model.states import State
from penstock.storage.dedup_scope import stored_id
from penstock.storage.keyvalue.adapters.memory import MemoryAdapter
from penstock.storage.keyvalue.dedup import Dedup, FirstPublish, slot_value
from penstock.storage.keyvalue.encoding import seal
from penstock.storage.keyvalue.keys import (
    DEDUP_SLOT_PREFIX,
    batch_key,
    dedup_key,
    dedup_slot_key,
    settle_key,
)
from penstock.storage.keyvalue.stage import Stage
from penstock.storage.repetition import decode_reply, encode_reply, settle_id
from penstock.testing.laws import law

MINUTE = 60_000
HOUR = 60 * MINUTE


def _sweep(dedup: Dedup, now: int, limit: int, window_of: Callable[[str, str], int]) -> int:
    """Forget up to so many ids; returns how many."""
    total = 0
    for _, count in dedup.forget_old(now, window_of):
        total += count
        if total >= limit:
            break
    return total


def _window(ms: int) -> Callable[[str, str], int]:
    return lambda _tenant, _topic: ms


def _remember(dedup: Dedup, name: str, offset: int, at: int, window_ms: int) -> None:
    dedup.remember("t", "orders", name, FirstPublish(offset, offset, at), window_ms)


def _ids(adapter: MemoryAdapter) -> list[str]:
    prefix = dedup_key("t", "orders", "")
    return [key[len(prefix) :].decode() for key, _ in adapter.scan(prefix, prefix + b"\xff")]


def _slots(adapter: MemoryAdapter) -> list[bytes]:
    return [key for key, _ in adapter.scan(DEDUP_SLOT_PREFIX, DEDUP_SLOT_PREFIX + b"\xff")]


def test_golden_records(stage: Stage) -> None:
    dedup = Dedup(stage)
    dedup.remember("t", "orders", "id1", FirstPublish(5, 6, 61_000), HOUR)
    key = bytes.fromhex("010710 742f6f726465727300 696431")
    slot_key = bytes.fromhex("010711 000000000000003d 0000000000000006")
    value = bytes.fromhex("0500000000000000 0600000000000000 48ee000000000000")
    assert stage.take().writes == {
        key: seal(value),
        slot_key: seal(bytes.fromhex("0100 0f000000") + key),
    }


def test_golden_record_of_an_id_in_a_partition(stage: Stage) -> None:
    """The example of docs/formats.md."""
    policy = TopicPolicy(dedup_scope="partition_key")
    stored = stored_id(policy, "id1", "p")
    first = FirstPublish(5, 6, 61_000)
    Dedup(stage).remember("t", "orders", stored, first, HOUR, partitioned=True)
    key = bytes.fromhex("01071b 742f6f726465727300") + (
        b"072fb7c2fb8755882812d5a6d50dbe08eee14da88b5839291afaaa3dbd61c6f5"
    )
    value = bytes.fromhex("0500000000000000 0600000000000000 48ee000000000000")
    assert stage.get(key) == seal(value)
    assert Dedup(stage).find("t", "orders", stored, partitioned=True) == first
    assert Dedup(stage).find("t", "orders", stored) is None


def test_golden_records_of_batches(stage: Stage) -> None:
    """One that is remembered for as long as the topic says, and one with a window of its own."""
    dedup = Dedup(stage)
    first = [
        Published(MessageId(5), Offset(6), queues=3),
        Published(MessageId(6), Offset(7), queues=3),
    ]
    dedup.remember_batch("t", "orders", "b1", first, 61_000, HOUR, None)
    dedup.remember_batch("t", "orders", "b2", first, 61_000, HOUR, 2 * HOUR)
    key = "010717 742f6f726465727300 62"
    run = "0300000000000000 0000000000000000 00000000 04"
    run += "0500000000000000 0600000000000000 02000000 00"
    value = bytes.fromhex(f"48ee000000000000 {run}")
    writes = stage.take().writes
    assert writes[bytes.fromhex(key + "31")] == seal(value)
    assert writes[bytes.fromhex(key + "32")] == seal(value + bytes.fromhex("00dd6d0000000000"))
    slots = [key for key in writes if key.startswith(DEDUP_SLOT_PREFIX)]
    assert slots == [dedup_slot_key(61, 7), dedup_slot_key(121, 7)]


def test_a_batch_of_the_release_before_1_0_has_no_number_of_queues(stage: Stage) -> None:
    value = bytes.fromhex("48ee000000000000 0500000000000000 0600000000000000 02000000 00")
    stage.put(batch_key("t", "orders", "b"), seal(value))
    first = (Published(MessageId(5), Offset(6)), Published(MessageId(6), Offset(7)))
    assert Dedup(stage).find_batch("t", "orders", "b", 61_000, HOUR) == first


def test_a_batch_keeps_the_number_of_queues_of_every_message(stage: Stage) -> None:
    first = (
        Published(MessageId(5), Offset(5), queues=0),
        Published(MessageId(6), Offset(6), queues=0),
        Published(MessageId(7), Offset(7), queues=2),
        Published(MessageId(1), Offset(1), duplicate=True),
        Published(MessageId(2), Offset(8), replaced=True, queues=2),
        Published(MessageId(9), Offset(9), queues=1),
        Published(MessageId(9), Offset(9), duplicate=True),
    )
    dedup = Dedup(stage)
    dedup.remember_batch("t", "orders", "b", first, 0, HOUR, None)
    assert dedup.find_batch("t", "orders", "b", 0, HOUR) == first


def test_a_batch_is_swept_when_its_own_window_is_over(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    """The topic's window has nothing to say, be it longer or shorter."""
    dedup = Dedup(stage)
    first = (Published(MessageId(5), Offset(6), duplicate=True), Published(MessageId(9), Offset(7)))
    dedup.remember_batch("t", "orders", "b", first, 0, MINUTE, HOUR)
    commit()
    dedup = Dedup(Stage(adapter))
    for now in (0, MINUTE, HOUR - 1):
        assert dedup.find_batch("t", "orders", "b", now, 0) == first
    assert dedup.find_batch("t", "orders", "b", HOUR, 2 * HOUR) is None
    dedup = Dedup(stage)
    assert _sweep(dedup, HOUR + MINUTE - 1, 100, _window(0)) == 0
    assert _sweep(dedup, HOUR + MINUTE, 100, _window(2 * HOUR)) == 1
    commit()
    assert adapter.get(batch_key("t", "orders", "b")) is None
    assert _slots(adapter) == []


def test_an_id_is_known_at_once_and_after_a_restart(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    assert dedup.find("t", "orders", "a") is None
    _remember(dedup, "a", 7, 0, HOUR)
    assert dedup.find("t", "orders", "a") == FirstPublish(7, 7, 0)
    commit()
    assert Dedup(Stage(adapter)).find("t", "orders", "a") == FirstPublish(7, 7, 0)


@law("T1")
def test_ids_belong_to_a_tenant_and_a_topic(stage: Stage) -> None:
    dedup = Dedup(stage)
    _remember(dedup, "a", 7, 0, HOUR)
    assert dedup.find("t", "order", "a") is None
    assert dedup.find("u", "orders", "a") is None


def test_one_commit_writes_one_slot_record_a_minute(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    for number in range(50):
        _remember(dedup, f"a{number}", number, 0, MINUTE)
    _remember(dedup, "b", 50, 0, HOUR)
    commit()
    assert _slots(adapter) == [dedup_slot_key(1, 50), dedup_slot_key(60, 50)]


def test_ids_are_forgotten_when_their_window_is_over(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    _remember(dedup, "a", 0, 0, MINUTE)
    _remember(dedup, "b", 1, 0, HOUR)
    commit()
    assert _sweep(dedup, MINUTE, 100, _window(HOUR)) == 0
    assert _sweep(dedup, 2 * MINUTE, 100, _window(MINUTE)) == 1
    commit()
    assert _ids(adapter) == ["b"]
    assert _sweep(dedup, 2 * HOUR, 100, _window(HOUR)) == 1
    commit()
    assert (_ids(adapter), _slots(adapter)) == ([], [])


def test_a_sweep_stops_near_its_limit_and_goes_on(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    for number in range(5):
        _remember(dedup, f"a{number}", number, 0, MINUTE)
        commit()
    counts = []
    while _ids(adapter):
        counts.append(_sweep(dedup, 2 * MINUTE, 2, _window(MINUTE)))
        commit()
    assert counts == [2, 2, 1]
    assert _slots(adapter) == []


def test_a_longer_window_moves_ids_to_a_later_slot(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    _remember(dedup, "a", 0, 0, MINUTE)
    commit()
    assert _sweep(dedup, 2 * MINUTE, 100, _window(HOUR)) == 0
    commit()
    assert _ids(adapter) == ["a"]
    assert _sweep(dedup, 2 * HOUR, 100, _window(HOUR)) == 1


def test_an_id_used_again_after_its_window_is_forgotten_later(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    """The old slot names the new record too, and has to leave it alone."""
    dedup = Dedup(stage)
    _remember(dedup, "a", 0, 0, MINUTE)
    commit()
    _remember(dedup, "a", 1, 2 * MINUTE, MINUTE)
    commit()
    assert _sweep(dedup, 2 * MINUTE + 1, 100, _window(MINUTE)) == 0
    commit()
    assert dedup.find("t", "orders", "a") == FirstPublish(1, 1, 2 * MINUTE)
    assert _sweep(dedup, 4 * MINUTE, 100, _window(MINUTE)) == 1
    commit()
    assert (_ids(adapter), _slots(adapter)) == ([], [])


def test_moved_ids_do_not_push_others_out_of_their_slot(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    _remember(dedup, "a", 0, 0, MINUTE)
    commit()
    _remember(dedup, "b", 1, 0, HOUR)
    commit()
    _sweep(dedup, 2 * MINUTE, 100, _window(HOUR))
    commit()
    assert _sweep(dedup, 2 * HOUR, 100, _window(HOUR)) == 2
    commit()
    assert _ids(adapter) == []


@law("X1")
def test_damaged_records(adapter: MemoryAdapter, stage: Stage) -> None:
    adapter.write(
        {dedup_key("t", "orders", "a"): bytes(28), dedup_slot_key(0, 0): b"\x01\x00" + bytes(4)},
        [],
        sync=True,
    )
    dedup = Dedup(stage)
    with pytest.raises(StoreCorrupt, match="idempotency id"):
        dedup.find("t", "orders", "a")
    with pytest.raises(StoreCorrupt, match="idempotency slot"):
        _sweep(dedup, HOUR, 100, _window(0))


def test_golden_record_of_a_settle_with_publish(stage: Stage) -> None:
    """The example of docs/formats.md."""
    ack = Ack(Receipt("0-26f05b59d3b20001-2-1"))
    settle = settle_id([ack])
    assert settle is not None
    outcome = Outcome(ack.receipt, Verdict.OK, State.DONE)
    reply = encode_reply([outcome], [Published(MessageId(8), Offset(8), queues=1)])
    at = 1_700_000_001_000
    Dedup(stage).remember_settle("default", "orders", settle, reply, at, 8)
    key = bytes.fromhex("01071a 64656661756c742f6f7264657273 00") + settle.encode()
    assert settle == "a532031dc74578eb40df02713089e2db"
    value = bytes.fromhex("e86be5cf8b010000 929192a4646f6e65c091950808c2c201 05e6cd28")
    assert stage.get(key) == value


def test_a_settle_of_the_release_before_1_0_has_no_number_of_queues() -> None:
    ack = Ack(Receipt("0-26f05b59d3b20001-2-1"))
    reply = decode_reply(bytes.fromhex("929192a4646f6e65c091940808c2c2"), [ack], "fsync")
    assert reply.published == (Published(MessageId(8), Offset(8)),)
    assert reply.outcomes == (Outcome(ack.receipt, Verdict.OK, State.DONE),)


def test_a_settle_is_forgotten_with_its_window(stage: Stage) -> None:
    dedup = Dedup(stage)
    dedup.remember_settle("t", "q", "id", b"answer", 0, 0)
    dedup.write_to(stage)
    assert dedup.find_settle("t", "q", "id", HOUR - 1) == b"answer"
    assert dedup.find_settle("t", "q", "id", HOUR) is None
    assert _sweep(dedup, HOUR - MINUTE, 10, _window(0)) == 0
    assert _sweep(dedup, HOUR + MINUTE, 10, _window(0)) == 1
    assert stage.get(settle_key("t", "q", "id")) is None


def test_no_slot_grows_with_the_commits_of_its_minute(stage: Stage, adapter: MemoryAdapter) -> None:
    """A record that grew would be written again by each, and its count has 16 bits."""
    dedup = Dedup(stage)
    sizes = []
    for number in range(50):
        dedup.remember_settle("t", "q", f"{number:02}", b"answer", 0, 7)
        batch = stage.take()
        sizes.append(sum(len(value or b"") for value in batch.writes.values()))
        adapter.write(batch.writes, batch.removed, batch.sync)
        stage.committed()
    assert len(set(sizes)) == 1
    assert len(_slots(adapter)) == 50
    # After the store was opened again, numbers begin at the end of the log.
    again = Dedup(stage)
    again.remember_settle("t", "q", "50", b"answer", 0, 7)
    assert len(stage.take().writes) == 2


class Scanned(MemoryAdapter):
    """Remembers where scans began."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[bytes] = []

    def scan(
        self, start: bytes, end: bytes, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        self.starts.append(start)
        return super().scan(start, end, reverse=reverse)


def test_a_sweep_does_not_pass_the_slots_that_were_removed() -> None:
    """In the store a deleted record is passed like any other, until a compaction."""
    adapter = Scanned()
    stage = Stage(adapter)
    dedup = Dedup(stage)

    def commit() -> None:
        batch = stage.take()
        adapter.write(batch.writes, batch.removed, batch.sync)
        stage.committed()

    for number in range(5):
        _remember(dedup, f"id{number}", number, number * MINUTE, HOUR)
        commit()
    assert _sweep(dedup, HOUR + 5 * MINUTE, 100, _window(HOUR)) == 5
    commit()
    adapter.starts.clear()
    assert _sweep(dedup, HOUR + 5 * MINUTE, 100, _window(HOUR)) == 0
    assert all(start > dedup_slot_key(64, 0) for start in adapter.starts)
    # A slot below those that were removed is found again.
    _remember(dedup, "late", 9, 0, HOUR)
    commit()
    assert _sweep(dedup, HOUR + 6 * MINUTE, 100, _window(HOUR)) == 1
    commit()
    assert (_ids(adapter), _slots(adapter)) == ([], [])


def test_a_slot_that_is_written_below_a_sweep_is_not_lost(
    stage: Stage, adapter: MemoryAdapter, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    for number in range(3):
        _remember(dedup, f"id{number}", number, 10 * MINUTE, HOUR)
    _remember(dedup, "next", 3, 11 * MINUTE, HOUR)
    commit()
    sweep = dedup.forget_old(2 * HOUR, _window(HOUR))
    next(sweep)
    _remember(dedup, "late", 9, 0, HOUR)
    commit()
    assert sum(count for _, count in sweep) == 4
    commit()
    assert (_ids(adapter), _slots(adapter)) == ([], [])


def test_no_slot_record_is_written_again(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    """Neither by a later commit at the same offset, nor after reopening, nor above other keys."""
    dedup = Dedup(stage)
    for name in "abc":
        _remember(dedup, name, 7, 0, MINUTE)
        commit()
    stage.put(dedup_slot_key(1, 20), slot_value([]))
    commit()
    reopened = Dedup(stage)
    _remember(reopened, "d", 7, 0, MINUTE)
    _remember(reopened, "e", 7, 0, HOUR)
    commit()
    _remember(reopened, "f", 30, 0, MINUTE)
    commit()
    serials = [7, 8, 9, 20, 21, 30]
    slots = [dedup_slot_key(1, serial) for serial in serials]
    assert _slots(adapter) == [*slots, dedup_slot_key(60, 7)]
    assert _sweep(reopened, 2 * MINUTE, 100, _window(MINUTE)) == 5


def test_the_ends_of_many_slots_are_found_again(
    adapter: MemoryAdapter, stage: Stage, commit: Callable[[], int]
) -> None:
    dedup = Dedup(stage)
    for turn in range(2):
        for minute in range(1, 100):
            _remember(dedup, f"{turn}-{minute}", 7, 0, minute * MINUTE)
            commit()
    expected = [dedup_slot_key(minute, serial) for minute in range(1, 100) for serial in (7, 8)]
    assert _slots(adapter) == expected
