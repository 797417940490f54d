"""The verbs on topics: put, get, list and delete their policies."""

from __future__ import annotations

from penstock.errors import UnknownTopic
from penstock.model.queue import TopicPolicy
from penstock.storage.keyvalue.core import Core
from penstock.storage.keyvalue.guarded import Guarded, changing, reading
from penstock.storage.keyvalue.keys import topic_key
from penstock.storage.keyvalue.topics import encode_topic

__all__ = ["TopicVerbs"]


class TopicVerbs(Guarded):
    """The verbs of the contract that are about topics."""

    _core: Core

    @changing
    async def put_topic(self, tenant: str, name: str, policy: TopicPolicy) -> None:
        self._begin()
        self._core.tenant(tenant).topics[name] = policy
        self._core.stage.put(topic_key(tenant, name), encode_topic(policy))
        await self._committer.commit()

    @reading
    async def get_topic(self, tenant: str, name: str) -> TopicPolicy | None:
        self._begin()
        policy = self._core.tenant(tenant).topics.get(name)
        await self._committer.settled()
        return policy

    @reading
    async def list_topics(self, tenant: str) -> tuple[tuple[str, TopicPolicy], ...]:
        self._begin()
        topics = tuple(sorted(self._core.tenant(tenant).topics.items(), key=lambda item: item[0]))
        await self._committer.settled()
        return topics

    @changing
    async def delete_topic(self, tenant: str, name: str) -> None:
        self._begin()
        if self._core.tenant(tenant).topics.pop(name, None) is None:
            raise UnknownTopic(f"There is no topic {name!r}.", field="topic")
        self._core.stage.delete(topic_key(tenant, name))
        await self._committer.commit()
