"""The server of a read or a write that names none: a Spark setting or the environment.

``spark.penstock.url`` comes first, then ``PENSTOCK_URL``. Spark plans Python sources in a process
that has its environment but not its settings, so the settings are taken from the command line that
started Spark (Linux only) and from ``spark-defaults.conf``. A setting that is made later is passed
on by ``penstock.pipeline.register``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from penstock.pipeline.remote import Server

__all__ = ["PREFIX", "SETTINGS", "default_server", "server_of", "started_with"]

#: Before the names of the options of a server in Spark's settings.
PREFIX: Final = "spark.penstock."
#: The settings of a server, in the order of the fields of ``Server``.
SETTINGS: Final = ("url", "credential", "ca", "cert", "certKey")
_VARIABLES: Final = (
    "PENSTOCK_URL",
    "PENSTOCK_CREDENTIAL",
    "PENSTOCK_CA",
    "PENSTOCK_CERT",
    "PENSTOCK_CERT_KEY",
)
_PROCESSES: Final = Path("/proc")
#: Spark starts a daemon, and the daemon the process that plans.
_GENERATIONS: Final = 4
#: The class whose command line has the settings of a session that Python started or submitted.
_MAIN: Final = "org.apache.spark.deploy.SparkSubmit"


def default_server(environment: Mapping[str, str] = os.environ) -> Server | None:
    """The server of the session or of the environment; None if neither names one."""
    session = {**_of_file(environment), **started_with(os.getpid())}
    return server_of(session) or _of_environment(environment)


def server_of(settings: Mapping[str, str]) -> Server | None:
    """The server that settings of Spark name, with its credential and certificates."""
    # Spark passes the names of options in lower case.
    given = {name.lower(): value for name, value in settings.items()}
    url, *others = (given.get(f"{PREFIX}{name}".lower()) for name in SETTINGS)
    return Server(url, *others) if url else None


def _of_environment(environment: Mapping[str, str]) -> Server | None:
    url, *others = map(environment.get, _VARIABLES)
    return Server(url, *others) if url else None


def _of_file(environment: Mapping[str, str]) -> dict[str, str]:
    folder = environment.get("SPARK_CONF_DIR")
    return {} if folder is None else _properties(Path(folder) / "spark-defaults.conf")


def started_with(pid: int, processes: Path = _PROCESSES) -> dict[str, str]:
    """The settings on the command line of the Spark that started this process."""
    for _ in range(_GENERATIONS):
        try:
            words = (processes / str(pid) / "cmdline").read_bytes().decode().split("\0")
            # The name of the program, in parentheses, may contain spaces.
            fields = (processes / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except (OSError, UnicodeDecodeError):
            return {}  # Not on Linux, or not ours to see.
        if _MAIN in words:
            return dict(_settings(words))
        pid = int(fields[1])
    return {}


def _settings(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word, value in pairwise(words):
        if word == "--properties-file":
            yield from _properties(Path(value)).items()
    for word, value in pairwise(words):
        if word == "--conf" and value.startswith(PREFIX):
            name, _, setting = value.partition("=")
            yield name, setting


def _properties(file: Path) -> dict[str, str]:
    """Our settings in a file of Spark's: a name, then a space or ``=``, then the value."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return {}
    found = (line.strip().replace("=", " ", 1).split(None, 1) for line in lines)
    return {pair[0]: pair[1] for pair in found if len(pair) == 2 and pair[0].startswith(PREFIX)}
