"""The log of chunks without a server: any order of attempts and rows, an end anywhere (P4)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from itertools import product

import pytest
from msgspec import Struct
from msgspec.structs import replace

from penstock.model.message import Message, MessageId, NewMessage, Offset
from penstock.pipeline.format.chunks import Kind, RowSequence, Stored, stored_of
from penstock.testing.laws import law

#: Later than any simulated time.
FUTURE = 1_000_000


class Chunks:
    """What a server keeps of the batches of one lane: the first under a number stays."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.now = 100
        self.rows: list[NewMessage] = []
        self._chunks: dict[int, list[Stored]] = {}

    def publish(self, number: int, rows: Sequence[NewMessage]) -> list[Stored] | None:
        """None: published; otherwise what was published under the number before."""
        assert rows
        self.now += 3
        if number in self._chunks:
            return self._chunks[number]
        assert number == len(self._chunks), "an attempt appends without knowing what is below"
        self.rows += rows
        self._chunks[number] = [
            stored_of(self.kind, self._logged(row), row.payload) for row in rows
        ]
        return None

    def _logged(self, row: NewMessage) -> Message:
        return Message(
            MessageId(1),
            Offset(1),
            "t",
            row.priority,
            self.now,
            max(self.now, row.deliver_at or 0),
            # As with a default of the topic.
            self.now + 50 if row.expires_at is None else row.expires_at,
            len(row.payload),
            0,
            row.partition_key,
            row.key,
            row.content_type,
            dict(row.headers),
            row.max_attempts,
        )


class Running:
    """An attempt that does one thing after the other."""

    def __init__(self, chunks: Chunks, rows: list[NewMessage], chunk_rows: int) -> None:
        self.lane = RowSequence(chunks.kind, chunk_rows, chunk_bytes=6)
        self.fed = 0
        self._chunks = chunks
        self._input = rows
        self._answer: tuple[list[Stored] | None] | None = None

    @property
    def has_ended(self) -> bool:
        return self.fed == len(self._input) and self.lane.is_empty

    def feed(self, count: int) -> None:
        """Rows may come while a chunk is on its way."""
        self.lane.add(self._input[self.fed : self.fed + count])
        self.fed = min(len(self._input), self.fed + count)

    def step(self) -> None:
        """Hear of the chunk that was sent, or send the next."""
        if self._answer is None:
            if not self.lane.is_empty:
                self._answer = (self._chunks.publish(self.lane.number, self.lane.chunk()),)
            return
        (lost,) = self._answer
        self._answer = None
        if lost is None:
            self.lane.won()
        else:
            self.lane.lost(lost)

    def run(self) -> None:
        while not self.has_ended:
            self.feed(3)
            self.step()


class Story(Struct):
    """Rows, the order in which each attempt has them, and who does what when."""

    rows: list[NewMessage]
    orders: list[list[int]]
    sizes: list[int]
    steps: list[tuple[int, int]]
    """An attempt, and how many rows it is given before it does something; then it may be dead."""


def draw_row(draw: random.Random, kind: Kind, content: NewMessage) -> NewMessage:
    return replace(
        content,
        key="k" if kind.keyed else None,
        deliver_at=draw.choice([1, 104, 107, 110, FUTURE, FUTURE + 1]) if kind.delayed else None,
        expires_at=draw.choice([150, 160]) if kind.expiring else None,
    )


def draw_content(draw: random.Random) -> NewMessage:
    return NewMessage(
        draw.choice([b"", b"a", b"ab", b"abcdefgh"]),
        draw.choice([{}, {"x": 1}, {"x": 1.0}, {"x": "1", "y": True}]),
        partition_key=draw.choice([None, "p"]),
        priority=draw.choice([4, 9]),
        max_attempts=draw.choice([None, None, 3]),
    )


def draw_story(draw: random.Random, kind: Kind) -> Story:
    # Few, so that rows are often the same, or differ in their times alone.
    contents = [draw_content(draw) for _ in range(draw.randint(1, 5))]
    rows = [draw_row(draw, kind, draw.choice(contents)) for _ in range(draw.randint(1, 14))]
    attempts = draw.randint(2, 3)
    return Story(
        rows,
        [draw.sample(range(len(rows)), len(rows)) for _ in range(attempts)],
        [draw.randint(1, 5) for _ in range(attempts)],
        [(draw.randrange(attempts), draw.randint(0, 4)) for _ in range(draw.randint(0, 50))],
    )


def play(kind: Kind, story: Story) -> Chunks:
    """Interleave the attempts, leave all but the last where they are, run that to its end."""
    chunks = Chunks(kind)
    attempts = [
        Running(chunks, [story.rows[place] for place in order], size)
        for order, size in zip(story.orders, story.sizes, strict=True)
    ]
    for number, count in story.steps:
        attempts[number].feed(count)
        attempts[number].step()
    attempts[-1].run()
    # Others that are still alive find nothing to do, whenever they come to their end.
    for attempt in attempts:
        attempt.run()
        assert attempt.lane.strays == 0
        assert attempt.lane.published + attempt.lane.found == len(story.rows)
    return chunks


def content(some: Sequence[NewMessage]) -> Counter[tuple[object, ...]]:
    return Counter(
        (
            row.payload,
            repr(sorted(row.headers.items())),
            row.key,
            None if row.key else row.partition_key,
            None if row.key else row.priority,
            row.expires_at,
        )
        for row in some
    )


def late(some: Sequence[NewMessage]) -> Counter[tuple[bytes, int | None]]:
    return Counter((row.payload, row.deliver_at) for row in some if (row.deliver_at or 0) >= FUTURE)


KINDS = [Kind(*flags) for flags in product((False, True), repeat=3)]


@law("P4")
@pytest.mark.parametrize("kind", KINDS, ids=[kind.name or "plain" for kind in KINDS])
def test_every_row_is_published_once_whatever_attempts_there_are(kind: Kind) -> None:
    for seed in range(500):
        story = draw_story(random.Random(seed), kind)
        chunks = play(kind, story)
        assert content(chunks.rows) == content(story.rows), f"seed {seed}"
        if not kind.keyed:
            # Rows that differ in their time alone are told apart where the time still counts.
            assert late(chunks.rows) == late(story.rows), f"seed {seed}"


def test_rows_that_the_last_attempt_does_not_have_are_counted() -> None:
    chunks = Chunks(Kind())
    Running(chunks, [NewMessage(b"a"), NewMessage(b"b")], 5).run()
    other = Running(chunks, [NewMessage(b"a"), NewMessage(b"c")], 5)
    other.run()
    assert other.lane.strays == 1
    assert content(chunks.rows) == content([NewMessage(name) for name in (b"a", b"b", b"c")])


def test_a_chunk_is_bounded_in_rows_and_bytes() -> None:
    lane = RowSequence(Kind(), chunk_rows=3, chunk_bytes=10)
    lane.add([NewMessage(b"x" * size) for size in (4, 4, 4, 30, 1, 1, 1, 1)])
    sizes = []
    while not lane.is_empty:
        sizes.append([len(row.payload) for row in lane.chunk()])
        lane.won()
    assert sizes == [[4, 4], [4], [30], [1, 1, 1], [1]]
    assert lane.waiting_bytes == 0
