"""The verbs about the identity of the store and its archived copies (A1)."""

from __future__ import annotations

from penstock.model.identity import StoreIdentity, check_position, check_store
from penstock.model.message import Offset
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded, changing, reading

__all__ = ["IdentityVerbs"]


class IdentityVerbs(Guarded):
    """The verbs of the contract that are about the identity of the store."""

    _core: Core

    @changing
    async def archived(self, tenant: str, through: Offset, store: StoreIdentity) -> None:
        self._begin()
        log = self._core.log
        check_store(self._core.identity.of(tenant), store, "What was archived")
        check_position(through + 1, log.tenant(tenant).committed_end, "What was archived")
        log.archive(tenant, through)
        await self._committer.commit()

    @reading
    async def identity(self, tenant: str) -> StoreIdentity:
        self._begin()
        identity = self._core.identity.of(tenant)
        await self._committer.settled()
        return identity

    @changing
    async def new_epoch(self) -> None:
        self._begin()
        self._core.identity.new_epoch()
        await self._committer.commit()
