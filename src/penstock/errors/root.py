"""The root of the tree, with the attributes of every error."""

from __future__ import annotations

from typing import ClassVar

__all__ = ["PenstockError"]


class PenstockError(Exception):
    """The root. Catch it to catch every error that Penstock raises on purpose."""

    title: ClassVar[str] = "Penstock refused the call"
    advice: ClassVar[str] = "See the detail."
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    law: ClassVar[str] = "E1"

    def __init__(
        self, detail: str, *, field: str | None = None, limit: int | str | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.field = field
        self.limit = limit

    def __str__(self) -> str:
        return f"{self.detail} {self.advice}"
