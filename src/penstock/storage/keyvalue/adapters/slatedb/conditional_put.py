"""Checks that the object store honours conditional PUTs, on which fencing depends.

Some S3 servers ignore ``If-None-Match: *``. On these two writers would overwrite each other's
objects, both would be acknowledged, and the store would not open again. The check opens a scratch
store twice and lets the first writer commit: it must be fenced. Each process checks a bucket once.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import StoreUnavailable
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi, wait
from penstock.storage.keyvalue.adapters.slatedb.error_mapping import is_fenced, store_error
from penstock.storage.keyvalue.adapters.slatedb.location import Location
from penstock.storage.keyvalue.adapters.slatedb.object_store import (
    build_store,
    open_writer,
    prepare_directories,
)

__all__ = ["check_bucket", "check_conditional_put"]

_checked: set[tuple[object, ...]] = set()
#: The scratch store has no background work.
_QUIET = {
    "compactor_options": None,
    "garbage_collector_options": None,
    "manifest_poll_interval": "3600s",
}


def check_bucket(location: Location, id: str) -> None:
    """As ``check_conditional_put``, for a server that may have to take over in a hurry.

    Also checks the directories.
    """
    prepare_directories(location)
    try:
        if location.is_remote:
            check_conditional_put(location, build_store(location), id)
    except (uniffi.Error, TimeoutError) as error:
        raise store_error(location.name, error) from error


def check_conditional_put(location: Location, store: Any, id: str) -> None:
    """Raise ``StoreUnavailable`` if the bucket does not honour conditional PUTs."""
    bucket = (location.kind, location.bucket, *location.config)
    if not location.is_remote or bucket in _checked:
        return
    path = f"{location.path}/check-{id}"
    seconds = location.timeout_ms / 1000
    first = open_writer(location, store, path, **_QUIET)
    try:
        second = open_writer(location, store, path, **_QUIET)
        wait(second.shutdown(), seconds)
        if not _is_first_fenced(first, seconds):
            raise StoreUnavailable(
                f"The object store of {location.name} ignores conditional PUTs (If-None-Match), "
                "so two servers could overwrite each other's commits.",
                field="url",
            )
    finally:
        _remove(path, store, seconds)
    _checked.add(bucket)


def _is_first_fenced(first: Any, seconds: float) -> bool:
    try:
        wait(first.put(b"check", b""), seconds)
        wait(
            first.flush_with_options(uniffi.FlushOptions(flush_type=uniffi.FlushType.WAL)), seconds
        )
    except uniffi.Error as error:
        if is_fenced(error):
            return True
        raise
    return False


def _remove(path: str, store: Any, seconds: float) -> None:
    try:
        wait(uniffi.AdminBuilder(path, store).build().delete_db(True), seconds)
    except (uniffi.Error, TimeoutError):
        return  # A few small objects stay.
