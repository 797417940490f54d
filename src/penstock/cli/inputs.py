"""Input of commands: payloads from arguments, files and standard input, as bytes.

Input is read as it arrives, so that a slow producer's line is published immediately and a fast
producer's lines are published together. The event loop waits for terminals and pipes, which stay
in blocking mode: other processes may share the descriptor.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

import click

from penstock.errors import BadInput, TooLarge
from penstock.model.limits import MAX_PAYLOAD_BYTES

__all__ = ["Source", "open_source", "read_payload"]

_TEXT: Final = "text/plain; charset=utf-8"
#: Read in one step while more is available: enough for a batch, little enough to publish soon.
_BLOCK_BYTES: Final = 1024 * 1024
_READ_BYTES: Final = 64 * 1024


class Source:
    """Input bytes, in blocks or lines."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self.position = 0
        """Bytes read so far."""

    @property
    def size(self) -> int | None:
        """Total bytes if the source is a file, else None."""
        if self._descriptor is None:
            return None
        status = os.fstat(self._descriptor)
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    async def read_all(self) -> bytes:
        """Read everything; raises ``TooLarge`` beyond the largest payload."""
        parts = []
        while block := await self._block():
            parts.append(block)
            _check_size(self.position)
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[list[bytes]]:
        """Lines without their newline, in groups as they arrived."""
        rest = b""
        while block := await self._block():
            *whole, rest = (rest + block).split(b"\n")
            _check_size(len(rest))
            if whole:
                yield whole
        if rest:
            yield [rest]

    async def _block(self) -> bytes:
        """Wait for the first byte and read what is available; empty at the end."""
        if self._descriptor is None:
            block = self._stream.read(_BLOCK_BYTES)
        else:
            await _readable(self._descriptor)
            block = os.read(self._descriptor, _READ_BYTES)
            parts = [block]
            length = len(block)
            while block and length < _BLOCK_BYTES and _has_more(self._descriptor):
                block = os.read(self._descriptor, _READ_BYTES)
                parts.append(block)
                length += len(block)
            block = b"".join(parts)
        self.position += len(block)
        return block


@contextmanager
def open_source(argument: str | None) -> Iterator[Source]:
    """Open ``@FILE``, or the standard input for ``-`` or None."""
    if argument in (None, "-"):
        if sys.stdin.isatty() and argument is None:
            raise click.UsageError("There is nothing to publish: use PAYLOAD, @FILE or -.")
        yield Source(sys.stdin.buffer)
        return
    if not argument.startswith("@"):
        raise click.UsageError("A stream comes from @FILE or the standard input.")
    try:
        # Unbuffered: the descriptor is read directly.
        stream = Path(argument[1:]).open("rb", buffering=0)  # noqa: SIM115
    except OSError as error:
        raise BadInput(f"Cannot read {argument[1:]}: {error.strerror}.", field="payload") from error
    with stream:
        try:
            yield Source(stream)
        except IsADirectoryError as error:
            raise BadInput(f"{argument[1:]} is a directory.", field="payload") from error


async def read_payload(argument: str | None) -> tuple[bytes, str | None]:
    """The payload's bytes and default content type.

    An argument that is valid UTF-8 is text; any other is bytes without a content type.
    """
    if argument is not None and argument != "-" and not argument.startswith("@"):
        raw = os.fsencode(argument)
        try:
            raw.decode()
        except UnicodeDecodeError:
            return raw, None
        return raw, _TEXT
    with open_source(argument) as source:
        return await source.read_all(), None


def _check_size(size: int) -> None:
    if size > MAX_PAYLOAD_BYTES:
        raise TooLarge(
            f"A payload of more than {MAX_PAYLOAD_BYTES} bytes cannot be published.",
            field="payload",
            limit=MAX_PAYLOAD_BYTES,
        )


def _descriptor(stream: BinaryIO) -> int | None:
    """None for an in-memory stream, as in tests."""
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):
        return None


async def _readable(descriptor: int) -> None:
    """Wait until a read would not block, which is always so for a file on disk."""
    loop = asyncio.get_running_loop()
    signal: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _tell, signal)
    except PermissionError:
        return
    try:
        await signal
    finally:
        loop.remove_reader(descriptor)


def _tell(signal: asyncio.Future[None]) -> None:
    if not signal.done():
        signal.set_result(None)


def _has_more(descriptor: int) -> bool:
    ready, _, _ = select.select([descriptor], [], [], 0)
    return bool(ready)
