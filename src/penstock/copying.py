"""Copies a whole store into an empty one, of any engine (X1).

The source is opened exclusively, or refused while a server has it open. The target has no identity
until everything was read back and compared; until then no engine opens it. A copy that was
interrupted is continued by the same call. The copy begins a new epoch, so lakes and checkpoints
of the source are not mistaken for its own (A1).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from importlib import import_module
from typing import Final, Protocol
from urllib.parse import urlsplit

from msgspec import Struct

from penstock.errors import BadUrl, SourceChanged, StoreCorrupt
from penstock.model.identity import ID_BYTES
from penstock.model.secrets import mask_password
from penstock.storage.randomness import RandomBytes, random_bytes
from penstock.storage.transfer import Family, Item, Progress, Source, Target, Totals, batches

__all__ = [
    "Copied",
    "Report",
    "copy_items",
    "copy_store",
    "family_of",
    "open_source",
    "open_target",
]

_FAMILIES: Final[dict[str, Family]] = {
    **dict.fromkeys(("files", "rocksdb"), "keyvalue"),
    **{f"slatedb+{kind}": "keyvalue" for kind in ("az", "file", "gs", "s3")},
    **dict.fromkeys(("mysql", "postgresql"), "sql"),
}
#: The module of each family that opens its sources and targets.
_MODULES: Final[dict[Family, str]] = {
    "keyvalue": "penstock.storage.keyvalue.transfer.opening",
    "sql": "penstock.storage.sql.transfer.opening",
}

_CHANGED: Final = "What was copied before is not in the source any more"


class Report(Protocol):
    """Receives the progress: a stage, and how many items it has passed."""

    def __call__(self, stage: str, items: int) -> None:
        """Show the progress."""


class Copied(Struct, frozen=True):
    """A finished copy."""

    items: dict[str, int]
    """How many items of each kind the target has."""
    continued: bool
    """Whether an earlier call had begun it."""
    renumbered: bool
    """Whether messages have other ids than in the source."""


def family_of(url: str) -> Family:
    """The family of the engine that opens the URL."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    family = _FAMILIES.get(scheme)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise BadUrl(f"{mask_password(url)!r} cannot be copied; schemes are {known}.", field="url")
    return family


async def open_source(url: str) -> Source:
    """Open a store to be copied; raises if another process may write to it."""
    source: Source = await import_module(_MODULES[family_of(url)]).open_source(url)
    return source


async def open_target(url: str) -> Target:
    """Open a store to copy into."""
    target: Target = await import_module(_MODULES[family_of(url)]).open_target(url)
    return target


def _silent(stage: str, items: int) -> None:
    del stage, items


async def copy_store(
    from_url: str, to_url: str, report: Report = _silent, random: RandomBytes = random_bytes
) -> Copied:
    """Copy the store at one URL to the other, or continue that."""
    family_of(to_url)
    source = await open_source(from_url)
    try:
        target = await open_target(to_url)
        try:
            return await copy_items(source, target, report, random)
        finally:
            await target.close()
    finally:
        await source.close()


async def copy_items(
    source: Source, target: Target, report: Report = _silent, random: RandomBytes = random_bytes
) -> Copied:
    """Copy one open store to another, compare both, and give the copy its identity."""
    done = await target.begin(source.origin)
    totals = await _write(_stream(source, target), target, done, report)
    await source.check_unchanged()
    found = await _count(target.items(), report)
    if different := totals.difference(found):
        raise StoreCorrupt(f"The copy differs from what was written to it: {different}.")
    renumbered = source.family == "keyvalue" and target.family == "sql"
    # Other ids are other positions, so a renumbered copy is another store.
    store = random(ID_BYTES) if renumbered else source.origin.store
    await target.finish(store, random(ID_BYTES))
    return Copied(dict(sorted(totals.counts.items())), bool(done.batches), renumbered)


def _stream(source: Source, target: Target) -> AsyncIterator[Item]:
    if source.family == target.family:
        return source.items()
    return target.load(source.dump())


async def _write(
    items: AsyncIterator[Item], target: Target, done: Progress, report: Report
) -> Totals:
    """Write what the target does not have; returns the totals of the whole stream."""
    totals = Totals()
    number = 0
    async for batch in batches(items):
        number += 1
        totals.add(batch)
        if number > done.batches:
            await target.write(batch, Progress(done.origin, number, totals))
        elif number == done.batches and (different := done.totals.difference(totals)):
            raise SourceChanged(f"{_CHANGED}: {different}.")
        report("copying", totals.items)
    if number < done.batches:
        raise SourceChanged(f"{_CHANGED}.")
    return totals


async def _count(items: AsyncIterator[Item], report: Callable[[str, int], None]) -> Totals:
    totals = Totals()
    async for batch in batches(items):
        totals.add(batch)
        report("verifying", totals.items)
    return totals
