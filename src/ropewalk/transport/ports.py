"""Free TCP ports, for libraries that insist on opening one themselves (torch.distributed)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Generator


@contextlib.contextmanager
def held_port(ip: str) -> Generator[int]:
    """Reserve a port that no process listens on; the kernel gives it to no other while the block lasts.

    Afterwards another process may take it before it is used, so it should be used at once.

    Raises:
        OSError: the address is not one of this host.
    """
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as sock:
        sock.bind((ip, 0))
        port: int = sock.getsockname()[1]
        yield port
