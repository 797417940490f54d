"""The checker can fail: every law that it checks, broken on purpose in a small history."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from penstock.testing.checker import check
from penstock.testing.history import (
    MAX_LINE_BYTES,
    Claim,
    Claimed,
    Found,
    Granted,
    HistoryEvent,
    Logged,
    Publish,
    Published,
    Recorder,
    Refused,
    Scanned,
    Settle,
    Settled,
    Unanswered,
    digest,
    read_history,
)
from penstock.testing.laws import law

MAX_ATTEMPTS = 3


def publish(call: int, *payloads: str, ids: tuple[str | None, ...] = ()) -> Publish:
    return Publish(call=call, payloads=payloads, ids=ids or (None,) * len(payloads))


def published(call: int, *messages: int) -> Published:
    return Published(call=call, messages=messages)


def granted(
    message: int = 1, payload: str = "a", receipt: str = "1", attempts: int = 1, at: int = 100
) -> list[HistoryEvent]:
    """A whole claim of one delivery, with a lease of 50."""
    call = 1000 + int(receipt)
    return [
        Claim(call=call, queue="q"),
        Granted(
            call=call,
            queue="q",
            message=message,
            payload=payload,
            receipt=receipt,
            attempts=attempts,
            claimed_at=at,
            deadline=at + 50,
            consumer="c",
        ),
        Claimed(call=call),
    ]


def settled(
    verb: str, state: str | None, receipt: str = "1", at: int = 110, until: int | None = None
) -> list[HistoryEvent]:
    """A whole settlement; without a state it was stale."""
    verdict = "stale" if state is None else "ok"
    return [
        Settle(call=at, receipt=receipt, verb=verb, at=at, lease_ms=50),
        Settled(call=at, verdict=verdict, state=state, until=until, at=at),
    ]


def scan(*found: tuple[int, str, str], drained: bool = False) -> list[HistoryEvent]:
    """A scan that finds (message, payload, state)."""
    log = {message: payload for message, payload, _ in found}
    return [
        *(Logged(scan=1, message=message, payload=payload) for message, payload in log.items()),
        *(
            Found(scan=1, queue="q", message=message, state=state, attempts=1)
            for message, _, state in found
        ),
        Scanned(scan=1, queue="q", drained=drained),
    ]


def laws(
    *parts: HistoryEvent | list[HistoryEvent], runs: tuple[int, ...] = (), ordered: bool = False
) -> list[str]:
    """The laws broken; a new run begins with each event whose place is in ``runs``."""
    events = [event for part in parts for event in (part if isinstance(part, list) else [part])]
    run, stamped = 1, []
    for order, event in enumerate(events, 1):
        run += order - 1 in runs
        stamped.append(msgspec.structs.replace(event, run=run, order=order))
    found = check(
        stamped,
        max_attempts={"q": MAX_ATTEMPTS},
        grant_number=int,
        ordered={"q"} if ordered else (),
    )
    return [violation.law for violation in found]


ONE: list[HistoryEvent] = [publish(1, "a"), published(1, 1)]


def test_a_history_that_keeps_the_laws() -> None:
    assert not laws(
        publish(1, "a", "b", ids=("x", None)),
        published(1, 1, 2),
        publish(2, "a", "b", ids=("x", None)),
        published(2, 1, 3),
        granted(),
        settled("extend", "in_flight", until=160),
        granted(receipt="2", attempts=2, at=160),
        settled("ack", None, receipt="1", at=165),
        settled("release", "available", receipt="2", at=170),
        granted(receipt="3", attempts=3, at=171),
        settled("ack", "done", receipt="3", at=180),
        settled("ack", "done", receipt="3", at=181),
        scan((1, "a", "done"), (2, "b", "available"), (3, "b", "available")),
    )


def test_a_grant_that_is_seen_late() -> None:
    """The client of the first grant saw its reply after the client of the second."""
    (begun, *seen), second = granted(), granted(receipt="2", attempts=2, at=160)
    end = settled("ack", "done", receipt="2", at=170)
    assert not laws(ONE, begun, second, seen, end)
    assert "C1" in laws(ONE, second, begun, seen)  # Its claim began after the second grant.


@law("P1")
def test_an_acknowledged_message_is_gone() -> None:
    assert laws(*ONE, publish(2, "b"), published(2, 2), scan((1, "a", "done"))) == ["P1"]


@law("P2")
def test_a_delivery_that_nobody_published() -> None:
    assert laws(ONE, granted(message=2, payload="z")) == ["P2"]


@law("P2")
def test_a_refused_publish_is_visible() -> None:
    assert laws(publish(1, "a"), Refused(call=1), scan((1, "a", "available"))) == ["P2"]


@law("P2")
def test_half_a_batch() -> None:
    half = scan((1, "a", "available"))
    assert laws(publish(1, "a", "b"), half) == ["P2"]
    assert not laws(publish(1, "a", "b"), scan())
    assert not laws(publish(1, "a", "b"), scan((1, "a", "available"), (2, "b", "available")))


@law("P2")
def test_more_copies_than_calls() -> None:
    twice = scan((1, "a", "available"), (2, "a", "available"))
    assert laws(ONE, twice) == ["P2"]
    assert not laws(ONE, publish(2, "a"), twice)


@law("P3")
def test_another_payload() -> None:
    assert laws(ONE, granted(payload="torn")) == ["P3"]


@law("P4")
def test_an_id_with_two_messages() -> None:
    calls: list[HistoryEvent] = [
        publish(1, "a", ids=("x",)),
        published(1, 1),
        publish(2, "a", ids=("x",)),
    ]
    assert laws(*calls, published(2, 2)) == ["P4"]
    assert laws(*calls, scan((1, "a", "available"), (2, "a", "available"))) == ["P4"]


@law("C1")
def test_two_live_claims() -> None:
    assert laws(ONE, granted(), granted(receipt="2", attempts=2, at=149)) == ["C1"]
    assert not laws(ONE, granted(), granted(receipt="2", attempts=2, at=150))


@law("C1")
def test_clocks_differ_by_so_much() -> None:
    events = [*ONE, *granted(), *granted(receipt="2", attempts=2, at=140)]
    stamped = [msgspec.structs.replace(event, order=n) for n, event in enumerate(events, 1)]
    for skew_ms, found in ((9, 1), (10, 0)):
        assert len(check(stamped, max_attempts={"q": 3}, skew_ms=skew_ms)) == found


@law("C1")
def test_an_extended_claim_is_live() -> None:
    extended = settled("extend", "in_flight", until=200)
    assert laws(ONE, granted(), extended, granted(receipt="2", attempts=2, at=160)) == ["C1"]


@law("C1")
def test_a_lost_settlement_may_have_ended_a_claim() -> None:
    lost = settled("nack", "available")[:1]
    assert not laws(ONE, granted(), lost, granted(receipt="2", attempts=2, at=120))


@law("C1")
def test_a_live_claim_is_called_stale() -> None:
    assert laws(ONE, granted(), settled("ack", None, at=149)) == ["C1"]
    assert not laws(ONE, granted(), settled("ack", None, at=150))


@law("O1")
def test_a_partition_that_changes_hands_ends_claims() -> None:
    grants = [granted(receipt=str(n), attempts=n, at=100 + n) for n in range(1, 5)]
    assert not laws(ONE, *grants, ordered=True)
    assert laws(ONE, *grants, settled("ack", "done", receipt="3", at=105), ordered=True) == ["S1"]
    assert not laws(ONE, granted(), settled("ack", None, at=105), ordered=True)
    nacked = [settled("nack", "available", receipt=str(n), at=100 + n) for n in range(1, 4)]
    pairs = [part for pair in zip(grants, nacked, strict=False) for part in pair]
    assert laws(ONE, *pairs, grants[3], ordered=True) == ["C2"]


@law("C1")
def test_a_receipt_that_comes_again_or_does_not_grow() -> None:
    again = granted(receipt="2", attempts=2, at=150)
    assert laws(ONE, granted(receipt="2"), again) == ["C1", "C1"]
    assert laws(ONE, granted(receipt="3"), again) == ["C1"]


@law("C2")
@pytest.mark.parametrize("attempts", [1, 3])
def test_attempts_that_do_not_rise_by_one(attempts: int) -> None:
    assert laws(ONE, granted(), granted(receipt="2", attempts=attempts, at=150)) == ["C2"]


@law("C2")
def test_a_lost_claim_explains_one_attempt() -> None:
    lost = Claim(call=9, queue="q")
    later = granted(receipt="5", attempts=3, at=500)
    assert not laws(ONE, granted(), lost, later, runs=(6,))
    later = granted(receipt="5", attempts=4, at=500)
    assert laws(ONE, granted(), lost, later, runs=(6,)) == ["C2", "C2"]


@law("C2")
def test_an_unanswered_claim_may_have_been_handed_back() -> None:
    """The broker releases what it claimed for a caller that has gone: that does not count."""
    lost = Claim(call=9, queue="q"), Unanswered(call=9)
    grants = [granted(receipt=f"{n}", attempts=n, at=500 * n) for n in (3, 4, 5)]
    assert not laws(ONE, granted(), *lost, *grants[:2])
    assert laws(ONE, granted(), *lost, *grants) == ["C2"]


@law("C2")
def test_an_unanswered_claim_explains_one_attempt_at_once() -> None:
    def after_one(queue: str, attempts: int) -> list[str]:
        again = granted(receipt="5", attempts=attempts, at=500)
        return laws(ONE, granted(), Claim(call=9, queue=queue), Unanswered(call=9), again)

    assert not after_one("q", attempts=3)
    assert after_one("q", attempts=4) == ["C2", "C2"]
    assert after_one("another", attempts=3) == ["C2"]


@law("C2")
def test_a_claim_in_progress_explains_one_attempt_if_it_gets_no_reply() -> None:
    """Its server has ended, but its client notices later than another one claims again."""
    begun, lost = Claim(call=9, queue="q"), Unanswered(call=9)
    third, fourth = (granted(receipt=str(n), attempts=n, at=500 * n) for n in (3, 4))
    fifth = granted(receipt="5", attempts=5, at=2500)
    assert not laws(ONE, granted(), begun, third, lost)
    assert not laws(ONE, granted(), begun, third)  # The run ends before.
    assert laws(ONE, granted(), begun, third, Claimed(call=9)) == ["C2"]
    assert "C2" in laws(ONE, granted(), begun, third, lost, fifth)
    assert "C2" in laws(ONE, granted(), begun, fourth, lost)


@law("C2")
def test_more_grants_than_max_attempts() -> None:
    grants = [granted(receipt=str(n), attempts=n, at=100 * n) for n in range(1, 5)]
    assert laws(ONE, *grants) == ["C2"]
    handed_back = settled("release", "available", at=110)
    assert not laws(ONE, grants[0], handed_back, *grants[1:])


@law("S1")
def test_a_stale_receipt_takes_effect() -> None:
    taken_over = [*granted(), *granted(receipt="2", attempts=2, at=150)]
    assert laws(ONE, taken_over, settled("ack", "done", at=160)) == ["S1"]


@law("S1")
def test_a_claim_is_ended_twice() -> None:
    twice = [*settled("nack", "available"), *settled("nack", "available", at=111)]
    assert laws(ONE, granted(), twice) == ["S1"]


@law("S2")
@pytest.mark.parametrize("verb, state", [("ack", "done"), ("nack", "failed")])
def test_a_settled_message_is_granted(verb: str, state: str) -> None:
    again = granted(receipt="2", attempts=2, at=500)
    assert laws(ONE, granted(), settled(verb, state), again) == ["S2"]


@law("S3")
def test_two_states() -> None:
    assert laws(ONE, scan((1, "a", "available"), (1, "a", "done"))) == ["S3"]


@law("S3")
def test_no_state() -> None:
    lost: list[HistoryEvent] = [Logged(scan=1, message=1, payload="a"), Scanned(scan=1, queue="q")]
    assert laws(ONE, lost) == ["S3"]


@law("S3")
def test_another_state_than_it_was_settled_to() -> None:
    assert laws(ONE, granted(), settled("ack", "done"), scan((1, "a", "failed"))) == ["S3"]


@law("C5")
def test_a_drained_queue_has_something_live() -> None:
    assert laws(ONE, scan((1, "a", "available"), drained=True)) == ["C5"]


def test_a_history_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="not in order"):
        check([Claim(call=1, queue="q", run=1, order=2), Claimed(call=1, run=1)], max_attempts={})


def test_a_recorder_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    for run in (1, 2):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        recorder = Recorder(descriptor, run)
        recorder.record(publish(recorder.call(), digest(b"a"), ids=("x",)))
        recorder.record(Refused(call=recorder.call()))
        os.close(descriptor)
    with path.open("rb") as lines:
        events = list(read_history(lines))
    assert [(event.run, event.order) for event in events] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert isinstance(events[0], Publish)
    assert events[0].payloads == (digest(b"a"),)
    assert len({event.call for event in events if isinstance(event, Publish | Refused)}) == 4


def test_a_recorder_refuses_a_line_that_a_pipe_could_tear(tmp_path: Path) -> None:
    with (tmp_path / "history.jsonl").open("wb") as file:
        recorder = Recorder(file.fileno(), 1)
        with pytest.raises(ValueError, match="longer"):
            recorder.record(publish(1, "a" * MAX_LINE_BYTES))
