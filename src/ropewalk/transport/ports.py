"""Free TCP ports, for libraries that insist on opening one themselves (torch.distributed)."""

from __future__ import annotations

import socket


def free_port(ip: str) -> int:
    """A port that nobody listens on just now; somebody else may take it before it is used."""
    with socket.socket(socket.AF_INET6 if ":" in ip else socket.AF_INET) as sock:
        sock.bind((ip, 0))
        port: int = sock.getsockname()[1]
        return port
