"""The listening socket: what is said where it cannot be had."""

from __future__ import annotations

import socket

import pytest

from bedplate.errors import ConfigError
from bedplate.gateway.server import _listen


def test_a_port_in_use_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as caught:
            _listen("127.0.0.1", port)
    assert str(caught.value) == (
        f"Another program listens on 127.0.0.1:{port}: choose another port with --port or "
        "service.port."
    )


def test_an_address_of_another_machine_is_told_without_a_number() -> None:
    with pytest.raises(ConfigError, match=r"^Cannot listen on 192\.0\.2\.1:0: [A-Z][^\d]+\. Check"):
        _listen("192.0.2.1", 0)
