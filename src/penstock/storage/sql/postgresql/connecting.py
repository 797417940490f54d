"""How connections to PostgreSQL are made, and what holds for every session (C5)."""

from __future__ import annotations

from typing import Any, Final

from penstock.storage.sql.urls import Address

__all__ = ["connection_arguments", "deadline_s"]

#: Settings of every session.
_SETTINGS: Final = {
    "application_name": "penstock",
    "default_transaction_isolation": "read committed",
    # One plan a statement, whatever its parameters, and always by an index.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "max_parallel_workers_per_gather": "0",
}
#: Seconds that a statement waits for a lock, if it may take that long.
_LOCK_S: Final = 10
#: Seconds that the server is given to say that it has cancelled a statement: the connection is
#: dropped only if it does not say so.
_GRACE_S: Final = 2
#: Statements that a session remembers; there are fewer.
_STATEMENTS: Final = 500


def deadline_s(address: Address) -> float:
    """Seconds after which a statement that is not answered is given up."""
    return address.statement_timeout + _GRACE_S


def connection_arguments(address: Address) -> dict[str, Any]:
    """What asyncpg is given to connect."""
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
            # What a machine that vanished had locked is free after this time.
            "idle_in_transaction_session_timeout": f"{address.statement_timeout}s",
        },
    }
