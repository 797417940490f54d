"""Retired words stay out of the code and the documents: docs/glossary.md has their replacements."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: Released migrations are never edited.
EXEMPT = "/migrations/"
RETIRED = (
    # Actors that should be named: the server, another consumer, the caller.
    *("whoever", "nobody", "somebody"),
    # Words with a conventional equivalent.
    *("at_once", "plainly", "teller", "told", "mending", "leftovers?", "seats?", "lives"),
    # Names of modules and classes that had several meanings or none.
    *("Life", "NotAtOnce", "Again", "Moved", "Patience", "Gathering", "Verbs(?! [a-z])"),
    *(
        "gathering\\.py",
        "reading\\.py",
        "telling\\.py",
        "walking\\.py",
        "failing\\.py",
        "ending\\.py",
    ),
)
PATTERN = re.compile(rf"\b({'|'.join(RETIRED)})\b")


def test_retired_words_are_not_used() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match.group()}"
        for path in _documents()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for match in PATTERN.finditer(line)
    ]
    assert found == []


def test_retired_words_are_found() -> None:
    """The test above is worth nothing if the pattern matches nothing."""
    assert PATTERN.findall("Nobody told whoever has a seat.") == ["told", "whoever", "seat"]
    assert len(_documents()) > 300


def _documents() -> list[Path]:
    files = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    files += [path for kind in ("*.py", "*.sql") for path in (ROOT / "src").rglob(kind)]
    return [path for path in files if EXEMPT not in path.as_posix()]
