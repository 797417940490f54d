"""Attempts at a partition against a real server: every row once, whoever writes it (P4)."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Sequence

import pytest

from penstock.errors import OtherRun, PipelineError
from penstock.model.message import NewMessage
from penstock.pipeline.format.attempt import Attempt, Counts
from penstock.pipeline.format.chunks import Kind
from penstock.pipeline.format.registration import Registration, finish_writes
from penstock.pipeline.format.rows import Group
from penstock.pipeline.remote import Server
from penstock.testing.laws import law
from tests.pipeline.hosted import HOUR_MS, Hosted

DAY_MS = 24 * HOUR_MS


def grouped(rows: Sequence[NewMessage], topic: str = "t") -> dict[Group, list[NewMessage]]:
    groups: dict[Group, list[NewMessage]] = {}
    for row in rows:
        given = (row.key, row.deliver_at, row.expires_at)
        kind = Kind(*(value is not None for value in given)) if row.id is None else None
        groups.setdefault((topic, kind), []).append(row)
    return groups


def write(
    server: Hosted, rows: Sequence[NewMessage], part: int | None = None, chunk_rows: int = 10
) -> Counts:
    """All rows, or the attempt ends with an error after some of them."""
    with Attempt(Server(server.url), "w", 0, chunk_rows) as attempt:
        for start in range(0, len(rows) if part is None else part, 7):
            attempt.add(grouped(rows[start : start + 7]))
        if part is not None:
            raise Interrupted
        return attempt.finish()


def run_of(
    server: Hosted,
    parts: Sequence[Sequence[NewMessage]],
    run: str,
    *,
    same: bool = False,
    grows: bool = False,
) -> list[Counts]:
    """All partitions of a registered write, one after the other, as one run."""
    registration = Registration("nightly", run, same, grows=grows)
    counts = []
    for number, rows in enumerate(parts):
        with Attempt(
            Server(server.url), "w/nightly", number, 10, registration=registration
        ) as attempt:
            attempt.add(grouped(rows))
            counts.append(attempt.finish())
    topics = {"t": sum(one.topics.get("t", 0) for one in counts)}
    skipped = {"t": sum(one.skipped.get("t", 0) for one in counts)}
    finish_writes(
        Server(server.url),
        registration,
        topics if topics["t"] else {},
        skipped if skipped["t"] else {},
    )
    return counts


def cut(rows: Sequence[NewMessage], parts: int) -> list[Sequence[NewMessage]]:
    return [rows[number::parts] for number in range(parts)]


class Interrupted(Exception):
    pass


def shuffled(rows: Sequence[NewMessage], seed: int) -> list[NewMessage]:
    return random.Random(seed).sample(list(rows), len(rows))


def published(server: Hosted) -> Counter[bytes | None]:
    page = server.ask(lambda q: q.read_log(0, limit=1_000, payloads=True))
    return Counter(entry.payload for entry in page.entries)


def payloads(rows: Sequence[NewMessage]) -> Counter[bytes | None]:
    return Counter(row.payload for row in rows)


#: Every row but the last is there three times.
ROWS = [NewMessage(b"%d" % (number // 3), {"n": number // 3}) for number in range(100)]


@law("P4")
def test_an_attempt_after_one_that_ended_half_way_publishes_the_rest(server: Hosted) -> None:
    with pytest.raises(Interrupted):
        write(server, ROWS, part=50)
    before = published(server).total()
    assert 0 < before < 100
    counts = write(server, shuffled(ROWS, 1), chunk_rows=8)
    assert published(server) == payloads(ROWS)
    assert counts == Counts(published=100 - before, found=before)


@law("P4")
def test_an_attempt_after_one_that_came_to_its_end_publishes_nothing(server: Hosted) -> None:
    write(server, ROWS)
    assert write(server, shuffled(ROWS, 2)) == Counts(published=0, found=100)
    assert published(server) == payloads(ROWS)


@law("P4")
def test_attempts_at_the_same_time_publish_every_row_once(server: Hosted) -> None:
    counts: list[Counts] = []
    threads = [
        threading.Thread(
            target=lambda n=n: counts.append(write(server, shuffled(ROWS, n), None, 9 + n))
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert published(server) == payloads(ROWS)
    assert sum(each.published for each in counts) == 100
    assert [each.published + each.found for each in counts] == [100] * 3


@law("P4")
def test_keys_and_times_are_no_obstacle(server: Hosted) -> None:
    now = server.clock.now()
    rows = [
        *(NewMessage(b"k%d" % n, key=f"k{n % 4}", priority=n % 10) for n in range(30)),
        *(NewMessage(b"d", deliver_at=now + 1 + n * 60_000) for n in range(30)),
        *(NewMessage(b"e", expires_at=now + HOUR_MS + n) for n in range(15)),
        *(NewMessage(b"", partition_key=f"p{n}") for n in range(15)),
    ]
    with pytest.raises(Interrupted):
        write(server, rows, part=80)
    # What was ahead of its time may be due now.
    server.advance(15 * 60_000)
    write(server, shuffled(rows, 3))
    page = server.ask(lambda q: q.read_log(0, limit=1_000, payloads=True))
    assert Counter(entry.payload for entry in page.entries) == payloads(rows)
    late = [
        entry.message.deliver_at
        for entry in page.entries
        if entry.payload == b"d" and entry.message.deliver_at > server.clock.now()
    ]
    assert sorted(late) == [row.deliver_at for row in rows if row.payload == b"d"][15:]
    lasting = [entry.message.expires_at for entry in page.entries if entry.payload == b"e"]
    assert Counter(lasting) == Counter(now + HOUR_MS + n for n in range(15))


@law("P4")
def test_rows_with_an_id_are_told_apart_by_it_alone(server: Hosted) -> None:
    rows = [NewMessage(b"same", id=f"{n}") for n in range(20)]
    rows += [NewMessage(b"same")] * 20
    with pytest.raises(Interrupted):
        write(server, rows, part=30)
    write(server, shuffled(rows, 4))
    assert published(server) == {b"same": 40}


def test_an_attempt_refuses_to_guess_what_retention_has_removed(server: Hosted) -> None:
    write(server, ROWS)
    for queue in server.ask(lambda q: q.queues()):
        server.run(server.broker.delete_queue(queue.name))
    server.forget()
    with pytest.raises(PipelineError, match="log_retention"):
        write(server, ROWS)


def test_other_partitions_and_other_writes_are_others(server: Hosted) -> None:
    for write_id, partition in (("a", 0), ("a", 1), ("b", 0)):
        with Attempt(Server(server.url), write_id, partition) as attempt:
            attempt.add(grouped([NewMessage(b"x")]))
            assert attempt.finish() == Counts(published=1)
    assert published(server) == {b"x": 3}


# -- runs of a registered write --------------------------------------------------------


@law("P4")
@pytest.mark.parametrize("parts", [1, 2, 4, 5])
def test_a_finished_write_is_once_however_it_is_cut(server: Hosted, parts: int) -> None:
    run_of(server, cut(ROWS, 2), "first")
    counts = run_of(server, cut(shuffled(ROWS, 1), parts), "second")
    assert sum(one.published for one in counts) == 0
    assert sum(one.found for one in counts) == len(ROWS)
    assert published(server) == payloads(ROWS)


@law("P4")
def test_a_finished_write_takes_no_other_rows(server: Hosted) -> None:
    run_of(server, cut(ROWS, 2), "first")
    with pytest.raises(OtherRun, match="finished with 100 rows, and this run has 101"):
        run_of(server, cut([*ROWS, NewMessage(b"more")], 4), "second")
    assert published(server) == payloads(ROWS)


@law("P4")
@pytest.mark.parametrize("days", [0, 8, 20])
@pytest.mark.parametrize("grows", [False, True])
def test_a_finished_write_is_once_as_long_as_it_is_registered(
    server: Hosted, days: int, grows: bool
) -> None:
    """Also after the server has forgotten its chunks, and though the partitions are the same."""
    run_of(server, cut(ROWS, 2), "first", same=True, grows=grows)
    server.advance(days * DAY_MS)
    counts = run_of(server, cut(ROWS, 2), "second", same=True, grows=grows)
    assert sum(one.published for one in counts) == 0
    assert published(server) == payloads(ROWS)


@law("P4")
def test_a_write_that_grows(server: Hosted) -> None:
    run_of(server, cut(ROWS, 2), "first", same=True, grows=True)
    more = [*ROWS, NewMessage(b"more"), NewMessage(b"and more")]
    run_of(server, cut(more, 2), "second", same=True, grows=True)
    assert published(server) == payloads(more)
    # Later nobody can tell what is new.
    server.advance(8 * DAY_MS)
    with pytest.raises(OtherRun, match="finished with 102 rows, and this run has 103"):
        run_of(server, cut([*more, NewMessage(b"late")], 2), "third", same=True, grows=True)
    assert published(server) == payloads(more)


@law("P4")
def test_a_write_that_was_killed_long_ago_is_not_compared(server: Hosted) -> None:
    """Its chunks are forgotten, so every row would be published again."""
    registration = Registration("nightly", "first", same_partitions=True)
    with Attempt(Server(server.url), "w/nightly", 0, 10, registration=registration) as attempt:
        attempt.add(grouped(ROWS[:50]))
        attempt.finish()
    before = published(server)
    server.advance(8 * DAY_MS)
    with pytest.raises(OtherRun, match="may have forgotten"):
        run_of(server, cut(ROWS, 2), "second", same=True)
    assert published(server) == before


@law("P4")
def test_a_write_that_is_not_finished_is_not_cut_otherwise(server: Hosted) -> None:
    """The first run was killed after one partition and a part of another."""
    first, second = cut(ROWS, 2)
    registration = Registration("nightly", "first", same_partitions=False)
    for number, rows in enumerate((first, second[:20])):
        with Attempt(
            Server(server.url), "w/nightly", number, 10, registration=registration
        ) as attempt:
            attempt.add(grouped(rows))
            attempt.finish()
    before = published(server)
    for parts in (1, 2, 4):
        with pytest.raises(OtherRun, match="not finished") as refused:
            run_of(server, cut(ROWS, parts), "second")
        assert "samePartitions" in refused.value.advice
    assert published(server) == before
    run_of(server, cut(ROWS, 2), "third", same=True)
    assert published(server) == payloads(ROWS)
    # Finished now, so how it is cut does not matter any more.
    run_of(server, cut(ROWS, 4), "fourth")
    assert published(server) == payloads(ROWS)


@law("P4")
def test_a_write_to_several_topics_is_not_cut_otherwise(server: Hosted) -> None:
    """The first run was killed before it came to the second topic."""

    def attempt_at(run: str, partition: int, topics: str, parts: int, *, same: bool) -> Counts:
        registration = Registration("nightly", run, same, all_topics=True)
        with Attempt(
            Server(server.url), "w/nightly", partition, 10, registration=registration
        ) as attempt:
            for topic in topics:
                attempt.add(grouped(cut(ROWS, parts)[partition], topic))
            return attempt.finish()

    for partition in range(2):
        attempt_at("first", partition, "a", 2, same=False)
    for topics in ("a", "b", "c"):
        with pytest.raises(OtherRun, match="not finished"):
            attempt_at("second", 0, topics, 4, same=False)
    counts = [attempt_at("third", partition, "ba", 2, same=True) for partition in range(2)]
    assert sum(one.published for one in counts) == sum(one.found for one in counts) == 100
    assert published(server) == payloads([*ROWS, *ROWS])


def test_rows_with_ids_of_their_own_need_no_registration(server: Hosted) -> None:
    rows = [NewMessage(b"%d" % number, id=f"i{number}") for number in range(30)]
    for run, parts in (("first", 2), ("second", 3)):
        run_of(server, cut(rows, parts), run)
    assert published(server) == payloads(rows)
