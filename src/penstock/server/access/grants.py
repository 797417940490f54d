"""Grants: an action on the names that a pattern matches.

``publish:orders-*`` lets its holder publish to every topic whose name begins with ``orders-``.
The only wildcard is ``*``, which stands for any characters, none included. ``admin`` implies
``publish`` and ``consume`` on the same names, and a grant on a queue covers its dead-letter
queue. What is not granted is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from typing import Final

from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.limits import DLQ_SUFFIX, shown

__all__ = [
    "ALL_GRANTS",
    "EVERYTHING",
    "MAX_GRANTS",
    "Action",
    "Grant",
    "parse_grant",
    "parse_grants",
]

#: The need for every name there is, as reading the log has it. Since no name holds a ``*`` and
#: a pattern matches one by a wildcard only, nothing but the pattern ``*`` meets it.
EVERYTHING: Final = "*"
#: A check looks at every grant of a credential.
MAX_GRANTS: Final = 64

#: Of a name with the suffix of a dead-letter queue.
_MAX_NAME: Final = 128 + len(DLQ_SUFFIX)
_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._*-]{0,127}")


class Action(StrEnum):
    """What may be done with a name."""

    PUBLISH = "publish"
    """To a topic."""
    CONSUME = "consume"
    """From a queue: claim, settle, join; browse it and count it."""
    ADMIN = "admin"
    """Everything: create, change, pause, purge, replay, delete; and the two others."""


class Grant(Struct, frozen=True):
    """One action on the names that match one pattern."""

    action: Action
    pattern: str

    def covers(self, action: str, name: str) -> bool:
        """Whether it lets its holder do ``action`` with ``name``."""
        if self.action != action and self.action is not Action.ADMIN:
            return False
        # A name that is too long to be one is not worth a place in the cache.
        return self.pattern == EVERYTHING or (
            len(name) <= _MAX_NAME and _matches(self.pattern, name)
        )

    def __str__(self) -> str:
        return f"{self.action}:{self.pattern}"


#: What somebody has who may do anything in a tenant.
ALL_GRANTS: Final = (Grant(Action.ADMIN, EVERYTHING),)


def parse_grant(text: object) -> Grant:
    """``action:pattern``."""
    action, _, pattern = text.partition(":") if isinstance(text, str) else ("", "", "")
    if action not in set(Action) or _PATTERN.fullmatch(pattern) is None:
        raise BadInput(
            f"{shown(text)} is not a grant such as publish:orders-*. The action is publish,"
            " consume or admin; the pattern is a name in which * stands for any characters.",
            field="grants",
        )
    if pattern.endswith(DLQ_SUFFIX):
        raise BadInput(
            f"{shown(text)} names a dead-letter queue; a grant on a queue covers that.",
            field="grants",
        )
    return Grant(Action(action), re.sub(r"\*+", "*", pattern))


def parse_grants(texts: Iterable[object]) -> tuple[Grant, ...]:
    """Several of them, at most ``MAX_GRANTS``, each once."""
    listed = list(texts)
    if len(listed) > MAX_GRANTS:
        raise BadInput(
            f"A credential has at most {MAX_GRANTS} grants.", field="grants", limit=MAX_GRANTS
        )
    return tuple(dict.fromkeys(parse_grant(text) for text in listed))


# Few patterns and few names make most of the calls; the cache answers in a tenth of the time.
@lru_cache(maxsize=4096)
def _matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name, or the queue whose dead letters it names.

    Every part between two wildcards is looked for once, from left to right, and the first place
    where it is found is as good as any: no backtracking, so no pattern is slow.
    """
    name = name.removesuffix(DLQ_SUFFIX)
    first, *parts = pattern.split("*")
    if not parts:
        return name == pattern
    *middle, last = parts
    end = len(name) - len(last)
    if not name.startswith(first) or not name.endswith(last) or end < len(first):
        return False
    at = len(first)
    for part in middle:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
