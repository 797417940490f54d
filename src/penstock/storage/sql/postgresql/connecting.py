"""How connections to PostgreSQL are opened, and the settings of every session (C5)."""

from __future__ import annotations

from typing import Any, Final

from penstock.storage.sql.urls import Address

__all__ = ["connection_arguments", "deadline_s"]

#: Settings of every session.
_SETTINGS: Final = {
    "application_name": "penstock",
    "default_transaction_isolation": "read committed",
    # One plan per statement, for all parameters, and always with an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
#: Seconds that a statement waits for a lock, unless the statement timeout is shorter.
_LOCK_S: Final = 10
#: Seconds that the server has to report that it cancelled a statement; the connection is dropped
#: only if it does not.
_GRACE_S: Final = 2
#: Prepared statements per session; there are fewer.
_STATEMENTS: Final = 500


def deadline_s(address: Address) -> float:
    """Seconds after which an unanswered statement is abandoned."""
    return address.statement_timeout + _GRACE_S


def connection_arguments(address: Address) -> dict[str, Any]:
    """The arguments of ``asyncpg.connect``."""
    return {
        "host": address.host,
        "port": address.port,
        "user": address.user,
        "password": address.password,
        "database": address.database,
        "ssl": address.tls(),
        "timeout": address.connect_timeout,
        "command_timeout": deadline_s(address),
        "statement_cache_size": _STATEMENTS,
        "server_settings": {
            **_SETTINGS,
            "statement_timeout": f"{address.statement_timeout}s",
            "lock_timeout": f"{min(_LOCK_S, address.statement_timeout)}s",
            # Locks of a machine that vanished are released after this time.
            "idle_in_transaction_session_timeout": f"{address.statement_timeout}s",
        },
    }
