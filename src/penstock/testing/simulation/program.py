"""Random programs: what each client does, and when faults occur.

A program is plain data generated from its seed before anything runs, so that it can be printed,
shortened and repeated. Steps refer to what does not exist yet (a receipt, an offset) by a number
that is taken modulo the count when the step runs.

Which queues programs may change, delete and recreate is in ``policies``.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Final, TypeAlias

from msgspec import Struct

from penstock.model.delivery import ReplaySource
from penstock.model.limits import DLQ_SUFFIX
from penstock.model.queue import Start
from penstock.model.states import State
from penstock.testing.simulation.declared_policies import DEFAULTS
from penstock.testing.simulation.policies import DEAD, FILTERS, FRESH, LINE, NARROW, TENANTS, WORK
from penstock.testing.simulation.scenes import random_scene

__all__ = ["Draft", "Fault", "Program", "Step", "random_program"]

#: What differs from a plain message; a payload is added when it is published.
Draft: TypeAlias = dict[str, Any]


class Step(Struct, frozen=True):
    """One call of a client: the name of a method of ``clients.Client`` and its arguments."""

    verb: str
    arguments: dict[str, Any]
    cancel_after: int | None = None
    """The caller cancels the call after this many turns of the loop."""

    def __str__(self) -> str:
        shown = ", ".join(
            f"{name}={value}" for name, value in self.arguments.items() if value is not None
        )
        gone = "" if self.cancel_after is None else f"  # cancelled after {self.cancel_after} turns"
        return f"{self.verb}({shown}){gone}"


class Fault(Struct, frozen=True):
    """A fault that occurs when this many steps have begun."""

    kind: str
    at_step: int

    def __str__(self) -> str:
        return f"{self.kind} when {self.at_step} steps have begun"


class Program(Struct, frozen=True):
    """The steps of every client, in order, and the faults."""

    seed: int
    clients: tuple[tuple[Step, ...], ...]
    faults: tuple[Fault, ...]

    @property
    def steps(self) -> int:
        """The number of steps of all clients."""
        return sum(map(len, self.clients))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}"]
        lines += [f"  fault: {fault}" for fault in self.faults]
        for number, steps in enumerate(self.clients):
            lines.append(f"  client {number}:")
            lines += [f"    {step}" for step in steps]
        return "\n".join(lines)


def random_program(seed: int, steps: int, fault_kinds: tuple[str, ...]) -> Program:
    """A program of ``steps`` steps for two to five clients; most have a fault or two."""
    random = _Dice(f"program {seed}")
    clients = _begin(random, random.randint(2, 5), steps)
    # Each program prefers a few verbs, so that rare combinations occur often in some of them.
    favourites = random.sample(sorted(_VERBS), 4)
    names = [name for name, (weight, _) in _VERBS.items() for _ in range(weight)]
    names += favourites * 6
    left = steps - sum(map(len, clients))
    # Clients that do the same thing to one queue at the same time meet most often at the start.
    together = random.random() < 0.5
    while left > 0:
        if together and left >= len(clients):
            left -= _do_together(random, clients, left)
        else:
            name = random.choice(names)
            cancel_after = random.randint(1, 30) if random.random() < 0.05 else None
            step = Step(name, _VERBS[name][1](random), cancel_after)
            random.choice(clients).append(step)
            left -= 1
        together = random.random() < 0.03
    count = random.choice((0, 1, 1, 2, 3)) if fault_kinds else 0
    faults = sorted(
        (Fault(random.choice(fault_kinds), random.randint(1, steps)) for _ in range(count)),
        key=lambda fault: fault.at_step,
    )
    return Program(seed, tuple(map(tuple, clients)), tuple(faults))


def _begin(random: _Dice, clients: int, most: int) -> list[list[Step]]:
    """The first steps of every client: a scene, or a publish, so that bulk verbs find something."""
    if random.random() < 0.5:
        scripts = random_scene(random, clients)
        if sum(map(len, scripts)) <= most:
            return [[Step(verb, arguments) for verb, arguments in script] for script in scripts]
    return [[Step("publish", _publish(random))] for _ in range(clients)]


def _do_together(random: _Dice, clients: list[list[Step]], most: int) -> int:
    """Have every client make the same call on one queue or topic; returns the number of steps."""
    name = random.choice(_TOGETHER)
    first = _VERBS[name][1](random)
    verbs = [name, "route"] if name == "recreate_queue" else [name]
    taken = 0
    for verb in verbs[: most // len(clients)]:
        for steps in clients:
            own = _VERBS[verb][1](random)
            shared = {key: first[key] for key in _SHARED if key in first}
            if verb in ("publish", "publish_one"):
                # The same keys and ids, with at least one id.
                shared["batch"] = [{"id": "i", **first["batch"][0]}, *first["batch"][1:]]
            elif verb in ("claim", "claim_several", "settle_late"):
                own["limit"] = random.choice((1, 1, 2))  # Leave some for the other clients.
            arguments = {**own, **{key: shared[key] for key in shared if key in own}}
            if verb in _REPLACED_DURING and steps is clients[-1]:
                queue = arguments["queue"].removesuffix(DLQ_SUFFIX)
                place = {"tenant": arguments["tenant"], "queue": queue}
                steps.append(Step(random.choice(("delete_queue", "recreate_queue")), place))
            else:
                steps.append(Step(verb, arguments))
            taken += 1
    return taken


class _Dice(Random):
    """The random choices of one program, which prefers one queue."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self._focus = self.choice(_CHANGEABLE)

    def queue(self, names: Sequence[str]) -> str:
        """One of the names; half of the time the preferred queue or its dead-letter queue."""
        name = self.choice(names)
        if self.random() < 0.5:
            name = self._focus + DLQ_SUFFIX if name.endswith(DLQ_SUFFIX) else self._focus
        return name


# -- arguments -----------------------------------------------------------------------------

_CLAIMABLE: Final = (
    *([WORK] * 8 + ["all"] * 5 + ["lane", "wide"] * 3 + ["late", "red", "all.dlq", "red.dlq"] * 2),
    *("orders", "bills", FRESH, "lane.dlq", "late.dlq", NARROW, NARROW, LINE, LINE),
)
_CHANGEABLE: Final = ("all", "all", "lane", "late", "red", "wide")
_BULK: Final = (*_CHANGEABLE, "all", "all.dlq", "red.dlq")
#: Topics of queues whose deliveries neither change nor expire.
_KEYLESS: Final = (WORK, NARROW, LINE)
_IDS: Final = ("i", "j", "k")
_KEYS: Final = ("k", "l")
_PARTITIONS: Final = (None, "a", "b", "c")
_LABELS: Final[tuple[dict[str, str], ...]] = ({}, {"team": "ops"}, {"team": "ops", "tier": "1"})
_CONSUMERS: Final = ("c1", "c2", "c3")
_CONDITIONS: Final = (None, None, "color = 'red'", "amount >= 5", "priority > 4")
_LIMITS: Final = (1, 2, 3, 100)
_SETTLEMENTS: Final = ("ack", "ack", "ack", "nack", "nack", "reject", "release", "extend")


def _tenant(random: _Dice) -> str:
    return random.choice((TENANTS[0],) * 7 + TENANTS[1:])


def _draft(random: _Dice, topic: str) -> Draft:
    fields = {
        "color": random.choice((None, "red", "blue")),
        "amount": random.choice((None, 1, 5, 9.5)),
        "id": random.choice((None, None, None, *_IDS)),
        "key": None if topic in _KEYLESS else random.choice((None, None, *_KEYS)),
        "partition_key": random.choice(_PARTITIONS),
        "priority": random.choice((None, None, None, 0, 9)),
        "delay_ms": random.choice((None, None, None, 500, 5_000)),
        "ttl_ms": None if topic in _KEYLESS else random.choice((None, None, None, 1_000, 40_000)),
        "max_attempts": None if topic in _KEYLESS else random.choice((None, None, None, 1, 3)),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _batch(random: _Dice) -> dict[str, Any]:
    topic = random.choice((WORK, WORK, WORK, *("orders",) * 3, "bills", "bills", NARROW, LINE))
    return {
        "topic": topic,
        "batch": [_draft(random, topic) for _ in range(random.choice((1, 1, 2, 3, 5, 8)))],
    }


def _publish(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        **_batch(random),
        "durability": random.choice(("fsync", "fsync", "fsync", "os")),
        "batch_id": random.choice((None, None, None, "x", "y")),
    }


def _claim(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.queue(_CLAIMABLE),
        "consumer": random.choice(_CONSUMERS),
        "limit": random.choice(_LIMITS),
        "lease_ms": random.choice((None, 20, 1_000, 5_000, 45_000)),
        "wait_ms": random.choice((0, 0, 0, 200, 3_000, 30_000)),
        "where": random.choice(_CONDITIONS),
    }


def _claim_several(random: _Dice) -> dict[str, Any]:
    return {
        **_claim(random),
        "others": [random.queue(_CLAIMABLE) for _ in range(random.choice((1, 1, 2)))],
        "order": random.choice(("given", "fair")),
    }


def _settle(random: _Dice) -> dict[str, Any]:
    publishes = random.random() < 0.2
    return {
        "chosen": [
            (random.randint(0, 12), random.choice(_SETTLEMENTS), random.choice((None, 0, 500)))
            for _ in range(random.randint(1, 4))
        ],
        **(_batch(random) if publishes else {}),
    }


def _settle_late(random: _Dice) -> dict[str, Any]:
    claim = _claim(random)
    return {
        "verbs": [random.choice(_SETTLEMENTS), random.choice(_SETTLEMENTS)],
        **{name: claim[name] for name in ("tenant", "queue", "consumer", "limit")},
    }


def _put_queue(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.queue(_CHANGEABLE),
        "start": random.choice((Start.LATEST, Start.EARLIEST, Start.OFFSET, Start.TIME)),
        "back": (back := random.randint(0, 10_000)),
        "filter": random.choice((None, None, "amount >= 5", "topic = 'bills'")),
        "max_attempts": random.choice((1, 2, 3)),
        "max_depth": random.choice((None, None, 5)),
        "message_ttl_ms": random.choice((None, None, 1_000, 30_000)),
        "done_retention_s": random.choice((0, 10, 3600)),
        "throughput_limit": random.choice((None, None, None, 2)),
        "dead_letters": random.random() < 0.7,
        "dead_letter_topic": (None, None, DEAD, "bills")[back % 4],
        "dead_letter_expired": back % 3 == 0,
        "events": ((), (), ("done",), ("failed", "expired"))[back // 4 % 4],
        "labels": _LABELS[back % len(_LABELS)],
        "bucket_size": random.choice((0, 1, 1)),
    }


def _lower_attempts(random: _Dice) -> dict[str, Any]:
    return {
        **_queue(random),
        "consumer": random.choice(_CONSUMERS),
        "limit": random.choice(_LIMITS),
        "max_attempts": random.choice((1, 1, 2)),
    }


def _change_narrow(random: _Dice) -> dict[str, Any]:
    return {"max_depth": random.choice((None, 2, 4)), "filter": random.choice(FILTERS)}


def _queue(random: _Dice) -> dict[str, Any]:
    return {"tenant": _tenant(random), "queue": random.queue(_CHANGEABLE)}


def _replay(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.queue(_BULK),
        "source": random.choice(tuple(ReplaySource)).value,
        "where": random.choice(_CONDITIONS),
        "limit": random.choice((*_LIMITS, 100)),
        "rate": random.choice((None, None, 2)),
        "dry_run": random.random() < 0.15,
        "replay_id": random.choice((None, None, "r1", "r2")),
        "ttl_ms": random.choice((None, None, 1_000, 40_000)),
    }


def _purge(random: _Dice) -> dict[str, Any]:
    arguments = {
        "tenant": _tenant(random),
        "queue": random.queue(_BULK),
        "state": random.choice(tuple(State)).value,
        "where": random.choice(_CONDITIONS),
        "limit": random.choice((*_LIMITS, 100)),
    }
    numbers = [random.randint(0, 100) for _ in range(3)]
    chosen = random.choice((None, numbers[: 1 + numbers[0] % 3]))
    if chosen is not None and numbers[1] % 4:
        arguments["state"] = State.AVAILABLE.value  # Ids rarely name what is in another state.
    return {**arguments, "numbers": chosen}


def _cancel(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.choice((None, random.queue(_BULK))),
        "number": random.randint(0, 10_000),
    }


def _member(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.choice(("lane", "wide", LINE)),
        "consumer": random.choice(_CONSUMERS),
    }


def _look(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "queue": random.queue(_CLAIMABLE),
        "state": random.choice(tuple(State)).value,
        "number": random.randint(0, 10_000),
    }


def _find_by_id(random: _Dice) -> dict[str, Any]:
    return {
        "tenant": _tenant(random),
        "topic": random.choice((WORK, WORK, LINE, "bills", "orders")),
        "id": random.choice(_IDS),
        "partition_key": random.choice(_PARTITIONS),
    }


def _find_by_key(random: _Dice) -> dict[str, Any]:
    topic, key = random.choice(("bills", "orders")), random.choice(_KEYS)
    return {"tenant": _tenant(random), "topic": topic, "key": key}


_SLEEPS_MS: Final = (1, 1, 20, 499, 500, 1_000, 1_000, 2_000, 5_000, 30_000, 60_000, 600_000)

#: Verb to its weight and the function that makes its arguments.
_VERBS: Final = {
    "publish": (14, _publish),
    "publish_one": (5, _publish),
    "claim": (20, _claim),
    "claim_several": (5, _claim_several),
    "settle": (18, _settle),
    "settle_again": (3, lambda random: {"back": random.choice((0, 0, 0, 1, 2, 3))}),
    "settle_late": (3, _settle_late),
    "sleep": (8, lambda random: {"ms": random.choice(_SLEEPS_MS)}),
    "put_queue": (7, _put_queue),
    "lower_attempts": (6, _lower_attempts),
    "change_narrow": (2, _change_narrow),
    "replay_acked": (2, lambda random: {**_queue(random), "consumer": "c1", "limit": 2}),
    "delete_queue": (4, _queue),
    "recreate_queue": (3, _queue),
    "pause": (2, lambda random: {**_queue(random), "paused": random.random() < 0.4}),
    "route": (3, lambda random: {**_queue(random), "limit": random.choice(_LIMITS)}),
    "assign": (
        3,
        lambda random: {
            **_queue(random),
            "skipped": random.choice((0, 0, 0, 1, -1)),
            "count": random.choice(_LIMITS),
        },
    ),
    "replay": (6, _replay),
    "purge": (4, _purge),
    "cancel": (4, _cancel),
    "join": (3, _member),
    "leave": (2, _member),
    "archived": (2, lambda random: {"tenant": _tenant(random), "back": random.randint(0, 6)}),
    "sweep": (3, lambda random: {"limit": random.choice((1, 5, 10_000))}),
    "put_topic": (
        1,
        lambda random: {
            "tenant": _tenant(random),
            "topic": random.choice(("orders", "bills")),
            "ttl_ms": random.choice((None, 30_000)),
            "dedup_scope": random.choice(("topic", "partition_key")),
        },
    ),
    "publish_fresh": (
        2,
        lambda random: {
            "tenant": _tenant(random),
            "defaults": random.choice((None, *range(len(DEFAULTS)))),
        },
    ),
    "set_labels": (2, lambda random: {"labels": random.choice((None, *_LABELS))}),
    "list_by_labels": (
        2,
        lambda random: {"tenant": _tenant(random), "labels": random.choice(_LABELS)},
    ),
    "find_by_id": (3, _find_by_id),
    "find_by_key": (2, _find_by_key),
    "peek": (3, _look),
    "stats": (2, _look),
    "read": (2, _look),
}

#: Verbs that all clients run together, see ``_do_together``.
_TOGETHER: Final = (
    *("claim", "claim", "claim", "publish", "publish", "publish", "publish_one"),
    *("recreate_queue", "recreate_queue", "recreate_queue"),
    *("replay", "replay", "purge", "purge", "route", "put_queue", "delete_queue"),
    *("settle_late", "settle_again", "join", "sweep", "cancel", "cancel"),
    *("claim_several", "publish_fresh", "publish_fresh", "set_labels"),
)
#: Bulk verbs during which one of the clients deletes the queue.
_REPLACED_DURING: Final = frozenset({"replay", "purge", "route"})
#: The arguments that are then the same for all clients.
_SHARED: Final[tuple[str, ...]] = ("tenant", "queue", "topic")
