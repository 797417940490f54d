"""The console in a real browser: one Chromium and one server for all tests, a tenant for each.

Chromium runs headless and may not talk to any other host. Whatever it logs as an error, such as a
refusal by the content security policy, fails the test that caused it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import jwt
import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.console.flags import FLAGS
from tests.console.keyboard import Keyboard
from tests.private_server import binary
from tests.service.serving import Serve, Served, unused_port

SECRET = "a secret of at least thirty-two bytes"
_tenants = count()


class Server:
    """A server that can be restarted at its address."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._port = unused_port()
        self.served = self._start()

    def _start(self) -> Served:
        return self._serve("--auth", "--jwt-secret", SECRET, port=self._port)

    def restart(self) -> None:
        self.served.stop()
        self.served = self._start()


def token(tenant: str, *grants: str, expires_s: float = 3600) -> str:
    claims = {"tenant": tenant, "grants": list(grants), "exp": time.time() + expires_s}
    return jwt.encode({**claims, "sub": "anna"}, SECRET, "HS256")


class Console:
    """One page of the console, and the same tenant over HTTP."""

    def __init__(self, context: BrowserContext, server: Server, tenant: str) -> None:
        self.server = server
        self.tenant = tenant
        self.admin = token(tenant, "admin:*")
        self.page = context.new_page()
        self.page.on("console", self._logged)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.keyboard = Keyboard(self.page)
        self.errors: list[str] = []
        #: Statuses of answers that a test provokes; browsers log them as errors.
        self.expected: set[int] = set()

    @property
    def url(self) -> str:
        return f"{self.server.served.url}/console/"

    def open(self, place: str = "#/", credential: str | None = None) -> None:
        """Open a place, signed in."""
        # Any page of the same origin: the console itself would ask for a credential first.
        self.page.goto(f"{self.server.served.url}/healthz")
        self.page.evaluate(
            "text => sessionStorage.setItem('penstock.credential', text)", credential or self.admin
        )
        self.page.goto(self.url + place)
        self.page.wait_for_selector("main h1")

    def go(self, place: str) -> None:
        """Another place on the same page."""
        self.page.evaluate("place => { location.hash = place }", place)

    def call(self, method: str, path: str, body: object = None):
        reply = self.server.served.call(method, path, body, credential=self.admin)
        assert reply.status < 300, reply.body
        return reply.json() if reply.body else None

    def first_message(self) -> int:
        """The tenant's first message."""
        return self.call("GET", "/v1/log?limit=1")["entries"][0]["message"]["id"]

    def publish(self, topic: str, *messages: dict) -> None:
        """Publish messages as a batch in JSON has them."""
        reply = self.server.served.call(
            "POST",
            f"/v1/topics/{topic}/messages",
            {"messages": list(messages)},
            credential=self.admin,
            media="application/vnd.penstock.batch+json",
        )
        assert reply.status == 201, reply.body

    def _logged(self, message: ConsoleMessage) -> None:
        expected = any(f"status of {status}" in message.text for status in self.expected)
        refused = self.expected and "ERR_" in message.text
        own = message.location["url"].startswith(self.url) or "/v1/" in message.location["url"]
        if message.type == "error" and own and not expected and not refused:
            self.errors.append(message.text)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    serve = Serve(tmp_path_factory.mktemp("console"))
    try:
        yield Server(serve)
    finally:
        serve.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=binary("chromium", "chromium"), args=list(FLAGS)
        )
        try:
            yield chromium
        finally:
            chromium.close()


@pytest.fixture
def console(browser: Browser, server: Server) -> Iterator[Console]:
    """A page for a tenant of its own."""
    with opened(browser, server) as console:
        yield console


@pytest.fixture
def restartable(browser: Browser, tmp_path: Path) -> Iterator[Console]:
    """A page with a server of its own."""
    serve = Serve(tmp_path)
    try:
        with opened(browser, Server(serve)) as console:
            yield console
    finally:
        serve.end()


@contextmanager
def opened(browser: Browser, server: Server) -> Iterator[Console]:
    context = browser.new_context(viewport={"width": 1280, "height": 800}, locale="en-GB")
    context.set_default_timeout(20_000)
    console = Console(context, server, f"tenant-{next(_tenants)}")
    try:
        yield console
    finally:
        context.close()
    assert console.errors == []
