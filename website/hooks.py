"""Hooks of the documentation site: pages that are made from other files.

The front page is README.md, and ``reference/errors.md`` lists the exception tree. Links to files
outside of ``docs/`` become plain text, after a check that the file is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from penstock.errors import PenstockError

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that have no file."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    front = _LINK.sub(_from_readme, readme)
    files.append(File.generated(config, "index.md", content=front))
    files.append(File.generated(config, "reference/errors.md", content=errors_page()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links that leave the documentation."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return _LINK.sub(lambda link: _inside(link, folder), markdown)


def errors_page() -> str:
    """Every error, with its status and what the caller should do."""
    lines = [
        "# Errors",
        "",
        "Every error is a `penstock.PenstockError`. Over HTTP it is a problem document with the",
        "status of this table, whose `type` is made of the name; a client raises the same class.",
        "",
        "| error | status | means | what to do |",
        "|---|---|---|---|",
    ]
    for kind in sorted(set(_kinds(PenstockError)), key=lambda kind: (kind.status, kind.__name__)):
        if kind.__name__.startswith("_"):
            continue
        means = " ".join((kind.__doc__ or "").split("\n\n", maxsplit=1)[0].split())
        lines.append(f"| `{kind.__name__}` | {kind.status} | {means} | {kind.advice} |")
    return "\n".join(lines) + "\n"


def _kinds(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for child in kind.__subclasses__():
        if child.__module__.startswith("penstock.errors"):
            yield child
            yield from _kinds(child)


def _from_readme(link: re.Match[str]) -> str:
    image, text, target, anchor = link.groups()
    if target.startswith("docs/"):
        return f"{image}[{text}]({target.removeprefix('docs/')}{anchor or ''})"
    return _inside(link, ROOT)


def _inside(link: re.Match[str], folder: Path) -> str:
    image, text, target, _anchor = link.groups()
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    path = (folder / target).resolve()
    if path.is_relative_to(ROOT / "docs"):
        return link[0]
    if not path.exists():
        raise PluginError(f"{folder}: there is no {target}")
    if path == ROOT / "README.md":
        depth = len(folder.relative_to(ROOT / "docs").parts)
        return f"{image}[{text}]({'../' * depth}index.md)"
    return f"{text} (`{path.relative_to(ROOT)}`)" if text != str(path.name) else f"`{text}`"
