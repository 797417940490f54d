"""The connection of a process to its server or store, opened when it is first needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from penstock import sync
from penstock.integrations.declaring import ensure_queue
from penstock.sync import SyncVerbs

__all__ = ["Connection"]


class Connection:
    """Blocking verbs that all threads of the process share."""

    def __init__(
        self,
        url: str,
        credential: str | None,
        policy: Mapping[str, Any],
        tls: Mapping[str, str | None],
    ) -> None:
        self.url = url
        self.credential = credential
        self.policy = policy
        self.tls: dict[str, Any] = dict(tls)
        self._lock = threading.Lock()
        self._verbs: SyncVerbs | None = None
        self._process = 0
        self._ensured: set[str] = set()

    @property
    def verbs(self) -> SyncVerbs:
        """The verbs."""
        with self._lock:
            # Web servers fork; the connection of the parent does not work in the child.
            if self._verbs is None or self._process != os.getpid():
                self._verbs = self._opened()
                self._process = os.getpid()
                self._ensured.clear()
            return self._verbs

    def ensured(self, queue: str) -> SyncVerbs:
        """The verbs, after the queue is there."""
        verbs = self.verbs
        if queue not in self._ensured:
            verbs.run_async(lambda q: ensure_queue(q, queue, **self.policy))
            self._ensured.add(queue)
        return verbs

    def close(self) -> None:
        """Disconnect; the next call connects again."""
        with self._lock:
            verbs, self._verbs = self._verbs, None
        if verbs is not None:
            verbs.close()

    def _opened(self) -> SyncVerbs:
        if self.url.startswith(("http:", "https:")):
            return sync.connect(self.url, credential=self.credential, **self.tls)
        return sync.open(self.url)
