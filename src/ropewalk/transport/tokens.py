"""Tokens: how a service authenticates processes of its run without a list of them.

    launcher: the run's key ─▶ agent: its host's key ─▶ process that serves: the key of its socket
                                                               │
    process that calls ◀── token: HMAC of its name and certificate under the key of that socket ── agent or launcher

A token is the secret by which one process proves itself to one service (`handshake.py`). It is valid for that process,
at that service, with that certificate, and nowhere else: another process that learns it, or holds another process's
key, gets in under no other name. The key of a socket follows from that of its host, so a process with the latter can
make a token at any moment, without a message to the service, and no order of messages can refuse a caller. Services are
told of processes that are retired, and refuse their names and certificates from then on.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from ropewalk.transport.address import Address, HostAddress, TlsAddress, parse_address
from ropewalk.transport.credentials import AllowList


class TokenList(AllowList):
    """Accepts processes that prove that they have the token for their name and certificate."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self._key = key
        self._retired: set[str] = set()
        self._retired_certificates: set[str] = set()

    def retire(self, process_id: str, fingerprint: str = "") -> None:
        """Refuse a process from now on, under its name and under any other; may be called twice.

        Args:
            process_id: name of the process in the run.
            fingerprint: fingerprint of its certificate, if it has one.
        """
        self._retired.add(process_id)
        if fingerprint:
            self._retired_certificates.add(fingerprint)

    def check_fingerprint(self, fingerprint: str) -> str | None:
        """Return "" for a process of the run, whose certificate TLS has verified; None if it is retired."""
        return None if fingerprint in self._retired_certificates else ""

    def owns(self, process_id: str, fingerprint: str) -> bool:
        """Return True: the token proves whose certificate it is."""
        return True

    def _secret_of(self, process_id: str, fingerprint: str) -> bytes | None:
        if process_id in self._retired or fingerprint in self._retired_certificates:
            return None
        return token_of(self._key, process_id, fingerprint).encode()


def token_of(key: str, process_id: str, fingerprint: str = "") -> str:
    """Return the token that a process shows to the service with this key.

    Args:
        key: key of the service.
        process_id: name of the caller.
        fingerprint: fingerprint of the caller's certificate; empty if it has none.

    Returns:
        64 hexadecimal digits.
    """
    return _mac(key, "token", process_id, fingerprint)


def new_key() -> str:
    """Return a random key, such as the one from which all others of a run follow."""
    return os.urandom(32).hex()


def key_of_host(run_key: str, host: str) -> str:
    """Return the key from which the keys of all services on a host follow.

    Args:
        run_key: key of the launcher.
        host: name of the host in addresses (`HostAddress.host`); empty in a run of one host.
    """
    return _mac(run_key, "host", host)


def key_of_socket(host_key: str, name: str) -> str:
    """Return the key of the service that listens at a unix socket of a host; `name` is the last part of its path."""
    return _mac(host_key, "socket", name)


def key_of_agent(host_key: str) -> str:
    """Return the key of the port at which the agent of a host serves other agents.

    It is not a key of a socket, so no process of the run can get a token for that port: only the launcher makes them.
    """
    return _mac(host_key, "agent")


def socket_of(process_id: str) -> str:
    """Return the name of the socket at which a process serves others; short enough for `MAX_SOCKET_NAME_BYTES`."""
    return f"{hashlib.sha256(process_id.encode(errors='surrogatepass')).hexdigest()[:16]}.sock"


def host_of(address: str) -> str:
    """Return the host in an address; empty in a run of one host.

    Raises:
        ValueError: the text is not an address of a service.
    """
    parsed = _parse(address)
    return parsed.host if isinstance(parsed, HostAddress) else ""


def token_for(host_key: str, address: str, process_id: str, fingerprint: str = "") -> str:
    """Return the token for the service at an address.

    Args:
        host_key: key of the host in the address.
        address: address of the service.
        process_id: name of the caller.
        fingerprint: fingerprint of the caller's certificate; empty if it has none.

    Raises:
        ValueError: the text is not an address of a service.
    """
    parsed = _parse(address)
    unix = parsed.unix if isinstance(parsed, HostAddress) else parsed
    assert not isinstance(unix, TlsAddress)
    return token_of(key_of_socket(host_key, os.path.basename(unix.path)), process_id, fingerprint)


def _parse(address: str) -> Address:
    parsed = parse_address(address)
    if isinstance(parsed, TlsAddress):
        raise ValueError(f"{address} is not the address of a service: it names no unix socket")
    return parsed


def _mac(key: str, *words: str) -> str:
    """Return the HMAC-SHA-256 of some strings, each after its length, so that no two lists of strings have the same."""
    text = b"".join(
        len(word).to_bytes(8, "little") + word for word in (each.encode(errors="surrogatepass") for each in words)
    )
    return hmac.digest(key.encode(), text, "sha256").hex()
