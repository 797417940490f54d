"""How deep a payload may nest, and how a position inside it is written.

Checkers recurse into the payload, and those of the libraries use the native stack: a deeply
nested payload of one megabyte crashes the process. So the depth is checked before anything
recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

__all__ = ["MAX_DEPTH", "check_depth", "pointer", "printable"]

#: Levels of objects and arrays. Real payloads nest a dozen; the libraries survive thousands.
MAX_DEPTH: Final = 64
_MAX_POINTER: Final = 120
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))


def check_depth(text: bytes) -> bool:
    """Whether a JSON text stays within ``MAX_DEPTH``; with unclosed brackets it may not."""
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return True
    brackets = _STRING.sub(b"", text).translate(_ONE_KIND, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):
        if not brackets:
            break
        # Each pass removes the innermost level.
        brackets = brackets.replace(b"[]", b"")
    return not brackets


def pointer(path: Iterable[str | int]) -> str:
    """A position in a payload as a JSON pointer, shortened for reading."""
    steps = [str(step).replace("~", "~0").replace("/", "~1") for step in path]
    text = printable("".join(f"/{step}" for step in steps), _MAX_POINTER)
    return text or "the top"


def printable(text: str, most: int) -> str:
    """The text without control characters, cut to ``most`` characters."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in short)
