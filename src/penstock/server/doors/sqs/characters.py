"""The characters that a message and an XML document may have."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["has_invalid", "replace_invalid"]

_INVALID: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def has_invalid(text: str) -> bool:
    """Whether the text has a character that SQS and XML 1.0 do not allow."""
    return _INVALID.search(text) is not None


def replace_invalid(text: str) -> str:
    """The text with a question mark for each such character."""
    return _INVALID.sub("?", text)
