"""Grants: an action on the names that a pattern matches.

``publish:orders-*`` lets its holder publish to every topic whose name begins with ``orders-``.
The only wildcard is ``*``, which matches any characters, including none. ``admin`` implies the
other actions on the same names, ``consume`` implies ``read``, and a grant on a queue covers its
dead-letter queue. Everything else is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.limits import DLQ_SUFFIX, shown
from penstock.model.name_patterns import is_pattern, matches, normalized

__all__ = [
    "ALL_GRANTS",
    "EVERYTHING",
    "IMPLIED_BY",
    "MAX_GRANTS",
    "Action",
    "Grant",
    "parse_grant",
    "parse_grants",
]

#: The name to check for operations on all names, such as reading the log. No name contains a
#: ``*``, so only the pattern ``*`` covers it.
EVERYTHING: Final = "*"
#: Every check scans all grants of a credential.
MAX_GRANTS: Final = 64

#: The longest name, with the suffix of a dead-letter queue.
_MAX_NAME: Final = 128 + len(DLQ_SUFFIX)


class Action(StrEnum):
    """What a grant permits on a name."""

    PUBLISH = "publish"
    """To a topic."""
    READ = "read"
    """Look at a queue or a topic without changing anything: browse, count, explain, verify."""
    CONSUME = "consume"
    """From a queue: claim, settle, join; and read it."""
    ADMIN = "admin"
    """Everything: create, change, pause, purge, replay, delete, and the other actions."""


#: The actions whose grants permit an action.
IMPLIED_BY: Final[Mapping[str, frozenset[str]]] = {
    Action.PUBLISH: frozenset({Action.PUBLISH, Action.ADMIN}),
    Action.READ: frozenset({Action.READ, Action.CONSUME, Action.ADMIN}),
    Action.CONSUME: frozenset({Action.CONSUME, Action.ADMIN}),
    Action.ADMIN: frozenset({Action.ADMIN}),
}


class Grant(Struct, frozen=True):
    """One action on the names that match one pattern."""

    action: Action
    pattern: str

    def covers(self, action: str, name: str) -> bool:
        """Whether it permits ``action`` on ``name``."""
        if self.action is not Action.ADMIN and self.action not in IMPLIED_BY.get(action, ()):
            return False
        # Keep names that are too long to be valid out of the cache.
        return self.pattern == EVERYTHING or (
            len(name) <= _MAX_NAME and matches(self.pattern, name.removesuffix(DLQ_SUFFIX))
        )

    def __str__(self) -> str:
        return f"{self.action}:{self.pattern}"


#: The grants of a caller that may do anything in a tenant.
ALL_GRANTS: Final = (Grant(Action.ADMIN, EVERYTHING),)


def parse_grant(text: object) -> Grant:
    """Parse ``action:pattern``."""
    action, _, pattern = text.partition(":") if isinstance(text, str) else ("", "", "")
    if action not in set(Action) or not is_pattern(pattern):
        raise BadInput(
            f"{shown(text)} is not a grant such as publish:orders-*. The action is publish,"
            " read, consume or admin; the pattern is a name in which * stands for any characters.",
            field="grants",
        )
    if pattern.endswith(DLQ_SUFFIX):
        raise BadInput(
            f"{shown(text)} names a dead-letter queue; a grant on a queue covers that.",
            field="grants",
        )
    return Grant(Action(action), normalized(pattern))


def parse_grants(texts: Iterable[object]) -> tuple[Grant, ...]:
    """Parse at most ``MAX_GRANTS`` grants and drop duplicates."""
    listed = list(texts)
    if len(listed) > MAX_GRANTS:
        raise BadInput(
            f"A credential has at most {MAX_GRANTS} grants.", field="grants", limit=MAX_GRANTS
        )
    return tuple(dict.fromkeys(parse_grant(text) for text in listed))
