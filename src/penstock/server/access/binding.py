"""What a server may listen on: this machine alone, unless it asks for credentials.

Decided before a socket is opened, from what the address says and without asking a resolver: a
name other than ``localhost`` may mean anything, and so counts as the world.
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
    """Refuse to let the world in without a credential, unless that is what is wanted."""
    if not (auth or insecure or is_loopback(host)):
        raise BadSetting(
            f"Without auth the server listens on this machine only, and {shown(host)} may be"
            " reached from others. Give --auth, or --insecure to let anybody do anything.",
            field="host",
        )


def binding_warnings(host: str, *, auth: bool, insecure: bool, tls: bool) -> tuple[str, ...]:
    """What an operator should read in the log at the start."""
    if is_loopback(host):
        return ()
    if not auth and insecure:
        return (f"Anybody who reaches {host} may do anything: auth is off and insecure is on.",)
    if auth and not tls:
        clear = f"API keys and tokens for {host} cross the network in the clear."
        return (f"{clear} Give tls_cert and tls_key, or put a proxy that ends TLS in front.",)
    return ()
