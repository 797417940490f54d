"""The console's files: types, caching, compression, policy, and pages of other sites."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from penstock.server.access import Browsers
from penstock.server.app import Application
from penstock.server.console import ROUTES
from penstock.server.console.files import assets
from penstock.testing.laws import law

STATIC = Path(__file__).parents[3] / "src" / "penstock" / "server" / "console" / "static"


@pytest.fixture
def console(door):
    door.app = Application(door.service, ROUTES)
    return door


def named(page: bytes) -> list[str]:
    return re.findall(r'(?:src|href)="([^"]+)"', page.decode())


async def test_the_page_names_only_files_that_are_there_and_kept_for_ever(console):
    page = await console.call("GET", "/console/")
    assert page.status == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["cache-control"] == "no-cache"
    names = named(page.body)
    assert len(names) > 5
    for name in names:
        reply = await console.call("GET", f"/console/{name}")
        assert reply.status == 200, name
        assert "immutable" in reply.headers["cache-control"]
        assert "default-src 'self'" in reply.headers["content-security-policy"]
        assert reply.headers["x-content-type-options"] == "nosniff"


@law("T1")
async def test_the_frame_for_reports_has_an_origin_of_its_own(console):
    reply = await console.call("GET", f"/console/{assets().version}/report_frame.html")
    policy = reply.headers["content-security-policy"]
    assert "sandbox allow-scripts" in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'self'" in policy
    assert "allow-same-origin" not in policy


async def test_a_known_tag_is_answered_without_the_file(console):
    page = await console.call("GET", "/console/")
    again = await console.call("GET", "/console/", headers={"if-none-match": page.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    other = await console.call("GET", "/console/", headers={"if-none-match": '"x"'})
    assert other.status == 200


async def test_a_file_is_compressed_for_those_who_accept_that(console):
    path = f"/console/{assets().version}/console.css"
    plain = await console.call("GET", path)
    packed = await console.call("GET", path, headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["vary"] == "accept-encoding"
    assert gzip.decompress(packed.body) == plain.body == (STATIC / "console.css").read_bytes()


@pytest.mark.parametrize(
    "path", ["/console/{}/no.js", "/console/0/main.js", "/console/{}/index.html", "/console/x"]
)
async def test_anything_else_is_not_there(console, path):
    reply = await console.call("GET", path.format(assets().version))
    assert reply.status == 404


async def test_the_path_without_a_slash_leads_to_the_page_behind_any_prefix(console):
    reply = await console.call("GET", "/console")
    assert (reply.status, reply.headers["location"]) == (308, "console/")


async def test_any_page_may_link_to_the_console_but_not_read_the_store(console, door):
    door.app._browsers = Browsers.of(
        auth=False, listening=("127.0.0.1",), allowed_hosts=None, allowed_origins=None
    )
    headers = {"host": "127.0.0.1:8080", "sec-fetch-site": "cross-site"}
    assert (await console.call("GET", "/console/", headers=headers)).status == 200
    assert (await console.call("GET", "/v1/queues", headers=headers)).status == 403
    assert (await console.call("GET", "/console/../v1", headers=headers)).status == 404
    foreign = {**headers, "host": "evil.example.com"}
    assert (await console.call("GET", "/console/", headers=foreign)).status == 403


def test_nothing_is_inline_and_nothing_comes_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    elsewhere = re.compile(r"(?:src|href|url|import|fetch)\W{1,3}(?:https?:)?//")
    for path in STATIC.glob("*.*"):
        assert elsewhere.findall(path.read_text()) == [], path.name


def test_everything_that_the_first_screen_imports_is_requested_at_once() -> None:
    """Each level of imports that the browser has to discover costs a round trip."""
    named_import = re.compile(r'^import .* from "\./([^"]+)"', re.MULTILINE)
    needed, unread = set(), {"main.js"}
    while unread:
        name = unread.pop()
        needed.add(name)
        path = STATIC / name
        text = path.read_text() if path.exists() else (STATIC / "vendor" / name).read_text()
        unread |= set(named_import.findall(text)) - needed
    page = (STATIC / "index.html").read_text()
    preloaded = re.findall(r'modulepreload" href="\{files\}/([^"]+)"', page)
    assert {"main.js", *preloaded} == needed
    assert len(needed) < 20


def test_what_is_vendored_names_its_version_and_licence() -> None:
    vendor = STATIC / "vendor"
    versions = (vendor / "VERSIONS.txt").read_text()
    for path in vendor.iterdir():
        assert path.name in versions or path.name == "VERSIONS.txt"
