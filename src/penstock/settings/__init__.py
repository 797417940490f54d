"""Settings: read once from flags, environment and one file, and checked before startup.

A setting has one name with three spellings: ``tls_cert`` in the file, ``PENSTOCK_TLS_CERT`` in
the environment, ``--tls-cert`` as a flag. ``fields`` defines them, ``loading`` decides between
their sources, ``contexts`` has the named servers of the command line, ``effective`` shows all
settings with their sources and without secrets. Nothing here keeps state, and nothing else in
the package reads the environment.
"""

from __future__ import annotations

from penstock.settings.effective import Effective, effective, to_toml
from penstock.settings.fields import Setting, Settings, all_settings
from penstock.settings.loading import Loaded, Source, check_server_url, load_settings

__all__ = [
    "Effective",
    "Loaded",
    "Setting",
    "Settings",
    "Source",
    "all_settings",
    "check_server_url",
    "effective",
    "load_settings",
    "to_toml",
]
