"""What is imported when, and what a program is told if an extra is not installed.

Each program runs in an interpreter of its own, where some packages cannot be imported.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
#: Fails the import of the packages that are named on the command line.
BLOCKED = "import sys\nfor name in sys.argv[1:]: sys.modules[name] = None\n"
#: Prints the class and the text of the error that the code raises.
CAUGHT = """
import asyncio, penstock
try:
    {code}
except penstock.PenstockError as error:
    print(type(error).__name__, isinstance(error, ImportError), error)
"""
#: Extra, packages that are missing, and code that needs one of them.
NEEDS = [
    ("rocksdb", ["rocksdict"], "penstock.sync.open('rocksdb:store')"),
    (
        "rocksdb",
        ["rocksdict"],
        "import pathlib, penstock.storage.keyvalue.repair as r; r.examine(pathlib.Path('store'))",
    ),
    ("slatedb", ["slatedb"], "penstock.sync.open('slatedb+file:///nowhere')"),
    ("postgres", ["asyncpg"], "penstock.sync.open('postgresql://db/store')"),
    ("mysql", ["asyncmy"], "penstock.sync.open('mysql://db/store')"),
    ("server", ["jwt"], "import penstock.server.serve"),
    ("server", ["cryptography"], "import penstock.server.serve"),
    ("server", ["prometheus_client"], "import penstock.server.serve"),
    ("spark", ["pyspark"], "import pyspark_penstock"),
    ("spark", ["pyarrow"], "import penstock.pipeline.jobs.route"),
    ("spark", ["deltalake"], "import penstock.pipeline.lake.delta"),
    ("taskiq", ["taskiq"], "import penstock.integrations.taskiq"),
    ("dramatiq", ["dramatiq"], "import penstock.integrations.dramatiq"),
    ("fastapi", ["fastapi"], "import penstock.integrations.fastapi"),
    ("django", ["django"], "import penstock.integrations.django"),
    ("airflow", ["airflow"], "import penstock.integrations.airflow.trigger"),
    (
        "arrow",
        ["pyarrow"],
        "from penstock.server import loading; asyncio.run(loading.load(loading.ARROW_READS))",
    ),
]
#: Extra, packages that are missing, and a command that needs one of them.
COMMANDS = [
    ("cli", ["click"], ["--help"]),
    ("cli", ["rich"], ["queue", "list"]),
    ("server,rocksdb", ["jwt"], ["serve", "--port", "0"]),
    ("server", ["prometheus_client"], ["key", "list", "--store", "memory://"]),
    ("rocksdb", ["rocksdict"], ["publish", "orders", "7", "--store", "rocksdb:store"]),
    ("spark", ["pyspark"], ["pipeline", "route"]),
]


def run(code: str, *blocked: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BLOCKED + code, *blocked],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("extra, packages, code", NEEDS)
def test_an_error_names_the_extra_that_is_missing(
    extra: str, packages: list[str], code: str, tmp_path: Path
) -> None:
    done = run(CAUGHT.format(code=code), *packages, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        f"MissingExtra True {packages[0]} is not installed: pip install 'penstock[{extra}]'."
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("extra, packages, arguments", COMMANDS)
def test_a_command_names_the_extra_that_is_missing(
    extra: str, packages: list[str], arguments: list[str], tmp_path: Path
) -> None:
    code = f"from penstock.cli import main; sys.argv = {['penstock', *arguments]!r}; main()"
    done = run(code, *packages, cwd=tmp_path)
    assert done.returncode == 7, done.stderr
    assert f"{packages[0]} is not installed: pip install 'penstock[{extra}]'." in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_help_of_a_job_needs_no_spark(tmp_path: Path) -> None:
    code = "from penstock.cli import main; sys.argv = ['penstock', 'pipeline', 'route', '--help']"
    done = run(f"{code}; main()", "pyspark", "pyarrow", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_another_failed_import_is_not_renamed(tmp_path: Path) -> None:
    code = "import penstock.storage.keyvalue.adapters.rocksdb"
    done = run(code, "penstock.storage.keyvalue.chain", cwd=tmp_path)
    assert "ModuleNotFoundError" in done.stderr
    assert "penstock.storage.keyvalue.chain" in done.stderr
    assert "pip install" not in done.stderr


#: Packages of extras, and of the standard library what only some programs need.
HEAVY = {
    *("asyncmy", "asyncpg", "click", "cryptography", "fastavro", "jsonschema_rs", "jwt", "numpy"),
    *("opentelemetry", "pandas", "prometheus_client", "pyarrow", "pyspark", "rich", "rocksdict"),
    *("uvloop",),
}
LOADED = "\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"


@pytest.mark.parametrize(
    "code, more",
    [
        ("import penstock", {"asyncio", "msgspec", "ssl", "sortedcontainers", "xxhash"}),
        ("import penstock; penstock.connect('http://127.0.0.1:1')", {"sortedcontainers"}),
        ("import penstock; penstock.App('http://127.0.0.1:1')", {"sortedcontainers"}),
        ("import penstock; penstock.sync", {"sortedcontainers"}),
        ("import penstock; penstock.sync.open('memory://').close()", set[str]()),
    ],
    ids=["import", "connect", "worker", "sync", "memory store"],
)
def test_what_is_not_imported(code: str, more: set[str], tmp_path: Path) -> None:
    done = run(code + LOADED, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (HEAVY | more) & set(done.stdout.split()) == set()


def test_importing_the_package_loads_its_errors_only(tmp_path: Path) -> None:
    code = "import penstock\nprint(*sorted(n for n in sys.modules if n.startswith('penstock')))"
    done = run(code, cwd=tmp_path)
    assert done.stdout.split() == [
        "penstock",
        "penstock.errors",
        "penstock.errors.calls",
        "penstock.errors.services",
    ]


def project() -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return document["project"]


def test_the_extra_all_has_every_extra() -> None:
    extras = set(project()["optional-dependencies"]) - {"all", "bench", "dev"}
    [everything] = project()["optional-dependencies"]["all"]
    named = set(everything.removeprefix("penstock[").removesuffix("]").split(","))
    # The command line comes with the server, and integrations belong to programs that have the
    # library already.
    assert named == extras - {"airflow", "cli", "django", "dramatiq", "fastapi", "taskiq"}


def test_every_extra_that_errors_name_exists() -> None:
    extras = set(project()["optional-dependencies"])
    named = ",".join(extra for extra, _, _ in [*NEEDS, *COMMANDS])
    assert set(named.split(",")) <= extras
