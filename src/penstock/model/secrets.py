"""Secrets that a text holds, and the text without them: for messages, logs and settings."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MASK", "mask_password"]

#: What stands for a secret wherever one would be shown.
MASK: Final = "***"
#: The password in postgresql://user:password@host/name. It ends at the last @ there is: one that
#: was not percent-encoded may have any character in it, and hiding too much harms nobody.
_IN_FRONT: Final = re.compile(r"(?<=://)([^/@:\s]*):.*(?=@)", re.DOTALL)
#: The password among the options, where other programs take it.
_BEHIND: Final = re.compile(r"(?<=[?&])((?:ssl)?password|passwd|pwd)=[^&#\s'\"]*", re.IGNORECASE)


def mask_password(url: str) -> str:
    """The URL without the password that it may hold."""
    return _BEHIND.sub(rf"\1={MASK}", _IN_FRONT.sub(rf"\1:{MASK}", url))
