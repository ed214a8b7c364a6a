"""A wrong address of a Ray cluster: named, with what is wrong there, before Ray tries it for a minute."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from ropewalk.engines.ray import RayEngine
from ropewalk.engines.ray_address import NO_RAY, why_not_ray
from ropewalk.errors import EngineError
from tests.lab.plugin import require_packages

SETTINGS = bytes([0, 0, 6, 4, 0, 0, 0, 0, 0]) + bytes([0, 3, 0, 0, 0, 100])
"""The first frame of a gRPC server: the most streams at a time."""


class Listener:
    """A program at a free port of this machine that answers each connection with the same bytes."""

    def __init__(self, answer: bytes, hangs_up: bool = True) -> None:
        self._answer, self._hangs_up = answer, hangs_up
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self._held.append(connection)
            if self._answer or not self._hangs_up:
                connection.sendall(self._answer)
            else:
                connection.close()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()
        for connection in self._held:
            connection.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., str]]:
    listeners: list[Listener] = []

    def start(answer: bytes, hangs_up: bool = True) -> str:
        listeners.append(Listener(answer, hangs_up))
        return listeners[-1].address

    yield start
    for listener in listeners:
        listener.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def headers(block: bytes, stream: int = 1) -> bytes:
    """A frame of headers that ends the answer to a call."""
    return len(block).to_bytes(3, "big") + bytes([1, 5]) + stream.to_bytes(4, "big") + block


def test_a_server_of_grpc_may_be_ray(listen: Callable[..., str]) -> None:
    assert why_not_ray(listen(SETTINGS), timeout_s=0.1) == "", "it does not answer a call"
    assert why_not_ray(listen(SETTINGS + headers(b"\x88@\x0bgrpc-status\x010"))) == ""
    assert why_not_ray(listen(SETTINGS + headers(b"\x88@\x0bgrpc-status\x0216"))) == "", "it wants a token"


@pytest.mark.parametrize(
    "status", [b"\x0bgrpc-status\x0212", bytes.fromhex("889acac8b21234da8f") + b"\x0212"], ids=["plain", "Huffman"]
)
def test_a_server_of_grpc_without_the_first_method_of_ray_is_none(listen: Callable[..., str], status: bytes) -> None:
    address = listen(SETTINGS + headers(b"\x88@" + status))
    said = why_not_ray(address)
    assert said.startswith(f"{NO_RAY} at {address}: a server of gRPC listens there that is not the head of a Ray")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1 400"), (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0"), (b"", "hung up")],
)
def test_another_program_is_none(listen: Callable[..., str], answer: bytes, words: str) -> None:
    address = listen(answer)
    said = why_not_ray(address)
    assert said.startswith(f"{NO_RAY} at {address}: another program listens there")
    assert words in said and "`ray start --head`" in said


def test_a_program_that_says_nothing_is_none(listen: Callable[..., str]) -> None:
    assert "said nothing within 0.1 s" in why_not_ray(listen(b"", hangs_up=False), timeout_s=0.1)


def test_encrypted_traffic_is_not_looked_into(listen: Callable[..., str]) -> None:
    assert why_not_ray(listen(b"", hangs_up=False), tls=True) == ""
    assert "refused" in why_not_ray(closed_port(), tls=True)


def test_a_host_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(address: tuple[str, int], timeout_s: float) -> socket.socket:
        raise TimeoutError(f"{address} in {timeout_s}")

    monkeypatch.setattr("socket.create_connection", never)
    assert "10.255.0.1:6379: the host did not answer within 5 s" in why_not_ray("10.255.0.1:6379")


@pytest.mark.parametrize("address", ["auto", "", "local", "ray://head:10001", "head", "head:99999"])
def test_other_forms_are_left_to_ray(address: str) -> None:
    assert why_not_ray(address) == ""


def test_the_engine_names_the_address_and_what_to_do() -> None:
    """Without Ray's own attempts, which would take a minute: the driver has not even imported it."""
    address = closed_port()
    engine = RayEngine({"address": address, "auth": "disabled"})
    with pytest.raises(EngineError) as caught:
        engine.find("run")
    said = str(caught.value)
    assert f"cannot connect to Ray at {address}: {NO_RAY} at {address}: " in said
    assert "refused" in said and "`ray start --head`" in said and "firewall" in said
    engine.close()


def test_an_address_in_the_environment_is_looked_at_too(monkeypatch: pytest.MonkeyPatch) -> None:
    require_packages("ray")
    address = closed_port()
    monkeypatch.setenv("RAY_ADDRESS", address)
    engine = RayEngine({"auth": "disabled"})
    port = address.partition(":")[2]  # Ray replaces loopback by another address of this host
    with pytest.raises(EngineError, match=rf"{NO_RAY} at \S+:{port}: .*refused"):
        engine.find("run")
    engine.close()
