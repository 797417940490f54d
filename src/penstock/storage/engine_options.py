"""How an engine is opened, and what it can do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from penstock.errors import NotWriter
from penstock.model.clock import Clock, SystemClock
from penstock.model.limits import Limits
from penstock.model.message import Durability
from penstock.model.queue import QueuePolicy
from penstock.storage.randomness import (
    Jitter,
    RandomBytes,
    full_jitter,
    random_bytes,
    random_token,
)

__all__ = ["Capabilities", "EngineOptions", "Role", "not_writer"]


class EngineOptions(Struct, frozen=True, kw_only=True):
    """How an engine is opened: injected dependencies and the operator's choices."""

    clock: Clock = SystemClock()
    jitter: Jitter = full_jitter
    token: Callable[[], int] = random_token
    """Returns numbers that are unique across all servers. Injected, like ``jitter``."""
    random: RandomBytes = random_bytes
    """For the identity of a new store."""
    limits: Limits = Limits()
    auto_create: bool = True
    """A message that matches no queue creates one named after its topic, if the name is free."""
    default_policy: QueuePolicy = QueuePolicy()
    """Of queues that a publish creates, and of fields that a caller does not set. Its filter is not
    used."""
    server_url: str | None = None
    """Where callers reach this server. Servers with a store on an object store stand by for each
    other; a program without a server does not open a store that another process writes."""
    archive: bool = False
    """Retention waits for ``archived``: an entry goes only after its copy is verified (A1)."""


class Role(Struct, frozen=True):
    """What a server does with a store that several servers open."""

    name: str = "writer"
    """``writer``; ``standby`` while another server writes; ``reader`` if this one never will."""
    writer: str | None = None
    """The URL of the server that writes, if it is known."""
    trouble: str = ""
    """Why a server that stands by cannot write although no other server does."""

    @property
    def is_standby(self) -> bool:
        """Whether only another server writes."""
        return self.name != "writer"


def not_writer(role: Role) -> NotWriter:
    """The refusal of a server that stands by or only reads."""
    what = (
        "The store was opened with reader=true, which only reads."
        if role.name == "reader"
        else "This server stands by for the store."
    )
    if role.writer:
        what += f" {role.writer} writes to it."
    elif role.trouble:
        what += f" It cannot write now: {role.trouble}"
    return NotWriter(what, writer=role.writer)


class Capabilities(Struct, frozen=True, kw_only=True):
    """What an engine can do, as data. Tests depend on a capability, never on an engine."""

    engine: str
    durability: Durability
    """The strongest durability that a reply can promise."""
    persistent: bool
    """Closing and reopening the same URL opens the same store."""
    multi_process: bool
    """Several processes may have the store open at the same time."""
    limits_throughput: bool = False
    """``claim`` enforces a queue's ``throughput_limit`` across all processes, and ``next_due``
    includes it. Otherwise the broker, which is then the only one, enforces it."""
    bytes_per_message: int = 0
    """Memory that every message of the log costs, about; 0: memory is bounded at any depth."""
    meant_for_messages: int | None = None
    """How many messages the engine is meant for; None: as many as the disk holds."""
    inbox_root: Path | None = None
    """The directory whose ``inbox/<topic>/`` publishes what is moved there; None: no inbox."""
