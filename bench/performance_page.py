"""``python -m bench.performance_page``: write the newest results into the documents.

README.md and docs/performance.md have places for tables; ``make figures`` fills them from the
newest file in ``bench/results``, and a test compares.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from bench.peers.results import Results, newest_results
from bench.peers.tables import comparison, figures_table, machine_line, peers_tables

__all__ = ["pages"]

_ROOT: Final = Path(__file__).parents[1]
_BEGIN: Final = "<!-- {}: made by `make figures` -->\n"
_END: Final = "<!-- end of {} -->\n"
_OURS: Final = {"penstock": "Penstock", "penstock-consume": "claiming ahead"}
#: What the parts of ``python -m bench`` measure.
_PARTS: Final = {
    "engine": "The engine in one process, against bare RocksDB",
    "files": "A store in files",
    "bounds": "How long a callback may block the event loop",
    "service": "The server and the client",
    "sqs": "The SQS door",
    "sql": "Stores in PostgreSQL and MariaDB",
    "scale": "Deep and wide",
    "pipeline": "The pipeline on Spark",
}


def pages() -> dict[Path, str]:
    """The documents as they should be."""
    results = newest_results()
    return {
        _ROOT / "README.md": _filled(_ROOT / "README.md", {"comparison": _comparisons(results)}),
        _ROOT / "docs" / "performance.md": _filled(
            _ROOT / "docs" / "performance.md",
            {
                "comparison": _comparisons(results),
                "peers": peers_tables(results),
                "figures": _figures(results),
            },
        ),
    }


def _comparisons(results: Results) -> str:
    return "\n".join(
        (
            machine_line(results),
            comparison(results, _OURS, "redis", "Redis Streams"),
            "The same on PostgreSQL, against PGMQ:\n",
            comparison(results, {"penstock-postgresql": "Penstock on PostgreSQL"}, "pgmq", "PGMQ"),
        )
    )


def _figures(results: Results) -> str:
    return "\n".join(
        f"### {title}\n\n{figures_table(results.figures[part])}"
        for part, title in _PARTS.items()
        if part in results.figures
    )


def _filled(path: Path, tables: dict[str, str]) -> str:
    text = path.read_text()
    for name, table in tables.items():
        before, begin, rest = text.partition(_BEGIN.format(name))
        _, end, after = rest.partition(_END.format(name))
        if not begin or not end:
            raise LookupError(f"{path} has no place for {name!r}")
        text = f"{before}{begin}{table}{end}{after}"
    return text


if __name__ == "__main__":
    for page, contents in pages().items():
        page.write_text(contents)
