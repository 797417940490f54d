"""The documentation site: it builds without a warning, is complete, and has no broken link."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import click
import pytest

import penstock
import penstock.errors
from penstock.cli.program import program
from penstock.server.native import ROUTES
from tests.unit.test_vocabulary import PATTERN

ROOT = Path(__file__).parents[2]
#: Tags that make a browser load something.
LOADING = {"script": "src", "img": "src", "link": "href"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Page(HTMLParser):
    """The ids of a page, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.ids |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in LOADING and LOADING[tag] in found:
            self.loaded.append(found[LOADING[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # Not --quiet: it would hide warnings, and --strict would not count them.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=540,
    )
    notes = [line for line in done.stderr.splitlines() if not line.startswith("INFO ")]
    assert (done.returncode, done.stdout, notes) == (0, "", [])
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    found = {path: Page(path.read_text()) for path in site.rglob("*.html")}
    assert len(found) > 80
    return found


def test_no_page_loads_anything_from_another_host(pages: dict[Path, Page], site: Path) -> None:
    for path, page in pages.items():
        for address in page.loaded:
            parts = urlsplit(address)
            assert not parts.netloc, f"{path}: {address}"
            assert _target(site, path, parts.path).exists(), f"{path}: {address}"


def test_every_link_leads_somewhere(pages: dict[Path, Page], site: Path) -> None:
    broken = [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in page.links
        if not _leads_somewhere(link, path, pages, site)
    ]
    assert broken == []


def _leads_somewhere(link: str, path: Path, pages: dict[Path, Page], site: Path) -> bool:
    parts = urlsplit(link)
    if parts.scheme:
        return parts.scheme in {"http", "https", "mailto"}
    target = _target(site, path, parts.path) if parts.path else path
    if target not in pages:
        return target.exists()
    return not parts.fragment or unquote(parts.fragment) in pages[target].ids


def _target(site: Path, path: Path, address: str) -> Path:
    # The page for errors of a web server names everything from the root.
    base = site if address.startswith("/") else path.parent
    found = (base / unquote(address).lstrip("/")).resolve()
    return found / "index.html" if found.is_dir() else found


def test_the_site_uses_no_retired_words(site: Path) -> None:
    """Also pages that are made from code: the search index has the text of all."""
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert len(index) > 1000
    found = {
        (section["location"], word)
        for section in index
        for word in PATTERN.findall(f"{section['title']}\n{section['text']}")
    }
    assert found == set()


def test_every_error_is_there(site: Path) -> None:
    errors = (site / "reference" / "errors.html").read_text()
    names = set(penstock.errors.__all__) - {"PenstockError"}
    assert len(names) > 50
    for name in names:
        if isinstance(getattr(penstock.errors, name), type):
            assert f"<code>{name}</code>" in errors


def test_text_from_the_code_is_shown_as_it_is(site: Path) -> None:
    errors = (site / "reference" / "errors.html").read_text()
    assert f"<td>{penstock.errors.BadName.advice}</td>" in errors
    commands = (site / "reference" / "commands.html").read_text()
    assert "<code>--routing [broker|pipeline]</code>" in commands
    assert "Stop after this many. [x&gt;=1]" in commands


def test_the_python_api_is_complete(pages: dict[Path, Page], site: Path) -> None:
    ids = pages[site / "reference" / "python.html"].ids
    last_parts = {identifier.rpartition(".")[2] for identifier in ids}
    assert set(penstock.__all__) - {"errors", "sync"} <= last_parts
    assert {"penstock.sync.open", "penstock.sync.connect"} <= ids
    for verb in ("publish", "claim", "settle_and_claim", "consume_batches", "put_webhook"):
        assert verb in last_parts


def test_every_call_over_http_is_there(site: Path) -> None:
    page = (site / "reference" / "http.html").read_text()
    routes = [route for route in ROUTES if not route.is_page]
    assert len(routes) > 60
    for route in routes:
        assert f"<code>{route.method} {route.path}</code>" in page


def test_every_command_and_option_is_there(site: Path) -> None:
    page = (site / "reference" / "commands.html").read_text()
    commands = list(_commands(program, click.Context(program, info_name="penstock")))
    assert len(commands) > 50
    for path, command in commands:
        assert re.search(rf">{re.escape(path.removeprefix('penstock '))}<", page), path
        for item in command.params:
            if isinstance(item, click.Option) and not item.hidden:
                assert item.opts[-1] in page, f"{path} {item.opts}"


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command: Any = group.get_command(context, name)
        inner = click.Context(command, info_name=name, parent=context)
        if isinstance(command, click.Group):
            yield from _commands(command, inner)
        elif not command.hidden:
            yield inner.command_path, command
