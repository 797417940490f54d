"""Credentials that change: a file that is rewritten, or a function that obtains a new one.

A file is read again when it changes; the client looks at most once per ``CHECK_S``. A function is
called before the first call. After a reply with 401 either is asked once more, and the call is
repeated if the credential is another one: a 401 means that the server did nothing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeAlias

from penstock.client.address import check_credential
from penstock.errors import BadInput, PenstockError, Unauthenticated

__all__ = ["CHECK_S", "FILE_PREFIX", "CredentialSource", "Credentials", "changes", "check_source"]

#: An API key or a JWT; ``file:`` and a path; or a function that returns one, or awaits it.
CredentialSource: TypeAlias = str | Callable[[], str] | Callable[[], Awaitable[str]]

FILE_PREFIX: Final = "file:"
#: Between two looks at a file.
CHECK_S: Final = 1.0
#: The longest credential that a server accepts is shorter.
_MAX_FILE_BYTES: Final = 64 * 1024
#: A function that takes longer has failed.
_TIMEOUT_S: Final = 30.0

#: What changes when a file is rewritten or replaced.
_Stamp: TypeAlias = tuple[int, int, int]


def check_source(source: object) -> None:
    """Raise ``BadInput`` unless ``source`` is a credential, a file or a function."""
    if callable(source):
        return
    if isinstance(source, str) and source.startswith(FILE_PREFIX):
        if not source.removeprefix(FILE_PREFIX).removeprefix("//"):
            raise BadInput("The credential file: has no path.", field="credential")
        return
    if not isinstance(source, str):
        raise BadInput(
            f"A credential is an API key or a JWT, as text; {FILE_PREFIX!r} and the path of a file "
            "that contains it; or a function that returns it.",
            field="credential",
        )
    check_credential(source)


def changes(source: CredentialSource) -> bool:
    """Whether the credential may change: it is a file or a function."""
    return not isinstance(source, str) or source.startswith(FILE_PREFIX)


class Credentials:
    """The current credential of a client, as the line of a request's head."""

    def __init__(self, source: CredentialSource) -> None:
        check_source(source)
        assert changes(source)
        self._get: Callable[[], str] | Callable[[], Awaitable[str]] | None = None
        self._path: Path | None = None
        self._stamp: _Stamp | None = None
        self._checked_at = 0.0
        self._line: str | None = None
        self._renewing = asyncio.Lock()
        if isinstance(source, str):
            self._path = Path(source.removeprefix(FILE_PREFIX).removeprefix("//"))
        else:
            self._get = source

    async def line(self) -> str:
        """The Authorization header, with its line end; ``Unauthenticated`` if there is none."""
        if self._path is not None:
            self._look(self._path)
        if self._line is None:
            async with self._renewing:
                if self._line is None:
                    self._line = await self._obtain()
        return self._line

    async def renew(self, refused: str) -> bool:
        """Obtain the credential again after a 401; returns whether it is another one now."""
        async with self._renewing:
            # Many calls may be refused at the same moment; the first one renews for all.
            if self._line == refused:
                self._line = await self._obtain()
            return self._line != refused

    def _look(self, path: Path) -> None:
        """Forget the credential if its file has changed."""
        now = asyncio.get_running_loop().time()
        if now - self._checked_at < CHECK_S and self._line is not None:
            return
        self._checked_at = now
        if _stamp(path) != self._stamp:
            self._line = None

    async def _obtain(self) -> str:
        try:
            text = await self._ask()
            return _line(text.strip())
        except PenstockError as error:
            if isinstance(error, BadInput):
                raise Unauthenticated(f"No usable credential: {error.detail}") from error
            raise
        except TimeoutError as error:
            raise _failed("it took too long") from error
        except Exception as error:
            # The caller's function failed, with any error: there is no credential.
            raise _failed(str(error) or type(error).__name__) from error

    async def _ask(self) -> str:
        if self._path is not None:
            self._stamp = _stamp(self._path)
            with self._path.open("rb") as file:
                return file.read(_MAX_FILE_BYTES).decode()
        assert self._get is not None
        async with asyncio.timeout(_TIMEOUT_S):
            if inspect.iscoroutinefunction(self._get):
                found = await self._get()
            else:
                found = await asyncio.to_thread(self._get)
                if inspect.isawaitable(found):
                    found = await found
        return found if isinstance(found, str) else ""


def _stamp(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _line(credential: str) -> str:
    return f"Authorization: Bearer {check_credential(credential)}\r\n"


def _failed(reason: str) -> Unauthenticated:
    return Unauthenticated(f"The credential cannot be obtained: {reason}.")
