"""Escaping: any text as a valid Penstock name, and back.

Doors use the names of other systems, such as ``celery@host``, ``_x`` or ``a/b``. A text that is a
valid name already stays as it is. Any other text is written as ``esc.`` and then, character by
character: letters, digits, dots and dashes unchanged, an underscore doubled, and every other
character as its UTF-8 bytes, each as an underscore and two hexadecimal digits. ``celery@host``
becomes ``esc.celery_40host``. Texts that end in the reserved suffix ``.dlq``, or that begin with
the reserved ``penstock.`` or with ``esc.`` themselves, are escaped too, so no two texts have the
same name.

``unescape`` reverses it, and refuses what ``escape`` never returns.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadName
from penstock.model.limits import DLQ_SUFFIX, MAX_NAME, check_name, shown
from penstock.model.queue_events import RESERVED_PREFIX

__all__ = ["ESCAPED_PREFIX", "escape", "unescape"]

#: Begins every escaped name.
ESCAPED_PREFIX: Final = "esc."
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.-]")
_CODED: Final = re.compile(r"__|(?:_[0-9A-F]{2})+")


def escape(text: str, field: str = "name") -> str:
    """The name that stands for ``text``; ``unescape`` returns the text.

    Raises ``BadName`` if the name is longer than 128 characters, or if the text is not valid
    Unicode. ``field`` is the field that the error names.
    """
    if not isinstance(text, str):
        raise BadName(f"{shown(text)} is not a text.", field=field)
    if _is_name(text) and not text.startswith((ESCAPED_PREFIX, RESERVED_PREFIX)):
        return text
    if len(text) > MAX_NAME:
        raise _too_long(text, field)
    try:
        escaped = ESCAPED_PREFIX + _UNSAFE.sub(_code, text)
    except UnicodeEncodeError as error:
        raise BadName(f"{shown(text)} is not valid Unicode.", field=field) from error
    if escaped.endswith(DLQ_SUFFIX):
        escaped = escaped[: -len(DLQ_SUFFIX)] + _hex(b".") + DLQ_SUFFIX[1:]
    if len(escaped) > MAX_NAME:
        raise _too_long(text, field)
    return escaped


def unescape(name: str, field: str = "name") -> str:
    """The text that a name stands for. Raises ``BadName`` if ``escape`` never returns the name."""
    check_name(name, field)
    if not name.startswith(ESCAPED_PREFIX):
        text = name
    else:
        try:
            text = _CODED.sub(_decode, name.removeprefix(ESCAPED_PREFIX))
        except UnicodeDecodeError:
            text = ""
    # Every text has one name: other spellings are refused.
    if escape(text, field) != name:
        raise BadName(f"{name!r} is not an escaped name.", field=field)
    return text


def _is_name(text: str) -> bool:
    try:
        check_name(text, "name")
    except BadName:
        return False
    return True


def _code(found: re.Match[str]) -> str:
    character = found.group()
    return "__" if character == "_" else _hex(character.encode())


def _hex(raw: bytes) -> str:
    return "".join(f"_{byte:02X}" for byte in raw)


def _decode(found: re.Match[str]) -> str:
    coded = found.group()
    return "_" if coded == "__" else bytes.fromhex(coded.replace("_", "")).decode()


def _too_long(text: str, field: str) -> BadName:
    return BadName(
        f"{shown(text)} is too long: escaped names have at most {MAX_NAME} characters.",
        field=field,
        limit=MAX_NAME,
    )
