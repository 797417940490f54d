"""The decisions agree with the table of transitions, and with docs/semantics.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from msgspec.structs import replace

from penstock.model.decisions import (
    LEASE_EXPIRED,
    Ending,
    dead_letter_policy,
    end_of_claim,
    exhausted,
    expiry_in_queue,
    extended_deadline,
    is_exhausted,
    is_expired,
    lease_for,
    lowered_limit_error,
    replay_due_at,
    retained_after,
    returned_by,
    transition_of,
)
from penstock.model.delivery import Nack, Receipt, Reject, Release
from penstock.model.limits import MAX_ATTEMPTS, MAX_ERROR_BYTES
from penstock.model.queue import Backoff, Ordering, QueuePolicy
from penstock.model.states import TRANSITIONS, State, Transition, may_follow
from penstock.testing.laws import law

NOW = 10_000
POLICY = QueuePolicy(max_attempts=3)
RECEIPT = Receipt("r")
#: The transitions that end a claim without an ack.
ENDS = (Transition.NACK, Transition.REJECT, Transition.RELEASE, Transition.LAPSE)
#: Those that may have a delay.
DELAYING = (Transition.NACK, Transition.RELEASE)


def _end(transition: Transition, **given: Any) -> Ending:
    fields = {"dead": False, "attempts": 1, "released": 0, "expires_at": None, "now": NOW}
    fields["max_attempts"] = None
    return end_of_claim(transition, POLICY, **(fields | given))


def _every_ending(transition: Transition, *, dead: bool) -> Iterator[Ending]:
    delays = (0, 5) if transition in DELAYING else (0,)
    attempts = [(1, 0), (2, 0), (3, 0), (3, 1), (MAX_ATTEMPTS, 0), (MAX_ATTEMPTS, MAX_ATTEMPTS)]
    for (count, released), expires_at, delay_ms in product(attempts, (None, NOW, NOW + 1), delays):
        yield _end(
            transition,
            dead=dead,
            attempts=count,
            released=released,
            expires_at=expires_at,
            delay_ms=delay_ms,
        )


# -- the table -----------------------------------------------------------------------------


@law("S3")
@pytest.mark.parametrize("transition", ENDS)
def test_the_ends_of_a_claim_are_those_of_the_table(transition: Transition) -> None:
    states = {ending.state for ending in _every_ending(transition, dead=False)}
    assert states == TRANSITIONS[State.IN_FLIGHT, transition]


def test_every_other_transition_out_of_flight_is_an_ack_or_a_cancel() -> None:
    leaving = {by for before, by in TRANSITIONS if before is State.IN_FLIGHT}
    assert leaving == {*ENDS, Transition.ACK, Transition.CANCEL}


@law("D1")
@pytest.mark.parametrize("transition", ENDS)
def test_a_dead_letter_stays_in_its_queue(transition: Transition) -> None:
    states = {ending.state for ending in _every_ending(transition, dead=True)}
    delayed = {State.DELAYED} if transition in DELAYING else set()
    assert states == {State.AVAILABLE} | delayed


@pytest.mark.parametrize("state", State)
def test_only_a_waiting_delivery_expires_or_exhausts_by_itself(state: State) -> None:
    waits = state in (State.DELAYED, State.AVAILABLE)
    assert may_follow(state, Transition.EXPIRE, State.EXPIRED) is waits
    assert may_follow(state, Transition.EXHAUST, State.FAILED) is (state is State.AVAILABLE)


@pytest.mark.parametrize("state", State)
def test_retention_has_a_time_for_every_state_that_it_removes(state: State) -> None:
    policy = QueuePolicy(done_retention_s=2, failed_retention_s=3)
    times = {State.DONE: NOW - 2000, State.EXPIRED: NOW - 2000, State.FAILED: NOW - 3000}
    if may_follow(state, Transition.RETAIN, None):
        assert retained_after(policy, state, NOW) == times[state]
        forever = replace(policy, done_retention_s=0, failed_retention_s=0)
        assert retained_after(forever, state, NOW) is None


# -- the end of a claim --------------------------------------------------------------------


@law("C2")
@pytest.mark.parametrize(
    "attempts, released, exhausted",
    [
        (2, 0, False),
        (3, 0, True),
        (4, 0, True),  # max_attempts was lowered.
        (3, 1, False),
        (4, 1, True),
        (MAX_ATTEMPTS, MAX_ATTEMPTS, True),
    ],
)
def test_released_grants_do_not_count(attempts: int, released: int, *, exhausted: bool) -> None:
    assert is_exhausted(POLICY, None, attempts, released) is exhausted
    state = State.FAILED if exhausted else State.AVAILABLE
    for transition in (Transition.NACK, Transition.LAPSE):
        assert _end(transition, attempts=attempts, released=released).state is state


@law("C3")
@pytest.mark.parametrize(
    "expires_at, expired", [(None, False), (NOW + 1, False), (NOW, True), (NOW - 1, True)]
)
def test_a_delivery_expires_at_its_time(expires_at: int | None, *, expired: bool) -> None:
    assert is_expired(expires_at, NOW) is expired
    state = State.EXPIRED if expired else State.AVAILABLE
    for transition in (Transition.NACK, Transition.RELEASE, Transition.LAPSE):
        assert _end(transition, expires_at=expires_at).state is state


@pytest.mark.parametrize("transition", [Transition.NACK, Transition.LAPSE])
def test_without_attempts_it_fails_even_if_it_is_expired(transition: Transition) -> None:
    assert _end(transition, attempts=3, expires_at=NOW).state is State.FAILED


def test_a_release_fails_only_if_attempts_cannot_be_counted_any_more() -> None:
    assert _end(Transition.RELEASE, attempts=9).state is State.AVAILABLE
    assert _end(Transition.RELEASE, attempts=MAX_ATTEMPTS).state is State.FAILED


def test_a_reject_fails_at_the_first_attempt_even_if_it_is_expired() -> None:
    ending = _end(Transition.REJECT, expires_at=NOW, error="bad")
    assert ending == Ending(State.FAILED, "bad", None)


def test_a_delayed_delivery_says_when_it_is_due() -> None:
    assert _end(Transition.NACK, delay_ms=7) == Ending(State.DELAYED, None, NOW + 7)
    assert _end(Transition.NACK, delay_ms=7, attempts=3).due_at is None
    assert _end(Transition.NACK, delay_ms=7, expires_at=NOW).due_at is None


def test_a_lapse_has_an_error_only_if_it_is_the_last() -> None:
    assert _end(Transition.LAPSE).error is None
    assert _end(Transition.LAPSE, expires_at=NOW).error is None
    assert _end(Transition.LAPSE, attempts=3).error == LEASE_EXPIRED


@pytest.mark.parametrize("transition", [Transition.NACK, Transition.REJECT])
@pytest.mark.parametrize("dead", [True, False])
def test_errors_are_cut_wherever_the_delivery_goes(transition: Transition, *, dead: bool) -> None:
    for attempts, expires_at in product((1, 3), (None, NOW)):
        ending = _end(
            transition, dead=dead, attempts=attempts, expires_at=expires_at, error="é" * 9999
        )
        assert ending.error is not None
        assert len(ending.error.encode()) <= MAX_ERROR_BYTES
        assert ending.error.endswith("é…")


# -- settlements ---------------------------------------------------------------------------


def test_what_each_settlement_asks_for() -> None:
    def half(ceiling_ms: int) -> int:
        return ceiling_ms // 2

    policy = QueuePolicy(backoff=Backoff(1_000, 3_000))
    for item, attempts, dead, asked in (
        (Release(RECEIPT), 1, False, (Transition.RELEASE, None, 0)),
        (Release(RECEIPT, 70), 1, False, (Transition.RELEASE, None, 70)),
        (Release(RECEIPT, 70), 1, True, (Transition.RELEASE, None, 70)),
        (Reject(RECEIPT, "bad"), 1, False, (Transition.REJECT, "bad", 0)),
        (Nack(RECEIPT, "late"), 1, False, (Transition.NACK, "late", 500)),
        (Nack(RECEIPT), 2, False, (Transition.NACK, None, 1_000)),
        (Nack(RECEIPT), 9, False, (Transition.NACK, None, 1_500)),
        (Nack(RECEIPT, delay_ms=0), 2, False, (Transition.NACK, None, 0)),
        (Nack(RECEIPT, delay_ms=70), 2, False, (Transition.NACK, None, 70)),
        (Nack(RECEIPT, delay_ms=70), 2, True, (Transition.NACK, None, 70)),
        (Nack(RECEIPT), 2, True, (Transition.NACK, None, 0)),
    ):
        assert returned_by(item, policy, attempts, half, dead=dead) == asked
        assert transition_of(item) is asked[0]


# -- leases --------------------------------------------------------------------------------

LEASES = QueuePolicy(min_lease_ms=50, lease_ms=100, max_lease_ms=200)


@pytest.mark.parametrize(
    "asked, given", [(None, 100), (1, 50), (50, 50), (120, 120), (200, 200), (999, 200)]
)
def test_a_lease_is_clamped(asked: int | None, given: int) -> None:
    assert lease_for(LEASES, asked) == given


def test_the_default_lease_is_clamped_too() -> None:
    assert lease_for(replace(LEASES, lease_ms=1), None) == 50
    assert lease_for(replace(LEASES, lease_ms=999), None) == 200


@pytest.mark.parametrize(
    "now, deadline", [(1_000, 1_120), (1_080, 1_200), (1_199, 1_200), (1_200, None), (2_000, None)]
)
def test_extensions_end_with_the_longest_lease(now: int, deadline: int | None) -> None:
    assert extended_deadline(LEASES, 1_000, 120, now) == deadline


# -- replay and dead letters ---------------------------------------------------------------


@pytest.mark.parametrize(
    "deliver_at, nth, rate, due_at",
    [
        (0, 7, None, NOW),
        (0, 0, 4, NOW),
        (0, 3, 4, NOW + 750),
        (NOW + 900, 3, 4, NOW + 900),
        (NOW + 900, 3, None, NOW + 900),
    ],
)
def test_when_a_replayed_delivery_is_due(
    deliver_at: int, nth: int, rate: int | None, due_at: int
) -> None:
    assert replay_due_at(deliver_at, NOW, nth, rate) == due_at


def test_the_policy_of_dead_letters() -> None:
    policy = QueuePolicy(ordering=Ordering.PARTITION, paused=True, done_retention_s=7)
    derived = dead_letter_policy(policy, paused=False)
    assert (derived.max_attempts, derived.ordering) == (MAX_ATTEMPTS, Ordering.NONE)
    assert (derived.paused, derived.done_retention_s) == (False, 7)


def test_the_error_of_a_lowered_limit() -> None:
    assert lowered_limit_error(POLICY, None) == "max_attempts was lowered to 3"
    assert lowered_limit_error(POLICY, 2) == "max_attempts was lowered to 2"


@law("C2")
@pytest.mark.parametrize("own, most", [(None, 3), (1, 1), (5, 5), (MAX_ATTEMPTS, MAX_ATTEMPTS)])
def test_the_limit_of_a_message_overrides_that_of_the_queue(own: int | None, most: int) -> None:
    assert is_exhausted(POLICY, own, most, 0)
    assert not is_exhausted(POLICY, own, most - 1, 0)
    assert not is_exhausted(POLICY, own, most - 1, 1)
    assert _end(Transition.NACK, attempts=most, max_attempts=own).state is State.FAILED
    assert _end(Transition.LAPSE, attempts=most - 1, max_attempts=own).state is State.AVAILABLE


@law("C3")
@pytest.mark.parametrize(
    "ttl_ms, expires_at, expiry",
    [
        (None, None, None),
        (None, 5, 5),
        (100, None, NOW + 100),
        (100, NOW + 99, NOW + 99),
        (100, NOW + 101, NOW + 100),
    ],
)
def test_a_queue_can_only_shorten_the_life_of_a_message(
    ttl_ms: int | None, expires_at: int | None, expiry: int | None
) -> None:
    assert expiry_in_queue(QueuePolicy(message_ttl_ms=ttl_ms), expires_at, NOW) == expiry


@pytest.mark.parametrize("dead_letters", [True, False])
def test_without_dead_letters_only_what_fails_is_removed(*, dead_letters: bool) -> None:
    policy = QueuePolicy(max_attempts=3, dead_letters=dead_letters)
    assert exhausted(policy, None).removed is not dead_letters
    for transition, attempts in product(ENDS, (1, 3)):
        ending = end_of_claim(
            transition,
            policy,
            dead=False,
            attempts=attempts,
            released=0,
            max_attempts=None,
            expires_at=None,
            now=NOW,
        )
        assert ending.removed is (ending.state is State.FAILED and not dead_letters)
