"""What a report says in words: what changed, which queues need attention, and what to do.

Every rule compares numbers of the report, so the same figures always tell the same story.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from penstock.pipeline.report.figures import Failure, Figures, QueueFigures
from penstock.pipeline.report.formatting import (
    shown_ms,
    shown_number,
    shown_percent,
    shown_period,
)

__all__ = ["FAILING", "Attention", "attention", "replay_command", "story"]

#: Shares of finished deliveries or of claims from which a queue needs attention.
FAILING: Final = 0.01
_LAPSING: Final = 0.05
_RETRYING: Final = 0.2
#: A change by this factor is worth a sentence.
_MUCH: Final = 2.0
#: A 95th percentile below this is not called slow, however much it has grown.
_SLOW_MS: Final = 1_000
_OLD_MS: Final = 3_600_000


class _Reason(Struct, frozen=True):
    weight: float
    text: str
    command: str = ""


class Attention(Struct, frozen=True):
    """Why a queue needs attention, and what to run."""

    queue: str
    reasons: Sequence[str]
    weight: float
    """More important queues come first."""
    commands: Sequence[str]


def story(figures: Figures) -> list[str]:
    """What happened, in a few sentences."""
    return [
        sentence
        for sentence in (
            _published(figures),
            _settled(figures),
            _new_failures(figures),
            _slowest(figures),
            _waiting(figures),
        )
        if sentence
    ]


def attention(figures: Figures) -> list[Attention]:
    """The queues that need attention, the most urgent first."""
    found: list[Attention] = []
    for queue in figures.queues:
        reasons = list(_reasons(queue, figures))
        if reasons:
            weight = sum(reason.weight for reason in reasons)
            commands = dict.fromkeys(reason.command for reason in reasons if reason.command)
            found.append(
                Attention(queue.name, [reason.text for reason in reasons], weight, list(commands))
            )
    return sorted(found, key=lambda one: (-one.weight, one.queue))


def replay_command(failure: Failure, queue: str) -> str:
    """The command that redelivers what failed in a queue with this fingerprint."""
    return f"penstock pipeline replay {queue} --fingerprint {failure.fingerprint}"


# -- sentences -------------------------------------------------------------------------


def _before(figures: Figures) -> str:
    return f"the {shown_period(figures.period.length)} before"


def _compared(now: float, before: float, figures: Figures) -> str:
    """A clause that compares with the period before; empty if there is none."""
    if not figures.has_previous:
        return ""
    if now == before:
        return f", as many as in {_before(figures)}"
    if before == 0:
        return f" and none in {_before(figures)}"
    more = "more" if now > before else "fewer"
    share = abs(now - before) / before
    if share < 0.01:
        return f", about as many as in {_before(figures)}"
    amount = f"{now / before:.1f} times as many as" if now >= _MUCH * before else None
    return f", {amount or f'{share * 100:.0f} % {more} than'} in {_before(figures)}"


def _published(figures: Figures) -> str:
    now = sum(topic.messages for topic in figures.topics)
    before = sum(topic.messages_before for topic in figures.topics)
    if not now:
        earlier = f", but {shown_number(before)} in {_before(figures)}" if before else ""
        return f"No message was published{earlier}."
    sentence = f"{_counted(now, 'message')} published{_compared(now, before, figures)}."
    changes = {topic.name: topic.messages - topic.messages_before for topic in figures.topics}
    if figures.has_previous and len(changes) > 1 and now != before:
        name = max(changes, key=lambda topic: changes[topic] * (1 if now > before else -1))
        sign = "+" if changes[name] > 0 else "-"
        sentence += f" The largest change is in {name} ({sign}{shown_number(abs(changes[name]))})."
    return sentence


def _counted(count: int, noun: str) -> str:
    return f"{shown_number(count)} {noun}{' was' if count == 1 else 's were'}"


def _settled(figures: Figures) -> str:
    now, before = figures.current, figures.previous
    if not now.settled:
        return "No delivery was finished." if now.arrivals else ""
    sentence = f"{_percent_acked(now.acks, now.settled)} of {shown_number(now.settled)} finished "
    sentence += "deliveries were acked"
    if now.failures:
        sentence += f"; {shown_number(now.failures)} failed"
        sentence += _compared(now.failures, before.failures, figures)
    return sentence + "."


def _percent_acked(acks: int, settled: int) -> str:
    if acks == settled:
        return "All"
    # Never rounded up to 100 %.
    return f"{int(10_000 * acks / settled) / 100:.4g} %"


def _new_failures(figures: Figures) -> str:
    new = [one for one in figures.failures if not one.before]
    if not figures.has_previous or not new:
        return ""
    first = new[0]
    many = "An error is new" if len(new) == 1 else f"{len(new)} errors are new"
    times = "once" if first.count == 1 else f"{shown_number(first.count)} times"
    return f"{many}: “{first.pattern[:90]}”, {times}, in {first.queues[0]}."


def _slowest(figures: Figures) -> str:
    timed = [queue for queue in figures.queues if queue.wait.p95 is not None]
    if not timed:
        return ""
    slow = max(timed, key=lambda queue: queue.wait.p95 or 0)
    sentence = (
        f"{slow.name} waited longest: 95 % of its deliveries were claimed within "
        f"{shown_ms(slow.wait.p95 or 0)}"
    )
    if slow.wait_before.p95 is not None:
        sentence += f" ({shown_ms(slow.wait_before.p95)} in {_before(figures)})"
    return sentence + "."


def _waiting(figures: Figures) -> str:
    waiting = [queue for queue in figures.queues if queue.now.depth]
    if not waiting:
        return "Nothing is waiting now."
    total = sum(queue.now.depth for queue in waiting)
    most = max(waiting, key=lambda queue: queue.now.depth)
    where = (
        f"in {most.name}"
        if len(waiting) == 1
        else f"in {len(waiting)} queues, most in {most.name} ({shown_number(most.now.depth)})"
    )
    is_are = "delivery is" if total == 1 else "deliveries are"
    return f"{shown_number(total)} {is_are} waiting now, {where}."


# -- queues ----------------------------------------------------------------------------


def _reasons(queue: QueueFigures, figures: Figures) -> Iterator[_Reason]:
    """Everything that is wrong with a queue."""
    now, depth = queue.current, queue.now.depth
    if now.failures >= max(1, FAILING * now.settled):
        yield _failing(queue, figures)
    if queue.now.paused and depth:
        text = f"it is paused with {shown_number(depth)} waiting"
        yield _Reason(1, text, f"penstock queue resume {queue.name}")
    elif depth and not now.claims:
        oldest = queue.now.oldest_ms
        age = f", the oldest for {shown_ms(oldest)}" if oldest else ""
        yield _Reason(3, f"{shown_number(depth)} wait and no consumer has claimed any{age}")
    else:
        yield from _backlog(queue, figures)
        yield from _slower(queue)
    if now.lapses >= max(1, _LAPSING * now.claims):
        text = (
            f"{shown_percent(now.lapses, now.claims)} of its claims outlived their lease: a "
            "consumer dies, or works for longer than the lease"
        )
        yield _Reason(1, text, f"penstock queue show {queue.name}")
    if now.claims and now.nacks > max(1, _RETRYING * now.claims):
        yield _Reason(0.5, f"{shown_percent(now.nacks, now.claims)} of its claims were nacked")


def _failing(queue: QueueFigures, figures: Figures) -> _Reason:
    now, before = queue.current.failures, queue.previous.failures
    settled = queue.current.settled
    text = (
        f"{shown_percent(now, settled)} of its finished deliveries failed: {shown_number(now)}"
        f"{_compared(now, before, figures)}"
    )
    # Failures mostly of this queue first, then those that it shares.
    known = [one for one in figures.failures if queue.name in one.queues]
    known.sort(key=lambda one: one.queues[0] != queue.name)
    command = replay_command(known[0], queue.name) if known else f"penstock queue show {queue.name}"
    return _Reason(1 + 4 * now / settled, text, command)


def _backlog(queue: QueueFigures, figures: Figures) -> Iterator[_Reason]:
    now, depth, oldest = queue.current, queue.now.depth, queue.now.oldest_ms
    if depth and now.change > 0 and now.change >= now.arrivals / 10:
        doubled_ms = 1000 * depth * figures.period.length / now.change
        text = (
            f"its backlog grew by {shown_number(now.change)} to {shown_number(depth)}; at this "
            f"pace it doubles in {shown_ms(doubled_ms)}"
        )
        yield _Reason(2, text)
    elif oldest is not None and oldest >= _OLD_MS and not queue.now.paused:
        yield _Reason(1, f"its oldest delivery has been waiting for {shown_ms(oldest)}")


def _slower(queue: QueueFigures) -> Iterator[_Reason]:
    wait, before = queue.wait.p95, queue.wait_before.p95
    if wait is not None and before and wait >= _SLOW_MS and wait >= _MUCH * before:
        text = (
            f"its deliveries wait {wait / before:.1f} times as long: 95 % were claimed within "
            f"{shown_ms(wait)}, before within {shown_ms(before)}"
        )
        yield _Reason(1, text)
