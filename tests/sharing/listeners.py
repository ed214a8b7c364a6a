"""Which process listens at an address."""

from __future__ import annotations

import socket
import struct

from ropewalk.transport.address import HostAddress, UnixAddress, parse_address


def listener_pid(address: str) -> int:
    """The process that serves at an address of this host, as the kernel tells it."""
    parsed = parse_address(address)
    unix = parsed.unix if isinstance(parsed, HostAddress) else parsed
    assert isinstance(unix, UnixAddress)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(unix.path)
        return struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
