"""Metrics of verbs and handlers, through ``opentelemetry-api``.

Active as soon as the program has imported ``opentelemetry.metrics``, which every program that
configures OpenTelemetry does. Nothing is imported for the others. Names follow the semantic
conventions for messaging where these have one.

===================================  =========  ====================================================
instrument                           type       of
===================================  =========  ====================================================
``messaging.client.operation``       histogram  the seconds of a publish, claim or settle; claims
``.duration``                                   that got nothing are left out, as they wait
``messaging.client.sent.messages``   counter    messages published, by topic
``messaging.client.consumed``        counter    deliveries claimed, by queue
``.messages``
``messaging.process.duration``       histogram  the seconds of a handling, by handler and outcome
``penstock.client.settled``          counter    settlements, by queue, verb and verdict
``.messages``
===================================  =========  ====================================================

The duration of an operation that failed has ``error.type``, the name of the exception.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from penstock.errors import StaleReceipt
from penstock.model.delivery import Delivery, Extend, Outcome, Verdict
from penstock.model.message import PublishReply
from penstock.version import VERSION

__all__ = [
    "Settling",
    "claimed",
    "claiming",
    "handled",
    "published",
    "publishing",
    "settling",
]

_API: Final = "opentelemetry.metrics"
#: Seconds; those that the conventions advise.
_BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)


class _Instruments:
    """The instruments of one provider. A provider warns of instruments that are created twice."""

    def __init__(self, provider: Any) -> None:
        self.provider = provider
        meter = provider.get_meter("penstock", VERSION)

        def seconds(name: str) -> Any:
            return meter.create_histogram(
                name, unit="s", explicit_bucket_boundaries_advisory=_BUCKETS
            )

        self.operation = seconds("messaging.client.operation.duration")
        self.process = seconds("messaging.process.duration")
        self.sent = meter.create_counter("messaging.client.sent.messages", unit="{message}")
        self.consumed = meter.create_counter("messaging.client.consumed.messages", unit="{message}")
        self.settled = meter.create_counter("penstock.client.settled.messages", unit="{message}")


_current: _Instruments | None = None


def _instruments() -> _Instruments | None:
    """The instruments of the provider in force; None if the program has no metrics."""
    global _current  # noqa: PLW0603
    api = sys.modules.get(_API)
    if api is None:
        return None
    provider = api.get_meter_provider()
    # The program may set the provider after the first call.
    if _current is None or _current.provider is not provider:
        _current = _Instruments(provider)
    return _current


@contextmanager
def publishing(topic: object) -> Iterator[None]:
    """Record how long a publish takes; ``published`` counts its messages."""
    with _timed("publish", topic):
        yield


def published(topic: object, reply: object) -> None:
    """Count the messages of a publish, which returned this."""
    if (found := _instruments()) is not None:
        count = len(reply.messages) if isinstance(reply, PublishReply) else 1
        found.sent.add(count, _attributes("publish", topic))


class Settling:
    """A settle under way."""

    reply: object = None
    """What the verb returned: its outcomes, the only one, or nothing."""


@contextmanager
def settling(queue: object, settlements: Sequence[object]) -> Iterator[Settling]:
    """Record how long a settle takes, and what becomes of the settlements."""
    settling = Settling()
    try:
        with _timed("settle", queue):
            yield settling
    except Exception as error:
        _count_settled(queue, settlements, error)
        raise
    _count_settled(queue, settlements, settling.reply)


@contextmanager
def claiming(queue: object) -> Iterator[None]:
    """Record a claim that fails; ``claimed`` records others."""
    begun = time.perf_counter()
    try:
        yield
    except Exception as error:
        if (found := _instruments()) is not None:
            attributes = _attributes("claim", queue) | {"error.type": type(error).__name__}
            found.operation.record(time.perf_counter() - begun, attributes)
        raise


def claimed(queue: object, deliveries: Sequence[Delivery], seconds: float | None) -> None:
    """Record a claim that got these. Without a duration it was part of a settle."""
    found = _instruments()
    if found is None or not deliveries:
        return
    if seconds is not None:
        found.operation.record(seconds, _attributes("claim", queue))
    for name, count in Counter(delivery.queue for delivery in deliveries).items():
        found.consumed.add(count, _attributes("claim", name))


def handled(queue: str, handler: str, outcome: str, seconds: float) -> None:
    """Record a handling."""
    found = _instruments()
    if found is not None:
        attributes = {"code.function.name": handler, "penstock.outcome": outcome}
        found.process.record(seconds, _attributes("handle", queue) | attributes)


def _count_settled(queue: object, settlements: Sequence[object], reply: object) -> None:
    """Count settlements by verb and verdict; ``reply`` has their outcomes, or is the error."""
    found = _instruments()
    if found is None:
        return
    outcomes = getattr(reply, "outcomes", reply)
    answers = outcomes if isinstance(outcomes, list | tuple) else [outcomes]
    counts: Counter[tuple[str, str]] = Counter()
    for index, settlement in enumerate(settlements):
        if not isinstance(settlement, Extend):
            answer = answers[index] if index < len(answers) else answers[-1]
            counts[type(settlement).__name__.lower(), _verdict(answer)] += 1
    for (verb, verdict), count in counts.items():
        attributes = {"penstock.settlement": verb, "penstock.verdict": verdict}
        found.settled.add(count, _attributes("settle", queue) | attributes)


@contextmanager
def _timed(operation: str, destination: object) -> Iterator[None]:
    """Record the duration of the body, and its error."""
    attributes = _attributes(operation, destination)
    begun = time.perf_counter()
    try:
        yield
    except StaleReceipt:
        # One verdict of several, which not every caller gets as an exception.
        raise
    except BaseException as error:
        attributes["error.type"] = type(error).__name__
        raise
    finally:
        if (found := _instruments()) is not None:
            found.operation.record(time.perf_counter() - begun, attributes)


def _verdict(answer: object) -> str:
    if isinstance(answer, Outcome):
        return str(answer.verdict)
    if isinstance(answer, StaleReceipt):
        return str(Verdict.STALE)
    return "error" if isinstance(answer, BaseException) else str(Verdict.OK)


def _attributes(operation: str, destination: object) -> dict[str, str]:
    if isinstance(destination, list | tuple):
        destination = ",".join(map(str, destination))
    return {
        "messaging.system": "penstock",
        "messaging.operation.name": operation,
        "messaging.destination.name": str(destination),
    }
