"""Which addresses a server may listen on: loopback only, unless it requires credentials.

This is decided before a socket is opened, from the address alone and without a resolver: a
name other than ``localhost`` may resolve to any address, so it counts as public.
"""

from __future__ import annotations

import ipaddress

from penstock.errors import BadSetting
from penstock.model.limits import shown

__all__ = ["binding_warnings", "check_binding", "is_loopback"]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    name = host.strip().lower()
    if name.rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def check_binding(host: str, *, auth: bool, insecure: bool) -> None:
    """Raise ``BadSetting`` for a public address without auth, unless ``insecure`` is set."""
    if not (auth or insecure or is_loopback(host)):
        raise BadSetting(
            f"Without auth the server listens on this machine only, and {shown(host)} may be"
            " reached from others. Set --auth, or --insecure to let anybody do anything.",
            field="host",
        )


def binding_warnings(host: str, *, auth: bool, insecure: bool, tls: bool) -> tuple[str, ...]:
    """Warnings to log at startup."""
    if is_loopback(host):
        return ()
    if not auth and insecure:
        return (f"Anybody who reaches {host} may do anything: auth is off and insecure is on.",)
    if auth and not tls:
        clear = f"API keys and tokens for {host} cross the network in the clear."
        return (f"{clear} Set tls_cert and tls_key, or use a proxy that terminates TLS.",)
    return ()
