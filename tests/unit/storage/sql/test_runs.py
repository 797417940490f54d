"""Runs put in claim order (C4), and messages that are put in blocks (L1)."""

from __future__ import annotations

from random import Random

import pytest

from penstock.model.message import HeaderValue, NewMessage, Published
from penstock.model.queue import QueuePolicy, Start
from penstock.storage.engines import open_engine
from penstock.storage.sql.appending import parts_of
from penstock.storage.sql.claim import _before, _first
from penstock.storage.sql.entries import Entry, blocks
from penstock.storage.sql.phases import Phase
from penstock.storage.sql.runs import Life, Run, in_order, message_id
from penstock.storage.sql.segments import MAX_SEGMENT_BYTES, MAX_SEGMENT_ENTRIES, Head, Segment
from penstock.testing.laws import law
from tests.databases import store_url
from tests.unit.storage.sql.callers import DIALECTS


def _runs(random: Random) -> list[Run]:
    """A few runs, some of them of the same segment and rank, which never share a member."""
    runs = []
    for rank in random.sample(range(3), 2):
        for segment in random.sample(range(4), 2):
            whose = [random.randrange(3) for _ in range(random.randrange(1, 9))]
            for one in set(whose):
                members = [index for index, owner in enumerate(whose) if owner == one]
                runs.append(Run(1, Phase.RETURNED, rank, segment, members, Life(0)))
    random.shuffle(runs)
    return runs


@law("C4")
@pytest.mark.parametrize("seed", range(200))
def test_stretches_are_the_deliveries_in_order(seed: int) -> None:
    random = Random(seed)
    runs = _runs(random)
    wanted = random.randrange(1, 12)
    every = sorted((run.rank, int(i), id(run)) for run in runs for i in run.ids())
    bound = random.choice([None, every[random.randrange(len(every))][:2]])
    there = [one for one in every if bound is None or one[:2] <= bound]
    first, rest = _first(_before(in_order(runs, wanted), bound), wanted)
    assert _flat(first) == there[:wanted]
    part, others = _first(first, 2)
    assert _flat(part) + _flat(others) == _flat(first)
    assert len(_flat(part)) == min(2, len(there), wanted)
    assert all(members for _, members in (*first, *rest))


def _flat(stretches: object) -> list[tuple[int, int, int]]:
    return [
        (run.rank, int(message_id(run.segment, index)), id(run))
        for run, members in stretches  # type: ignore[attr-defined]
        for index in members
    ]


@law("L1")
@pytest.mark.parametrize(
    "sizes, parts",
    [
        ([1, 2, 3], [3]),
        ([MAX_SEGMENT_BYTES], [1]),
        ([MAX_SEGMENT_BYTES, 1], [1, 1]),
        ([MAX_SEGMENT_BYTES + 1, 5, 5], [1, 2]),
        ([5, MAX_SEGMENT_BYTES + 1, MAX_SEGMENT_BYTES + 1, 0], [1, 1, 1, 1]),
        ([MAX_SEGMENT_BYTES // 2] * 5, [2, 2, 1]),
        ([0] * (2 * MAX_SEGMENT_ENTRIES + 1), [MAX_SEGMENT_ENTRIES, MAX_SEGMENT_ENTRIES, 1]),
    ],
)
def test_blocks_go_into_segments(sizes: list[int], parts: list[int]) -> None:
    payloads = [bytes(size) for size in sizes]
    heads = [Head("t", 4, size, nth) for nth, size in enumerate(sizes)]
    found = blocks(heads, payloads, ())
    assert [len(block.heads) for block in found] == parts
    assert [head for block in found for head in block.heads] == heads
    assert [payload for block in found for payload in block.payloads] == payloads
    assert [block.size for block in found] == [sum(map(len, b.payloads)) for b in found]


def test_headers_count_as_bytes_of_a_segment() -> None:
    heavy: dict[str, HeaderValue] = {f"header-{number:02}": "v" * 245 for number in range(64)}
    heads = [Head("t", 4, 1, 0, headers=heavy) for _ in range(40)]
    found = blocks(heads, [b"x"] * 40, ())
    assert [len(block.heads) for block in found] == [8] * 5
    assert max(len(Segment.encode(block.heads)) for block in found) <= MAX_SEGMENT_BYTES + 4_096
    parts = parts_of([Entry(head, b"x", ()) for head in heads])
    assert [len(part.heads) for part in parts] == [8] * 5
    mixed = [Head("t", 4, 1, 0, headers={"a": 1, "b": "x", "c": True})] * 40
    (one,) = blocks(mixed, [b"x"] * 40, ())
    assert one.size == 40 * (1 + 3 + 1 + 1 + 4)


@law("L1")
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_batches_of_all_sizes_come_back_in_order(dialect: str) -> None:
    engine = await open_engine(store_url(dialect, "blocks"))
    try:
        await engine.put_queue("t", "q", QueuePolicy(filter="topic = 'q'"), Start())
        batches = [
            [NewMessage(b"%d" % n) for n in range(3)],
            [NewMessage(b"%d" % n * 60_000) for n in range(6)],
            [NewMessage(b"x", priority=n % 2, partition_key=str(n)) for n in range(4)],
            [NewMessage(bytes(MAX_SEGMENT_BYTES + 1)), NewMessage(b"last", headers={"a": 1})],
        ]
        told: list[Published] = []
        for batch in batches:
            told += (await engine.publish("t", "q", batch)).messages
        assert [one.id for one in told] == sorted({one.id for one in told})
        page = await engine.read_log("t", told[0].offset, 100, payloads=True)
        sent = [message for batch in batches for message in batch]
        assert [entry.payload for entry in page.entries] == [message.payload for message in sent]
        assert [entry.message.offset for entry in page.entries] == [one.offset for one in told]
        held = {one.message.id: one for one in await engine.claim("t", "q", "c", 100, None)}
        for one, message in zip(told, sent, strict=True):
            found = held[one.id]
            assert (found.payload, found.message.priority) == (message.payload, message.priority)
            assert found.message.partition_key == message.partition_key
            assert dict(found.message.headers) == dict(message.headers)
    finally:
        await engine.close()
