"""Durations and sizes as Spark's options write them: ``15m``, ``500ms``, ``64m``."""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadInput
from penstock.model.limits import shown

__all__ = ["parse_bytes", "parse_ms"]

_AMOUNT: Final = re.compile(r"([0-9]{1,15})\s*([a-z]*)", re.ASCII)
_MS: Final = {
    "": 1,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_BYTES: Final = {"": 1, "b": 1, "k": 2**10, "kb": 2**10, "m": 2**20, "mb": 2**20} | {
    "g": 2**30,
    "gb": 2**30,
    "t": 2**40,
    "tb": 2**40,
}


def parse_ms(name: str, text: str) -> int:
    """A duration in milliseconds, such as ``15m``; without a unit, milliseconds."""
    return _amount(name, text, _MS, "a duration such as 15m or 500ms")


def parse_bytes(name: str, text: str) -> int:
    """A size in bytes, such as ``64m``; without a unit, bytes."""
    size = _amount(name, text, _BYTES, "a size such as 64m")
    if size < 1:
        raise BadInput(f"{name} is {shown(text)}; it is at least 1 byte.", field=name)
    return size


def _amount(name: str, text: str, units: dict[str, int], kind: str) -> int:
    found = _AMOUNT.fullmatch(text.strip().lower())
    if found is None or found[2] not in units:
        raise BadInput(f"{name} is {shown(text)}; it is {kind}.", field=name)
    return int(found[1]) * units[found[2]]
