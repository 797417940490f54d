"""Masks the secrets in a text, for messages, logs and settings."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["MASK", "mask_password"]

#: Shown instead of a secret.
MASK: Final = "***"
#: The password in postgresql://user:password@host/name. It extends to the last @: a password that
#: was not percent-encoded may contain any character, and masking too much is harmless.
_IN_FRONT: Final = re.compile(r"(?<=://)([^/@:\s]*):.*(?=@)", re.DOTALL)
#: The password among the options, where other programs accept it.
_BEHIND: Final = re.compile(r"(?<=[?&])((?:ssl)?password|passwd|pwd)=[^&#\s'\"]*", re.IGNORECASE)


def mask_password(url: str) -> str:
    """The URL with its password masked."""
    return _BEHIND.sub(rf"\1={MASK}", _IN_FRONT.sub(rf"\1:{MASK}", url))
