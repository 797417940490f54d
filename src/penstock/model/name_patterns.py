"""Patterns of names, in which ``*`` stands for any characters, including none.

There is no other wildcard. Grants and webhooks use them. A name is a pattern that matches itself.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = ["WILDCARD", "is_pattern", "matches", "normalized", "to_like"]

WILDCARD: Final = "*"
_PATTERN: Final = re.compile(r"[A-Za-z0-9*][A-Za-z0-9._*-]{0,127}")
#: No name contains it.
_LIKE_ESCAPE: Final = "!"


def is_pattern(text: object) -> bool:
    """Whether the text is a valid pattern or name. Reserved names are not refused."""
    return isinstance(text, str) and _PATTERN.fullmatch(text) is not None


def normalized(pattern: str) -> str:
    """The pattern with each sequence of wildcards as one."""
    return re.sub(r"\*+", WILDCARD, pattern)


def to_like(field: str, pattern: str) -> str:
    """The condition of a filter that is TRUE if ``field`` matches the pattern."""
    if WILDCARD not in pattern:
        return f"{field} = '{pattern}'"
    like = pattern.replace("_", f"{_LIKE_ESCAPE}_").replace(WILDCARD, "%")
    escape = f" ESCAPE '{_LIKE_ESCAPE}'" if _LIKE_ESCAPE in like else ""
    return f"{field} LIKE '{like}'{escape}"


# Most callers use few patterns and names; a cache hit takes a tenth of the time.
@lru_cache(maxsize=4096)
def matches(pattern: str, name: str) -> bool:
    """Whether the pattern matches the name.

    Each part between two wildcards is searched for once, from left to right, and the first match
    is always good enough: there is no backtracking, so no pattern is slow.
    """
    first, *parts = pattern.split(WILDCARD)
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
