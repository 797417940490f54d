"""The writer record: which process writes to a store on an object store, and whether it is alive.

The writer renews the record at least every third of its lease, with a commit of its own if it has
no other. A process that wants to write first watches the record: if the record does not change for
a whole lease, on the watcher's own clock, the writer is gone, and opening the store fences it.
Fencing keeps the store correct in any case; the record keeps two servers from taking it from each
other, and has the URL of the writer for callers.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from penstock.errors import StoreCorrupt
from penstock.storage.keyvalue.encoding import seal, unseal

__all__ = ["RENEWALS_PER_LEASE", "WriterRecord", "decode_writer", "encode_writer", "this_process"]

RENEWALS_PER_LEASE: Final = 3


class WriterRecord(Struct, frozen=True, array_like=True):
    """The process that writes."""

    id: str
    """Random, one per opening of the store."""
    url: str
    """Where callers reach it; empty for a program without a server."""
    host: str
    pid: int
    renewal: int
    """Counts renewals, so that each differs from the one before."""
    lease_ms: int
    released: bool = False
    """The writer has closed the store."""
    processes: str = ""
    """Which process ids ``pid`` is one of; empty in records of earlier versions."""

    @property
    def is_gone(self) -> bool:
        """Whether the writer has certainly ended."""
        if self.released or self.id == "":
            return True
        here = (socket.gethostname(), _processes())
        if not self.processes or (self.host, self.processes) != here or self.pid == os.getpid():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except OSError:
            return False
        return False

    def __str__(self) -> str:
        return f"{self.url or 'a program'} (process {self.pid} on {self.host})"


def this_process(id: str, url: str, lease_ms: int) -> WriterRecord:
    """The record of this process, before its first renewal."""
    return WriterRecord(
        id, url, socket.gethostname(), os.getpid(), 0, lease_ms, processes=_processes()
    )


@cache
def _processes() -> str:
    """The boot and the namespace of this process's id.

    Containers on the network of their host have its name, but not its process ids. Without Linux's
    ``/proc`` there are no such containers, and the name of the host is enough.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "host"


def encode_writer(record: WriterRecord) -> bytes:
    """The value of the record."""
    return seal(msgspec.msgpack.encode(record))


def decode_writer(value: bytes) -> WriterRecord:
    """The record of a value; ``StoreCorrupt`` for anything else."""
    try:
        return msgspec.msgpack.decode(unseal(value, "writer"), type=WriterRecord)
    except msgspec.DecodeError as error:
        raise StoreCorrupt("The writer record cannot be decoded.") from error
