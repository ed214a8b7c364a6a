"""Addresses survive as text, and what is no address is refused with what to write."""

from __future__ import annotations

import contextlib
import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.transport.address import TlsAddress, UnixAddress, parse_address

PRINT = "3f" * 32


@pytest.mark.parametrize(
    ("address", "text"),
    [
        (UnixAddress("/run/user/0/ropewalk-x/launcher.sock"), "unix:/run/user/0/ropewalk-x/launcher.sock"),
        (UnixAddress("/tmp/with:colon and space"), "unix:/tmp/with:colon and space"),
        (TlsAddress("10.0.0.1", 4711, PRINT), f"tls:10.0.0.1:4711/{PRINT}"),
        (TlsAddress("::1", 4711, PRINT), f"tls:[::1]:4711/{PRINT}"),
    ],
)
def test_an_address_is_text_and_back(address: UnixAddress | TlsAddress, text: str) -> None:
    assert str(address) == text
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "unix:",
        "unix:relative",
        "unix:/with\0zero",
        "tcp:10.0.0.1:80",
        f"tls:localhost:80/{PRINT}",
        f"tls:10.0.0.1/{PRINT}",
        f"tls:10.0.0.1:0/{PRINT}",
        f"tls:10.0.0.1:65536/{PRINT}",
        f"tls:10.0.0.1:-1/{PRINT}",
        f"tls:10.0.0.1:+80/{PRINT}",
        f"tls:10.0.0.1: 80/{PRINT}",
        f"tls:10.0.0.1:8_0/{PRINT}",
        f"tls:10.0.0.256:80/{PRINT}",
        f"tls:::1:80/{PRINT}",
        f"tls:[::1:80/{PRINT}",
        f"tls:[10.0.0.1]:80/{PRINT}x",
        "tls:10.0.0.1:80",
        "tls:10.0.0.1:80/",
        f"tls:10.0.0.1:80/{PRINT.upper()}",
        f"tls:10.0.0.1:80/{PRINT}\n",
    ],
)
def test_what_is_no_address_is_refused_with_what_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="tls:IP:PORT/FINGERPRINT"):
        parse_address(text)


@given(ip=st.ip_addresses(), port=st.integers(1, 65535), data=st.binary(min_size=32, max_size=32))
def test_every_tls_address_is_read_back(ip: ipaddress.IPv4Address, port: int, data: bytes) -> None:
    address = TlsAddress(str(ip), port, data.hex())
    assert parse_address(str(address)) == address


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    for candidate in (text, f"tls:{text}", f"unix:{text}"):
        with contextlib.suppress(ValueError):
            assert parse_address(candidate)
