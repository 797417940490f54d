"""Which tests hold which law on which engine, read from the ``@law`` marks of the source files.

``python -m tests.law_report`` rewrites the table in docs/semantics.md; a test compares the two.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

__all__ = ["MarkedTest", "law_ids", "marked_tests", "report", "report_in_document"]

ROOT: Final = Path(__file__).resolve().parents[1]
SEMANTICS: Final = ROOT / "docs" / "semantics.md"
CONFORMANCE: Final = ROOT / "src" / "penstock" / "testing" / "conformance"

_BEGIN: Final = "<!-- law report: made by `make laws` -->\n"
_END: Final = "<!-- end of law report -->\n"
_EVERY_ENGINE: Final = "every engine"
_COLUMNS: Final = (_EVERY_ENGINE, "key-value engine", "SQL engine", "broker, server, pipeline")
#: The column of a test file by the beginning of its path; the first match counts.
_COLUMN_BY_PATH: Final = (
    ("src/penstock/testing/conformance/", _EVERY_ENGINE),
    ("tests/properties/test_engine_against_oracle", _EVERY_ENGINE),
    ("tests/unit/storage/keyvalue/", "key-value engine"),
    ("tests/crash/test_sql", "SQL engine"),
    ("tests/crash/", "key-value engine"),
    ("tests/unit/storage/sql/", "SQL engine"),
    ("tests/service/test_three_servers", "SQL engine"),
    ("tests/unit/testing/simulation/test_sql", "SQL engine"),
    ("tests/unit/testing/simulation/", "key-value engine"),
    ("", "broker, server, pipeline"),
)


class MarkedTest(NamedTuple):
    """A test and the laws that it is marked with."""

    file: Path
    name: str
    laws: tuple[str, ...]


def law_ids() -> list[str]:
    """The first column of the table of laws."""
    laws = SEMANTICS.read_text().partition(_BEGIN)[0]
    return re.findall(r"^\| ([A-Z]\d) \|", laws, re.MULTILINE)


@cache
def marked_tests() -> tuple[MarkedTest, ...]:
    """Every test that is marked with a law, in the order of files and lines."""
    files = [*sorted(CONFORMANCE.glob("*.py")), *sorted((ROOT / "tests").rglob("test_*.py"))]
    return tuple(test for file in files for test in _marked_in(file))


def _marked_in(file: Path) -> Iterator[MarkedTest]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            laws = tuple(law for mark in node.decorator_list for law in _laws_of(mark))
            if laws:
                yield MarkedTest(file, node.name, laws)


def _laws_of(decorator: ast.expr) -> list[str]:
    match decorator:
        case ast.Call(func=ast.Name(id="law"), args=arguments):
            return [str(ast.literal_eval(argument)) for argument in arguments]
        case _:
            return []


def report() -> str:
    """The table in Markdown: a row per law, a column per kind of engine, counts per file."""
    counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for test in marked_tests():
        path = test.file.relative_to(ROOT).as_posix()
        column = next(name for start, name in _COLUMN_BY_PATH if path.startswith(start))
        for law in test.laws:
            counts[law, column][test.file.stem.removeprefix("test_")] += 1
    lines = [f"| law | {' | '.join(_COLUMNS)} |", f"|---|{'---|' * len(_COLUMNS)}"]
    for law in law_ids():
        cells = [
            ", ".join(f"{name} {n}" for name, n in sorted(counts[law, column].items()))
            for column in _COLUMNS
        ]
        lines.append(f"| {law} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def report_in_document() -> str:
    """The table as docs/semantics.md has it."""
    return SEMANTICS.read_text().partition(_BEGIN)[2].partition(_END)[0]


def write_report() -> None:
    """Replace the table in docs/semantics.md."""
    before, begin, rest = SEMANTICS.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise LookupError(f"{SEMANTICS} has no place for the report.")
    SEMANTICS.write_text(f"{before}{begin}{report()}{end}{after}")


if __name__ == "__main__":
    write_report()
