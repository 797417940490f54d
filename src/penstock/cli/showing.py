"""Values formatted for people: times, ages, sizes, payloads, all safe for a terminal.

The content of messages is untrusted. Control characters are shown as escapes, so that no header
or error text can move the cursor or repaint the screen.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

__all__ = ["age", "amount", "moment", "preview", "safe"]

#: C0 and C1 controls, line separators, and characters that change the direction of text.
_CONTROLS: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_NAMED: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_STEPS: Final = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000))
_SIZES: Final = (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024))


def safe(text: str, *, lines: bool = False) -> str:
    """Escape everything that a terminal interprets; ``lines`` keeps newlines and tabs."""
    return _CONTROLS.sub(lambda found: _escape(found[0], lines), text)


def _escape(character: str, lines: bool) -> str:
    if lines and character in "\n\t":
        return character
    code = ord(character)
    return _NAMED.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def preview(payload: bytes, width: int = 60) -> str:
    """The beginning of a payload on one line; bytes that are not text are escaped."""
    text = safe(payload[: width * 4].decode(errors="backslashreplace"))
    return text if len(text) <= width and len(payload) <= width * 4 else text[: width - 1] + "…"


def moment(at_ms: int | None) -> str:
    """A time in UTC, to the millisecond; empty for None."""
    if at_ms is None:
        return ""
    try:
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(at_ms)
    return at.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1000:03d}Z"


def age(duration_ms: int | None) -> str:
    """A duration in its two largest units: ``2h5m``, ``31s``, ``250ms``."""
    if duration_ms is None:
        return ""
    if duration_ms < 1000:
        return f"{duration_ms}ms"
    out = []
    for unit, size in _STEPS:
        if duration_ms >= size:
            out.append(f"{duration_ms // size}{unit}")
            duration_ms %= size
        elif out:
            break
        if len(out) == 2:
            break
    return "".join(out)


def amount(size_bytes: int) -> str:
    """A size in bytes, KiB, MiB or GiB."""
    for unit, size in _SIZES:
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes} B"
