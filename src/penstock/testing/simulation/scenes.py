"""Scenes: short scripts in which all clients meet on one queue, id or segment at the same time.

Random steps rarely do that. A scene is the beginning of a program; random steps follow. Steps are
given as the name of a method of ``clients.Client`` and its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, Final, TypeAlias

from penstock.testing.simulation.policies import FILTERS, LINE, NARROW, TENANTS, WORK

__all__ = ["random_scene"]

_Script: TypeAlias = list[tuple[str, dict[str, Any]]]

#: Longer than the log retention of two programs in three.
_OLD_MS: Final = 100_000


def random_scene(random: Random, clients: int) -> list[_Script]:
    """The first steps of every client."""
    return random.choice(_SCENES)(random, clients)


def _claims(random: Random, clients: int) -> list[_Script]:
    """Each client publishes a message of its own, and claims one."""
    return [
        [_publish(WORK, {}), *[_claim(WORK, number, random.choice((1, 2)))] * 2]
        for number in range(clients)
    ]


def _owners(random: Random, clients: int) -> list[_Script]:
    """Consumers compete for the partitions of one queue."""
    return [
        [
            _publish(LINE, *({"partition_key": random.choice("ab")} for _ in range(2))),
            ("join", {"tenant": TENANTS[0], "queue": LINE, "consumer": f"c{number}"}),
            _claim(LINE, number, 2),
            _claim(LINE, number, 2),
        ]
        for number in range(clients)
    ]


def _depths(random: Random, clients: int) -> list[_Script]:
    """Clients publish to a queue with a ``max_depth``."""
    return [[_publish(NARROW, *_few(random)) for _ in range(3)] for _ in range(clients)]


def _new_depth(random: Random, clients: int) -> list[_Script]:
    """Clients publish to a queue while one of them sets a ``max_depth``, and publishes too."""
    scripts = [[_meet_at(1_000), _publish(NARROW, *_few(random))] for _ in range(clients)]
    limit = _change(random.choice((2, 3, 4)))
    scripts[0] = [_change(None), _meet_at(1_000), limit, *[_publish(NARROW, *_few(random))] * 2]
    return scripts


def _tokens(random: Random, clients: int) -> list[_Script]:
    """Clients claim from a queue with a ``throughput_limit``."""
    return [
        [_publish(NARROW, {}, {}), *[_claim(NARROW, number, random.choice((1, 2, 3)))] * 2]
        for number in range(clients)
    ]


def _filters(random: Random, clients: int) -> list[_Script]:
    """One client changes the filter of a queue that the others publish to, and publish to later."""
    scripts = [
        [_publish(NARROW, *_few(random)), _meet_at(1_000), _publish(NARROW, *_few(random))]
        for _ in range(clients)
    ]
    scripts[0] = [_change(None, FILTERS[1])]
    return scripts


def _old_entries(random: Random, clients: int) -> list[_Script]:
    """A sweep finds old entries without deliveries, and replays bring them back."""
    place = {"tenant": TENANTS[1], "queue": "all"}
    purge = ("purge", {**place, "state": "available", "where": None, "limit": 100})
    first = [_publish("bills", {}, tenant=TENANTS[1]), _meet_at(_OLD_MS), purge]
    scripts: list[_Script] = [[*first, ("sweep", {"limit": 10_000})]]
    for _ in range(clients - 1):
        wait = _meet_at(_OLD_MS + random.choice((0, 1, 2, 5)))
        scripts.append([wait, *[_replay(place, "log")] * 2])
    return scripts


def _orderings(random: Random, clients: int) -> list[_Script]:
    """A queue becomes ordered while others replay what is done in it."""
    place = {"tenant": TENANTS[0], "queue": "late"}
    policy = {"start": "latest", "back": 0, "filter": None, "max_attempts": 3, "bucket_size": 1}
    scripts: list[_Script] = [[_meet_at(1_000), _replay(place, "done")] for _ in range(clients)]
    scripts[0] = [
        ("put_queue", {**place, **policy}),
        _publish("bills", *({"amount": 9} for _ in range(random.choice((1, 2, 3))))),
        ("ack_some", {**place, "consumer": "c0", "limit": 10}),
        _meet_at(1_000),
        ("change_ordering", {**place, "ordering": "partition"}),
    ]
    return scripts


def _repeated_acks(random: Random, clients: int) -> list[_Script]:
    """Deliveries are acked and replayed; their receipts stay stale."""
    tenant = random.choice(TENANTS)
    scripts: list[_Script] = []
    for number in range(clients):
        own = {"tenant": tenant, "queue": "all", "consumer": f"c{number}"}
        script = [_publish("bills", {}, {}, tenant=tenant), ("replay_acked", {**own, "limit": 2})]
        if random.random() < 0.5:
            script.append(("ack_some", {**own, "limit": 1}))
        scripts.append(script)
    return scripts


def _keys(random: Random, clients: int) -> list[_Script]:
    """Clients publish one key while they claim its message and return it."""
    scripts: list[_Script] = []
    for number in range(clients):
        script = [_publish("bills", {"key": "k", "amount": random.choice((1, 9))})]
        for _ in range(3):
            verb = random.choice(("nack", "release", "release", "ack"))
            script += [_claim(random.choice(("all", "late")), number, 1)]
            script += [("settle", {"chosen": [(0, verb, 0)]})] * random.choice((0, 1))
            script += [_publish("bills", {"key": "k", "amount": random.choice((1, 9))})]
        scripts.append(script)
    return scripts


_SCENES: Final[tuple[Callable[[Random, int], list[_Script]], ...]] = (
    *(
        _claims,
        _owners,
        _depths,
        _new_depth,
        _tokens,
        _filters,
        _old_entries,
        _orderings,
        _repeated_acks,
        _keys,
    ),
)


def _few(random: Random) -> list[dict[str, Any]]:
    """A few messages; those with an id are published in several statements."""
    batch = [{"color": random.choice(("red", "blue"))} for _ in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.7:
        batch[0]["id"] = f"{random.getrandbits(40):x}"
    return batch


def _publish(
    topic: str, *batch: dict[str, Any], tenant: str = TENANTS[0]
) -> tuple[str, dict[str, Any]]:
    return "publish", {
        "tenant": tenant,
        "topic": topic,
        "batch": list(batch),
        "durability": "fsync",
        "batch_id": None,
    }


def _replay(place: dict[str, str], source: str) -> tuple[str, dict[str, Any]]:
    return "replay", {
        **place,
        "source": source,
        "where": None,
        "limit": 100,
        "rate": None,
        "dry_run": False,
        "replay_id": None,
    }


def _meet_at(ms: int) -> tuple[str, dict[str, Any]]:
    """Continue together with the other clients at this time."""
    return "sleep_until", {"ms": ms}


def _claim(queue: str, client: int, limit: int) -> tuple[str, dict[str, Any]]:
    return "claim", {
        "tenant": TENANTS[0],
        "queue": queue,
        "consumer": f"c{client}",
        "limit": limit,
        "lease_ms": 5_000,
        "wait_ms": 0,
    }


def _change(max_depth: int | None, filter_: str = FILTERS[0]) -> tuple[str, dict[str, Any]]:
    return "change_narrow", {"max_depth": max_depth, "filter": filter_}
