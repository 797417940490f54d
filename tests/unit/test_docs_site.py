"""The documentation site: it builds without a warning, and asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import penstock.errors

LOADED = re.compile(r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)\"")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={"NO_MKDOCS_2_WARNING": "1", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=540,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 80
    for page in pages:
        loaded = re.findall(
            r"<(?:script|link|img)[^>]*(?:src|href)=\"(https?:[^\"]+)\"", page.read_text()
        )
        assert loaded == [], page


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_error_and_verb_is_there(site: Path) -> None:
    errors = (site / "reference" / "errors.html").read_text()
    names = set(penstock.errors.__all__) - {"PenstockError"}
    assert len(names) > 50
    for name in names:
        if isinstance(getattr(penstock.errors, name), type):
            assert f"<code>{name}</code>" in errors
    verbs = (site / "reference" / "python.html").read_text()
    for verb in ("publish", "claim", "settle_and_claim", "consume_batches", "put_webhook"):
        assert f".{verb}" in verbs
