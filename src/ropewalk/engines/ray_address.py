"""Whether a Ray cluster listens at an address, found out within seconds.

Ray's own connect retries for a minute or more, and then does not say whether the host, the port or the program there is
wrong. Here a plain connection is opened first. A head of Ray speaks gRPC, so it answers the connection preface of
HTTP/2 with a SETTINGS frame (RFC 9113, section 3.4). It also has the method with which Ray begins; any other server of
gRPC, such as that of a worker node of Ray, answers a call of it with the status UNIMPLEMENTED. With RAY_USE_TLS=1 only
the connection itself is tried.

gRPC over HTTP/2: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md. Its headers are compressed (HPACK, RFC
7541). Those of the call are sent literally; of the answer only the one spelling of the status in which it may come is
looked for, as a decoder would be longer than all the rest.
"""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import threading
from collections.abc import Callable, Iterator

NO_RAY = "no Ray answers"
"""The beginning of every message of `why_not_ray`, which has its advice with it."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The preface of a client, and an empty SETTINGS frame."""
_DATA, _HEADERS, _SETTINGS, _CONTINUATION = 0, 1, 4, 9
_END_STREAM, _END_HEADERS = 1, 4
_FRAME_HEADER = 9
_METHOD = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""The first call of every client of Ray since 2.7; it changes nothing."""
_STATUS_NAMES = (b"\x0bgrpc-status", bytes.fromhex("889acac8b21234da8f"))
_UNIMPLEMENTED = (b"\x0212", bytes.fromhex("8208bf"))
"""The name and the value of the header `grpc-status: 12`, each as it is and in the Huffman code of HPACK."""
_ADDRESS = re.compile(r"(?:\[(?P<ip6>[0-9a-fA-F:.]+)\]|(?P<host>[^\[\]:/\s]+)):(?P<port>\d{1,5})")


def why_not_ray(address: str, *, tls: bool = False, timeout_s: float = 5.0) -> str:
    """Return why a cluster cannot be at an address, with advice; empty if one may be.

    Args:
        address: `HOST:PORT`; any other form is left to Ray.
        tls: whether the cluster encrypts its traffic.
        timeout_s: seconds for the name, the connection and the answer together.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match["port"]) < 2**16:
        return ""
    host, port = match["ip6"] or match["host"], int(match["port"])
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    # A thread, because the resolver of names has timeouts of its own.
    threading.Thread(target=lambda: found.put(_obstacle(host, port, tls, timeout_s)), daemon=True).start()
    try:
        problem = found.get(timeout=timeout_s + 1)
    except queue.Empty:
        problem = f"the name {host} was not resolved or nothing was heard within {timeout_s:g} s"
    if not problem:
        return ""
    return (
        f"{NO_RAY} at {address}: {problem}. Set the option address to the one that `ray start --head` has printed "
        "(port 6379 unless it was given another), check that the head runs (`ray status` on its host) and that no "
        "firewall is between"
    )


def _obstacle(host: str, port: int, tls: bool, timeout_s: float) -> str:
    try:
        connection = socket.create_connection((host, port), timeout_s)
    except TimeoutError:
        return f"the host did not answer within {timeout_s:g} s"
    except OSError as error:
        return error.strerror or str(error)
    with connection:
        connection.settimeout(timeout_s)
        return "" if tls else _wrong_program(connection, host, timeout_s)


def _wrong_program(connection: socket.socket, host: str, timeout_s: float) -> str:
    heard = _exchange(connection, _PREFACE, b"", lambda heard: len(heard) >= _FRAME_HEADER)
    if len(heard) < _FRAME_HEADER or heard[3] != _SETTINGS or heard[5:9] != bytes(4):
        said = f"it said {heard[:40]!r}" if heard else f"it said nothing within {timeout_s:g} s, or hung up"
        return f"another program listens there, which does not speak gRPC ({said})"
    heard = _exchange(connection, _call(host), heard, _has_ended)
    # Without an answer it may be one: Ray itself will say more.
    return "a server of gRPC listens there that is not the head of a Ray cluster" if _lacks_method(heard) else ""


def _exchange(connection: socket.socket, data: bytes, heard: bytes, is_enough: Callable[[bytes], bool]) -> bytes:
    """Send data, and return what was heard before with what is heard until that is enough, or nothing more comes."""
    with contextlib.suppress(OSError):  # what was heard before counts
        connection.sendall(data)
        while not is_enough(heard) and (more := connection.recv(4096)):
            heard += more
    return heard


def _call(host: str) -> bytes:
    """Return the frames of a call with an empty message, on the first stream of a connection."""
    fields = {
        ":method": "POST", ":scheme": "http", ":path": _METHOD, ":authority": host,
        "te": "trailers", "content-type": "application/grpc",
    }  # fmt: skip
    literal = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())
    return (
        _frame(_SETTINGS, 1, 0, b"")  # confirms those of the server
        + _frame(_HEADERS, _END_HEADERS, 1, literal)
        + _frame(_DATA, _END_STREAM, 1, bytes(5))
    )


def _text(word: str) -> bytes:
    data = word.encode()[:126]  # a longer one would have a length of several bytes, which no server asks for here
    return bytes([len(data)]) + data


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _frames(data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Yield kind, flags, stream and payload of each complete frame."""
    while len(data) >= _FRAME_HEADER and len(data) >= (end := _FRAME_HEADER + int.from_bytes(data[:3], "big")):
        yield data[3], data[4], int.from_bytes(data[5:9], "big"), data[_FRAME_HEADER:end]
        data = data[end:]


def _lacks_method(heard: bytes) -> bool:
    headers = b"".join(payload for kind, _, _, payload in _frames(heard) if kind in (_HEADERS, _CONTINUATION))
    return any(name + value in headers for name in _STATUS_NAMES for value in _UNIMPLEMENTED)


def _has_ended(heard: bytes) -> bool:
    return any(stream == 1 and flags & _END_STREAM for kind, flags, stream, _ in _frames(heard) if kind <= _HEADERS)
