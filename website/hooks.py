"""Hooks of the documentation site: pages that are made from other files.

The front page is README.md, and pages of the reference are made from the code
(``reference_pages``). Links to files outside of ``docs/`` become plain text, after a check that the
file is there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

# MkDocs imports this file alone.
sys.path.insert(0, str(Path(__file__).parents[1]))

from website.reference_pages import commands_page, errors_page, http_page

ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"(!?)\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
#: The front page has no pages beside it to navigate to, and says where to go instead.
_FRONT: Final = "---\nhide: [navigation]\n---\n\n"
_DOORS: Final = """
[Tutorial, 15 minutes](tutorial.md){ .md-button .md-button--primary }
[When to choose it](choosing.md){ .md-button }
[Deploying](deploying.md){ .md-button }
"""
#: Files of the site that are not below docs/.
_ASSETS: Final = {
    "assets/site.css": ROOT / "website" / "site.css",
    "assets/icon.svg": ROOT / "src" / "penstock" / "server" / "console" / "static" / "icon.svg",
}


def on_files(files: Files, config: Any) -> Files:
    """Add the pages and assets that have no file in docs/."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    introduction, _, rest = _LINK.sub(_from_readme, readme).partition("\n```sh\n")
    made = {
        "index.md": f"{_FRONT}{introduction}{_DOORS}\n```sh\n{rest}",
        "reference/errors.md": errors_page(),
        "reference/http.md": http_page(),
        "reference/commands.md": commands_page(),
    }
    for path, content in made.items():
        files.append(File.generated(config, path, content=content))
    for path, source in _ASSETS.items():
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replace the links that leave the documentation."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return _LINK.sub(lambda link: _inside(link, folder), markdown)


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
