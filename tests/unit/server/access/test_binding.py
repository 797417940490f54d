"""Only this machine, unless there is a credential to ask for."""

from __future__ import annotations

import pytest

from penstock.errors import BadSetting
from penstock.server.access import binding_warnings, check_binding, is_loopback

LOOPBACK = (
    "127.0.0.1",
    "127.8.9.10",
    "localhost",
    "LocalHost",
    "localhost.",
    "::1",
    "[::1]",
    "0:0:0:0:0:0:0:1",
    "::ffff:127.0.0.1",
)
WORLD = (
    "0.0.0.0",
    "::",
    "[::]",
    "",
    "*",
    "192.168.0.1",
    "10.0.0.1",
    "169.254.0.1",
    "fe80::1",
    "::ffff:10.0.0.1",
    "::ffff:0.0.0.0",
    "example.com",
    "localhost.example.com",
    "localhost@example.com",
    "my-localhost",
    "127.0.0.1.nip.io",
    # Forms that some resolvers read as addresses: not what they seem, and so not trusted.
    "127.1",
    "0",
    "0x7f.0.0.1",
    "2130706433",
    "127.0.0.1 ,0.0.0.0",
)


@pytest.mark.parametrize("host", LOOPBACK)
def test_this_machine_needs_no_credential(host: str) -> None:
    assert is_loopback(host)
    check_binding(host, auth=False, insecure=False)
    assert binding_warnings(host, auth=True, insecure=False, tls=False) == ()


@pytest.mark.parametrize("host", WORLD)
def test_the_world_needs_auth_or_somebody_who_says_that_he_knows(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(BadSetting) as caught:
        check_binding(host, auth=False, insecure=False)
    assert caught.value.field == "host"
    assert "--auth" in caught.value.detail
    check_binding(host, auth=True, insecure=False)
    check_binding(host, auth=False, insecure=True)


def test_what_an_operator_is_warned_of() -> None:
    (clear,) = binding_warnings("0.0.0.0", auth=True, insecure=False, tls=False)
    assert "in the clear" in clear
    (anybody,) = binding_warnings("0.0.0.0", auth=False, insecure=True, tls=True)
    assert "Anybody" in anybody
    assert binding_warnings("0.0.0.0", auth=True, insecure=False, tls=True) == ()
