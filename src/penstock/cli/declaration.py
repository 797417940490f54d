"""Queues and topics as a TOML file: what ``penstock apply`` reads and ``penstock export`` writes.

A table ``[queues.NAME]`` has the fields of a queue's policy, ``[topics.NAME]`` those of a topic's.
TOML has no null: 0, or an empty text, means none. ``paused`` is not exported, because whether an
operator has paused a queue is its state.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

import msgspec
from msgspec import Struct

from penstock.errors import BadInput
from penstock.model.queue import QueueInfo, QueuePolicy, TopicPolicy
from penstock.settings.toml_text import toml_key, toml_value

__all__ = ["Declaration", "plain_policy", "read_declaration", "to_toml"]

#: A file with every queue that a tenant may have is smaller.
_MAX_BYTES: Final = 32 * 1024 * 1024
_HEADER: Final = re.compile(r"\s*\[[^\[].*\]\s*(#.*)?")
_KEY: Final = re.compile(r"\s*([A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')\s*[=.]")


class Declaration(Struct, frozen=True):
    """The tables of a file: the fields of each queue and topic, by name."""

    source: str
    """The file, for error messages."""
    text: str
    queues: Mapping[str, Mapping[str, Any]]
    topics: Mapping[str, Mapping[str, Any]]

    def refused(self, path: Sequence[str], detail: str, limit: int | str | None = None) -> BadInput:
        """The error that names the line and the field at ``path``."""
        return BadInput(self.at(path, detail), field=".".join(path), limit=limit)

    def at(self, path: Sequence[str], detail: str) -> str:
        """The text of an error, preceded by the line and the field at ``path``."""
        number = _line_of(self.text, path)
        place = self.source if number is None else f"{self.source}, line {number}"
        return f"{place}: {'.'.join(path)}: {detail}"


def read_declaration(file: str) -> Declaration:
    """Read the file, ``-`` for the input, and check its shape."""
    source = "the input" if file == "-" else file
    try:
        content = _read_bytes(file)
        if len(content) > _MAX_BYTES:
            raise BadInput(f"{source} is too large.", field="file", limit=_MAX_BYTES)
        text = content.decode()
        tables = tomllib.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        # A TOMLDecodeError is a ValueError that names the line.
        raise BadInput(f"{source} cannot be read: {error}.", field="file") from error
    declared = Declaration(source, text, tables.get("queues", {}), tables.get("topics", {}))
    _check_shape(declared, tables)
    return declared


def _read_bytes(file: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(_MAX_BYTES + 1)
    with Path(file).open("rb") as stream:
        return stream.read(_MAX_BYTES + 1)


def _check_shape(declared: Declaration, tables: Mapping[str, Any]) -> None:
    for name, table in tables.items():
        if name not in ("queues", "topics"):
            raise declared.refused([name], "The file has the tables queues and topics only.")
        if not isinstance(table, Mapping):
            raise declared.refused([name], "This must be a table.")
        kind = QueuePolicy if name == "queues" else TopicPolicy
        for item, fields in table.items():
            if not isinstance(fields, Mapping):
                raise declared.refused([name, item], "This must be a table.")
            for field in fields:
                if field not in kind.__struct_fields__:
                    known = ", ".join(sorted(kind.__struct_fields__))
                    raise declared.refused(
                        [name, item, field], f"There is no such field; there are {known}."
                    )


def plain_policy(policy: QueuePolicy | TopicPolicy) -> dict[str, Any]:
    """The fields as values of TOML: 0, or an empty text, instead of None."""
    fields: dict[str, Any] = msgspec.to_builtins(policy)
    fields.pop("paused", None)
    types = get_type_hints(type(policy))
    none = {name: 0 if int in get_args(types[name]) else "" for name in fields}
    return {name: none[name] if value is None else value for name, value in fields.items()}


def to_toml(queues: Sequence[QueueInfo], topics: Sequence[tuple[str, TopicPolicy]]) -> str:
    """A file that declares these queues and topics as they are."""
    lines = ["# Written by `penstock export`; `penstock apply -f FILE` applies it."]
    for name, policy in topics:
        lines += ["", f"[topics.{toml_key(name)}]", *_assignments(policy)]
    for info in queues:
        lines += ["", f"[queues.{toml_key(info.name)}]", *_assignments(info.policy)]
    return "\n".join(lines) + "\n"


def _assignments(policy: QueuePolicy | TopicPolicy) -> Iterator[str]:
    for name, value in plain_policy(policy).items():
        yield f"{name} = {toml_value(value)}"


def _line_of(text: str, path: Sequence[str]) -> int | None:
    """The line that sets ``path``, or else that of the nearest table around it."""
    table: list[str] = []
    best: tuple[int, int] | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if _HEADER.fullmatch(line):
            table = found = _header_path(line)
        else:
            key = _KEY.match(line)
            found = [] if key is None else [*table, key[1].strip("\"'")]
        depth = min(len(found), len(path))
        # The deepest line wins, and the first of those.
        if depth > (best[0] if best else 0) and found[:depth] == list(path[:depth]):
            best = depth, number
    return None if best is None else best[1]


def _header_path(line: str) -> list[str]:
    path: list[str] = []
    try:
        level: Any = tomllib.loads(line)
    except ValueError:
        return path
    while level:
        [(name, level)] = level.items()
        path.append(name)
    return path
