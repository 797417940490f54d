"""The rules of the house that no linter knows, as tests.

What a linter can check is in pyproject.toml. These rules are about the repository as a
whole: what a file may be called, how long it may be, what it may mention, and that every
law of docs/semantics.md is held by a test.
"""

from __future__ import annotations

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.law_report import law_ids, marked_tests, report, report_in_document

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "penstock"

#: Most files are under 300 lines; one that passes this holds two subjects.
MAX_LINES = 500
#: Such a name says that the module has no subject.
SUBJECTLESS = {"util", "utils", "helper", "helpers", "common", "misc", "manager", "managers"}
#: Put together here, so that this file does not mention them either. The project stands alone:
#: a path of somebody's machine, or of a neighbouring folder, means nothing to a reader.
FOREIGN_PATHS = ("../" + "shared", "/" + "work/")


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is or could be committed; all files if this is not a Git checkout."""
    # safe.directory: the checkout may belong to another user than the one who runs the tests.
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "-c", "-o", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode == 0:
        names = [name for name in listing.stdout.decode().split("\0") if name]
        return tuple(sorted(ROOT / name for name in names if (ROOT / name).is_file()))
    hidden = {".git", ".venv", "__pycache__", "build", "dist"}
    return tuple(
        path
        for path in sorted(ROOT.rglob("*"))
        if path.is_file() and not hidden.intersection(path.relative_to(ROOT).parts)
    )


def source_files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_module_opens_with_a_docstring() -> None:
    bad = [
        shown(path) for path in source_files() if not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert bad == []


def test_a_source_file_is_not_too_long() -> None:
    lengths = {shown(path): len(path.read_text().splitlines()) for path in source_files()}
    # It is generated, one method per verb.
    del lengths["src/penstock/sync/verbs.py"]
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_all_is_sorted() -> None:
    """Constants, then classes, then the rest; each by name."""
    bad = [
        shown(path)
        for path in source_files()
        for names in declared_all(path)
        if names != sorted(set(names), key=place_in_all)
    ]
    assert bad == []


def test_no_module_has_a_name_without_a_subject() -> None:
    bad = [
        shown(path)
        for path in repository_files()
        if path.suffix == ".py"
        and SUBJECTLESS.intersection(re.split(r"[/_]", shown(path.with_suffix(""))))
    ]
    assert bad == []


def test_every_package_can_be_imported() -> None:
    """A folder of modules without __init__.py is invisible to the import contracts."""
    folders = {path.parent for path in source_files()}
    assert [shown(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_project_stands_alone() -> None:
    bad = [
        f"{shown(path)} mentions {foreign}"
        for path in repository_files()
        for foreign in FOREIGN_PATHS
        if foreign.encode() in path.read_bytes()
    ]
    assert bad == []


def test_text_files_end_with_one_newline() -> None:
    bad = []
    for path in repository_files():
        content = path.read_bytes()
        is_text = b"\0" not in content
        if content and is_text and (not content.endswith(b"\n") or content.endswith(b"\n\n")):
            bad.append(shown(path))
    assert bad == []


def test_scripts_can_be_executed() -> None:
    scripts = [
        path for path in repository_files() if path.parent in {ROOT / "scripts", ROOT / ".ci"}
    ]
    assert scripts
    assert [shown(path) for path in scripts if not path.stat().st_mode & 0o100] == []


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\]\((\d{4}-[a-z0-9-]+\.md)\)", (folder / "README.md").read_text())
    present = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert listed == present
    numbers = [name[:4] for name in present]
    assert len(numbers) == len(set(numbers))


def test_links_between_documents_lead_somewhere() -> None:
    bad = []
    for path in repository_files():
        if path.suffix != ".md":
            continue
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", path.read_text()):
            if "://" not in target and not (path.parent / target).exists():
                bad.append(f"{shown(path)} → {target}")
    assert bad == []


def test_laws_are_found() -> None:
    """The test below is worth nothing if the table is not read."""
    laws = law_ids()
    assert {"P1", "C5", "S3", "X1"} <= set(laws)
    assert len(laws) == len(set(laws))


@pytest.mark.parametrize("law", law_ids())
def test_every_law_is_held_by_a_test(law: str) -> None:
    assert any(law in test.laws for test in marked_tests())


def test_only_laws_that_exist_are_marked() -> None:
    known = set(law_ids())
    marked = {law for test in marked_tests() for law in test.laws}
    assert marked - known == set()


def test_the_report_of_laws_is_current() -> None:
    """``make laws`` rewrites it."""
    assert report_in_document() == report()


@pytest.mark.parametrize("path", [SOURCE, ROOT / "docs"], ids=shown)
def test_only_laws_that_exist_are_cited(path: Path) -> None:
    """A law that is cited like `(S1)` or `(P1, P2)` is in the table."""
    known = set(law_ids())
    letters = "".join(sorted({law[0] for law in known}))
    cited = re.compile(rf"\(((?:[{letters}]\d)(?:, [{letters}]\d)*)\)")
    unknown = {
        f"{shown(file)}: {law}"
        for file in [*path.rglob("*.py"), *path.rglob("*.md")]
        for group in cited.findall(file.read_text())
        for law in group.split(", ")
        if law not in known
    }
    assert unknown == set()


def declared_all(path: Path) -> list[list[str]]:
    found = []
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            found.append([str(name) for name in ast.literal_eval(node.value)])
    return found


def place_in_all(name: str) -> tuple[int, str]:
    """The order that ruff's RUF022 makes."""
    if name.isupper():
        return 0, name
    return (1 if name[:1].isupper() else 2), name
