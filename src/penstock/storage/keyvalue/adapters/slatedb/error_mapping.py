"""Maps errors of SlateDB and of object stores to typed errors.

The binding has six kinds of errors. What the object store answered is in their text only, so the
text decides, by codes of the S3, Google and Azure protocols.
"""

from __future__ import annotations

import errno
import re
from typing import Final

from penstock.errors import (
    NotWriter,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from penstock.storage.keyvalue.adapters.slatedb.binding import uniffi

__all__ = ["is_fenced", "store_error", "writing_error"]

_NO_BUCKET: Final = ("nosuchbucket", "bucket does not exist", "containernotfound")
_DENIED: Final = (
    "accessdenied",
    "invalidaccesskeyid",
    "signaturedoesnotmatch",
    "authorizationheader",
    "authenticationfailed",
    "status 403",
    "403 forbidden",
    "401 unauthorized",
    "permissiondenied",
    "permission denied",
    "unauthenticated",
)
#: Without credentials the client asks the machine's provider for some.
_NO_CREDENTIALS: Final = (
    "missing credentials",
    'generic { store: "s3", source: credential',
    "instance metadata",
    "169.254.169.254",
)
#: The second sign is a conditional PUT of the manifest that lost.
_FENCED: Final = ("detected newer", "version already exists")
_FULL: Final = (
    "insufficientstorage",
    "507 insufficient",
    "status 507",
    "storagefull",
    "quotaexceeded",
    "no space left",
    "disk quota exceeded",
)
_THROTTLED: Final = ("slowdown", "503 service unavailable", "429 too many", "throttl", "serverbusy")
_READ_ONLY: Final = ("read-only file system", "405 method not allowed")
_UNREACHABLE: Final = (
    "connection refused",
    "error sending request",
    "dns error",
    "timed out",
    "timeout",
    "connect error",
    "connection reset",
)
#: The binding may not say why the object store refused the object of a commit.
_NOT_WRITTEN: Final = ("wal unavailable", "wal data error (object store error)")
_FAILED: Final = ("status code: 5",)
#: A store is created by opening it for writing; a reader finds none.
_NO_STORE: Final = ("failed to find latest transactional object",)
#: Damage that the binding does not report as such: an object that is too short, or cannot be read.
_DAMAGED: Final = (
    "requested range",
    "range not satisfiable",
    "generic transactional object",
    "invalid compaction",
)
#: Part of every error that comes after retries.
_SETTINGS: Final = re.compile(r"retry_timeout: \w+")
#: In order: a missing bucket may also be answered with a status of denial, and so on.
_MEANINGS: Final[tuple[tuple[tuple[str, ...], type[StoreError], str], ...]] = (
    (_NO_BUCKET, StoreUnavailable, "has no such bucket: it does not exist"),
    (_FULL, StoreFull, "is full"),
    (_NO_CREDENTIALS, StoreUnavailable, "needs credentials, and none were found"),
    (_DENIED, StoreUnavailable, "refuses the credentials"),
    (_THROTTLED, StoreBusy, "limits requests"),
    (_READ_ONLY, StoreReadOnly, "accepts no writes"),
    (_NOT_WRITTEN, StoreUnavailable, "did not accept a commit"),
    (_FAILED, StoreUnavailable, "answers with errors"),
    (_UNREACHABLE, StoreUnavailable, "cannot be reached"),
)


def is_fenced(error: BaseException) -> bool:
    """Whether another writer has opened the store, or opens it at the same moment."""
    if isinstance(error, uniffi.Error.Closed):
        return bool(error.reason == uniffi.CloseReason.FENCED)
    text = str(error).lower()
    return isinstance(error, uniffi.Error) and any(sign in text for sign in _FENCED)


def store_error(name: str, error: BaseException) -> StoreError:
    """The error of opening or reading the store ``name``."""
    if isinstance(error, StoreError):
        return error
    if is_fenced(error):
        return NotWriter(f"Another server writes to {name} now.")
    if isinstance(error, TimeoutError):
        return StoreUnavailable(
            f"The object store of {name} did not answer in time (timeout_ms).", field="url"
        )
    text = _SETTINGS.sub("", str(error).lower())
    detail = str(getattr(error, "message", error))
    for codes, kind, problem in _MEANINGS:
        if any(code in text for code in codes):
            return kind(f"The object store of {name} {problem}: {detail}.", field="url")
    if any(sign in text for sign in _NO_STORE):
        return StoreUnavailable(f"There is no store at {name}.", field="url")
    if isinstance(error, uniffi.Error.Data) or any(sign in text for sign in _DAMAGED):
        return StoreCorrupt(f"The store {name} is damaged: {detail}.")
    return StoreUnavailable(f"The store {name} cannot be used: {detail}.", field="url")


def writing_error(name: str, error: BaseException) -> OSError:
    """The error of a commit, whose outcome is unknown.

    That includes a fenced one: its object may have been stored before a reply was lost.
    """
    typed = store_error(name, error)
    full = isinstance(typed, StoreFull)
    return OSError(errno.ENOSPC if full else errno.EIO, typed.detail)
