"""The archive of Spark's classes: where it is, when it is used, and that a bad one does no harm.

``penstock pipeline prepare`` itself takes a minute of two cores; it is run by hand.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.pipeline import class_archive
from penstock.pipeline.class_archive import archive_path, options_to_use
from penstock.pipeline.session import session_settings

JAVA = "spark.driver.extraJavaOptions"


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in the place of the archive, of which Java can make nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = archive_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_bytes(b"no classes" * 1_000)
    return path


def test_sessions_on_this_machine_use_it(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    option = f"-XX:SharedArchiveFile={archive}"
    assert option in session_settings(None, {})[JAVA]
    assert option in session_settings("local[2]", {}, short=True)[JAVA]
    assert option not in session_settings("spark://host:7077", {})[JAVA]
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert JAVA not in session_settings(None, {})


def test_there_is_none_at_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert options_to_use() == ()


def test_another_version_has_another(archive: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_archive, "version", lambda name: "9.9")
    assert archive_path() != archive
    assert options_to_use() == ()


def test_java_ignores_one_that_it_cannot_use(archive: Path) -> None:
    done = subprocess.run(
        ["java", *options_to_use(), "-version"], capture_output=True, text=True, check=True
    )
    assert "archive" not in done.stdout + done.stderr
    assert str(archive) not in done.stdout + done.stderr
