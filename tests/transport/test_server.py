"""Who gets in, what the others are told, and how little a crowd of strangers hurts (S1 to S34: our attack tests)."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
from msgspec.structs import replace

from ropewalk.errors import LinkClosed, SettingsError, TransportRefused
from ropewalk.transport import client as client_module
from ropewalk.transport import server as server_module
from ropewalk.transport.address import TlsAddress, UnixAddress
from ropewalk.transport.client import dial, dial_owner
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.frames import MEMBER, PROTOCOL, STRANGER, encode_head
from ropewalk.transport.handshake import CODEC, Challenge, Dialling, Ends, Hello, Refused, Welcome
from ropewalk.transport.link import Link
from ropewalk.transport.loop import Loop
from ropewalk.transport.passport import Passport
from ropewalk.transport.streams.plain import PlainStream
from ropewalk.transport.streams.tls import TlsStream, client_context
from ropewalk.transport.tls_server import TlsListener
from tests.patience import PATIENCE_S, wait_until
from tests.transport.ends import NOTES, RUN, Note, Server, certificate, on_loop, running_loop, serving


@pytest.fixture(params=["unix", "tls"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with serving(request.param) as server:
        yield server


@pytest.fixture
def unix_server() -> Iterator[Server]:
    with serving("unix") as server:
        yield server


@pytest.fixture
def tls_server() -> Iterator[Server]:
    with serving("tls") as server:
        yield server


def greet(server: Server, say: Callable[[Hello], Any], who: Credentials, *, shows: str = "") -> Link:
    """A link on which something has been said in the place of a good greeting; the answer has not been read."""
    stream: Any
    ends = Ends()
    shows = shows or who.process_id
    if server.kind == "unix":
        stream = PlainStream(server.raw())
    else:
        stream = TlsStream(server.raw(), client_context(certificate(shows)), server_side=False)
        stream.handshake(PATIENCE_S, lambda _: True)
        ends = Ends(certificate(shows).fingerprint, server.address.fingerprint)
    link = Link(stream, CODEC, "server", STRANGER)
    challenge = link.receive()
    assert challenge
    link.send(say(Dialling(who, "server", ends).answer(challenge.message)))
    return link


def everything_from(sock: socket.socket) -> bytes:
    """What a server says until it hangs up."""
    said = b""
    while heard := sock.recv(4096):
        said += heard
    return said


# --- members ----------------------------------------------------------------------------------------------------------


def test_a_member_gets_in_and_is_known_by_its_name(server: Server) -> None:
    link = server.dial(server.member("worker-1"))
    assert server.answers(link)
    assert server.up == ["worker-1"]
    assert server.links["worker-1"].peer == "worker-1"
    assert len(server.listener._strangers) == 0
    link.close()
    wait_until(lambda: server.gone == ["worker-1"], "the loop hears of the end")


def test_many_members_dial_at_once(server: Server) -> None:
    credentials = [server.member(f"worker-{rank}") for rank in range(40)]
    with ThreadPoolExecutor(20) as executor:
        links = list(executor.map(server.dial, credentials))
    try:
        assert all(server.answers(link, number) for number, link in enumerate(links))
    finally:
        for link in links:
            link.close()


def test_what_a_member_says_right_behind_its_greeting_is_heard(server: Server) -> None:
    credentials = server.member("hasty")
    link = greet(server, lambda good: good, credentials)
    link.codec = NOTES
    link.send(Note(4), [b"x" * 10_000])
    link.codec = CODEC
    assert isinstance(link.receive().message, Welcome)  # type: ignore[union-attr]
    link.relabel(NOTES, MEMBER)
    received = link.receive()
    assert received and received.message == Note(8)
    link.close()


def test_closing_the_listener_leaves_links_open_and_may_be_repeated(server: Server) -> None:
    link = server.dial(server.member("worker"))
    for _ in range(2):
        on_loop(server.loop, lambda: server.listener.close() or True)
    assert server.answers(link)
    link.close()
    with pytest.raises(LinkClosed, match="nobody answers"):
        server.dial(server.member("late"), timeout_s=1)


def test_dialling_a_server_that_does_not_answer_ends_in_time(tmp_path: Path) -> None:
    silent = socket.socket(socket.AF_UNIX)
    path = f"{tempfile.gettempdir()}/silent.sock"
    silent.bind(path)
    silent.listen(1)
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent_tcp:
            tcp = TlsAddress("127.0.0.1", silent_tcp.getsockname()[1], "0" * 64)
            for address in (UnixAddress(path), tcp):
                began = time.monotonic()
                with pytest.raises((LinkClosed, TransportRefused), match=r"too long|within 0\.[23]"):
                    dial(
                        address,
                        Credentials.create(RUN, "x"),
                        NOTES,
                        passport=Passport("here", certificate=certificate("x")),
                        timeout_s=0.3,
                    )
                assert time.monotonic() - began > 0.25
    finally:
        silent.close()
        os.unlink(path)


def test_a_full_queue_of_a_unix_socket_is_waited_for() -> None:
    """Linux answers EAGAIN at once there, where TCP would wait."""
    path = f"{tempfile.gettempdir()}/silent.sock"
    with socket.socket(socket.AF_UNIX) as busy, contextlib.ExitStack() as stack:
        busy.bind(path)
        busy.listen(0)
        for _ in range(5):
            early = stack.enter_context(socket.socket(socket.AF_UNIX))
            early.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                early.connect(path)
        with ThreadPoolExecutor(1) as executor:
            dialling = executor.submit(
                dial, UnixAddress(path), Credentials.create(RUN, "x"), NOTES, timeout_s=PATIENCE_S
            )
            time.sleep(0.1)
            assert not dialling.done(), "it knocks again"
            for _ in range(6):
                busy.settimeout(0.1)
                with contextlib.suppress(TimeoutError):
                    busy.accept()[0].close()
            with pytest.raises(LinkClosed, match=r"during the handshake|handshake failed"):
                dialling.result(PATIENCE_S)
    os.unlink(path)


# --- refusals ---------------------------------------------------------------------------------------------------------


def refusal(server: Server, who: Credentials, say: Callable[[Hello], Any] = lambda good: good) -> str:
    link = greet(server, say, who, shows="worker")
    try:
        received = link.receive()
        assert received and isinstance(received.message, Refused)
        assert link.receive() is None, "then it hangs up"
        return received.message.reason
    finally:
        link.close()


def test_a_greeting_that_does_not_fit_is_refused_with_the_reason(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "LINGER_S", 0.05)
    good = server.member("worker")
    change = msgspec.structs.replace
    assert "protocol 0" in refusal(server, good, lambda hello: change(hello, protocol=0))  # S31
    assert "Python 2.7" in refusal(server, good, lambda hello: change(hello, python=(2, 7)))
    assert "another run" in refusal(server, replace(good, run_id="other"))
    assert "not a member" in refusal(server, replace(good, secret="0" * 64))
    assert "not a member" in refusal(server, replace(good, process_id="nobody"))
    assert "not a member" in refusal(server, good, lambda hello: change(hello, proof=b""))
    assert "begins with a greeting" in refusal(server, good, lambda _: Refused("no, you"))
    assert server.up == []
    assert server.listener.num_refused == 7
    wait_until(lambda: len(server.listener._strangers) == 0, "refused connections are let go")


def test_the_dialler_hears_why_it_was_refused(server: Server) -> None:
    credentials = server.member("worker")
    with pytest.raises(TransportRefused, match="another run"):
        server.dial(Credentials("other-run", "worker", credentials.secret))


def test_a_retired_process_is_refused(server: Server) -> None:  # S4
    credentials = server.member("worker")
    server.dial(credentials).close()
    server.members.retire("worker")
    with pytest.raises(TransportRefused):
        server.dial(credentials)
    assert server.up == ["worker"]


def test_a_frame_of_another_protocol_is_answered_with_what_to_change(unix_server: Server) -> None:
    sock = unix_server.raw()
    head = bytearray(encode_head(b"\x80", [], 0))
    head[2] = PROTOCOL + 1
    sock.sendall(head + b"\x80")
    assert b"upgrade the older side" in everything_from(sock)
    sock.close()


def test_a_member_with_the_certificate_of_another_is_refused(tls_server: Server) -> None:
    """S9: a forged id inside a valid TLS session."""
    credentials = tls_server.member("worker-1")
    tls_server.member("worker-2")
    with pytest.raises(TransportRefused, match="certificate of another process"):
        tls_server.dial(credentials, shows="worker-2")
    assert tls_server.up == []


def test_a_certificate_without_the_secret_is_not_enough(tls_server: Server) -> None:
    tls_server.member("worker")
    with pytest.raises(TransportRefused, match="not a member"):
        tls_server.dial(Credentials.create(RUN, "worker"))
    assert tls_server.up == []


def test_a_certificate_that_is_not_on_the_list_ends_in_the_tls_handshake(tls_server: Server) -> None:
    with pytest.raises(TransportRefused, match="does not admit this process"):
        tls_server.dial(Credentials.create(RUN, "unlisted"))


def test_a_process_retired_between_tls_and_its_greeting_is_refused(tls_server: Server) -> None:
    credentials = tls_server.member("worker")
    stream = TlsStream(tls_server.raw(), client_context(certificate("worker")), server_side=False)
    stream.handshake(PATIENCE_S, lambda _: True)
    tls_server.members.retire("worker")
    link = Link(stream, CODEC, "server", STRANGER)
    dialling = Dialling(credentials, "server", Ends(certificate("worker").fingerprint, tls_server.address.fingerprint))
    challenge = link.receive()
    assert challenge
    link.send(dialling.answer(challenge.message))
    received = link.receive()
    assert received and isinstance(received.message, Refused)
    link.close()


def test_a_member_that_took_the_port_of_another_is_noticed_by_the_dialler(tls_server: Server) -> None:
    """S29, S30: the address says whose certificate has to answer."""
    credentials = tls_server.member("worker")
    meant = TlsAddress(tls_server.address.ip, tls_server.address.port, certificate("another").fingerprint)
    with pytest.raises(TransportRefused, match="not the one that was meant"):
        dial(meant, credentials, NOTES, passport=Passport("here", certificate=certificate("worker")))
    with pytest.raises(TransportRefused, match="no certificate"):
        dial(tls_server.address, credentials, NOTES)


@pytest.mark.parametrize("ip", ["0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1"])
def test_a_run_does_not_listen_on_every_network(ip: str) -> None:  # S34
    with pytest.raises(SettingsError, match="every network"):
        TlsListener(Loop.__new__(Loop), ip, 0, certificate("s"), RUN, AllowList(), NOTES, lambda *_: None)


def test_ipv6_works_where_there_is_one() -> None:
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    with running_loop() as loop:
        members = AllowList()
        up: list[str] = []

        def linked(process_id: str, link: Link) -> None:
            up.append(process_id)
            loop.add_link(link, lambda _: None, lambda _: None)

        try:
            listener = TlsListener(loop, "::1", 0, certificate("server"), RUN, members, NOTES, linked)
        except OSError as error:
            pytest.skip(f"no IPv6 here: {error}")
        on_loop(loop, lambda: listener.open() or True)
        credentials = Credentials.create(RUN, "six")
        members.admit("six", credentials.secret, certificate("six").fingerprint)
        assert listener.address
        dial(listener.address, credentials, NOTES, passport=Passport("here", certificate=certificate("six"))).close()
        wait_until(lambda: up == ["six"], "it is up")
        on_loop(loop, lambda: listener.close() or True)


def test_a_server_of_another_protocol_is_refused_with_what_to_change() -> None:
    path = f"{tempfile.gettempdir()}/newer.sock"
    words = CODEC.encode(Challenge(bytes(32)))
    head = bytearray(encode_head(words, [], 0))
    head[2] = PROTOCOL + 1

    def pretend(listener: socket.socket) -> None:
        with listener.accept()[0] as peer:
            peer.sendall(head)
            peer.recv(100)

    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as executor:
        listener.bind(path)
        listener.listen()
        pretending = executor.submit(pretend, listener)
        advice = f"protocol {PROTOCOL + 1} and this side {PROTOCOL}; upgrade the older side"
        with pytest.raises(TransportRefused, match=advice):
            dial(UnixAddress(path), Credentials.create(RUN, "x"), NOTES, timeout_s=PATIENCE_S)
        pretending.result(PATIENCE_S)
    os.unlink(path)


def test_a_server_without_the_secret_gets_a_greeting_and_nothing_else(tmp_path: Path) -> None:
    """Whoever took over the door of an agent used to be sent the launcher's secret, and was believed without proof."""
    path = f"{tempfile.gettempdir()}/door.sock"
    heard: list[Any] = []

    def pretend(listener: socket.socket) -> bytes:
        link = Link(PlainStream(listener.accept()[0]), CODEC, "dialler", STRANGER)
        link.send(Challenge(bytes(32)))
        heard.append(link.receive())
        link.send(Welcome(heard[0].message.proof))
        rest = b"" if link.receive() is None else b"more"
        link.close()
        return rest

    credentials = Credentials.create(RUN, "launcher")
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as executor:
        listener.bind(path)
        listener.listen()
        pretending = executor.submit(pretend, listener)
        with pytest.raises(TransportRefused, match=f"unix:{path} did not prove that it belongs to this run"):
            dial(UnixAddress(path), credentials, NOTES, timeout_s=PATIENCE_S)
        assert pretending.result(PATIENCE_S) == b""
    os.unlink(path)
    assert credentials.secret not in repr(heard[0].message)


# --- crowds and garbage -----------------------------------------------------------------------------------------------


def test_three_hundred_undecided_connections_do_not_keep_a_member_waiting(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:  # S5
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 3600.0)  # nobody waits until it is up
    early = server.dial(server.member("early"))
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(server.raw())
        assert server.answers(early)
        late = server.dial(server.member("late"))
        assert server.answers(late)
        assert len(server.listener._strangers) <= server_module.MAX_UNDECIDED, (
            "whoever came before `late` is counted by now"
        )
        assert len(server.listener._strangers) > 100, "others than the oldest may still speak"
        late.close()
    early.close()
    wait_until(lambda: len(server.listener._strangers) == 0, "connections that closed are forgotten")


def test_a_slow_loris_is_cut_off_in_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:  # S5
    monkeypatch.setattr(server_module, "HANDSHAKE_S", 0.4)
    sock = server.raw()
    drip = encode_head(b"x" * 4000, [], 0) if server.kind == "unix" else b"\x16\x03\x01\x0f\xff" + bytes(4000)

    def send_slowly() -> None:
        for byte in drip:
            sock.send(bytes([byte]))
            time.sleep(0.01)

    with pytest.raises(ConnectionError):
        send_slowly()
    sock.close()
    wait_until(lambda: server.listener.num_refused == 1, "it is counted")
    link = server.dial(server.member("worker"))
    assert server.answers(link)
    link.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        bytes(100_000),
        os.urandom(100_000),
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 0, 1, 10) + struct.pack("<Q", 1 << 40) + bytes(10),  # S8: 1 TiB
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 0, 65535, 10),
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 0, 0, 0xFFFFFFFF),
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 200, 0, 1) + b"\x80",
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 0, 0, 4096) + b"\x91" * 4096,  # nested
        struct.pack("<2sBBHI", b"rw", PROTOCOL, 0, 0, 5) + b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
    ],
    ids=["http", "zeros", "random", "1 TiB", "65535 parts", "4 GiB header", "descriptors", "nested", "huge array"],
)
def test_garbage_is_dropped_and_costs_no_memory(server: Server, garbage: bytes) -> None:
    before = psutil.Process().memory_info().rss
    with server.raw() as sock:
        with contextlib.suppress(OSError):
            sock.sendall(garbage)
        with contextlib.suppress(OSError):  # a reset will do
            while sock.recv(4096):
                pass
    wait_until(lambda: server.listener.num_refused == 1, "it is counted")
    assert psutil.Process().memory_info().rss - before < 20 << 20
    link = server.dial(server.member("worker"))
    assert server.answers(link)
    link.close()


def test_a_flood_behind_a_refusal_is_not_kept(unix_server: Server) -> None:
    sock = unix_server.raw()
    sock.sendall(b"garbage " * 10)
    with contextlib.suppress(OSError):
        for _ in range(1000):
            sock.sendall(bytes(100_000))
    sock.close()
    wait_until(lambda: len(unix_server.listener._strangers) == 0, "it is let go")
    link = unix_server.dial(unix_server.member("worker"))
    assert unix_server.answers(link)
    link.close()


def test_descriptors_of_strangers_are_closed(unix_server: Server) -> None:
    link = unix_server.dial(unix_server.member("worker"))
    assert unix_server.answers(link)
    before = psutil.Process().num_fds()
    with contextlib.ExitStack() as stack:  # all at once, for each of them may take half a second to read the reason
        strangers = [stack.enter_context(unix_server.raw()) for _ in range(20)]
        for sock in strangers:
            socket.send_fds(sock, [b"rw"], [0, 1, 2])
        for sock in strangers:
            assert b"descriptors" in everything_from(sock)
    wait_until(lambda: len(unix_server.listener._strangers) == 0, "they are let go")
    wait_until(lambda: psutil.Process().num_fds() == before, "their descriptors are closed")
    link.close()


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (self.path,)


def test_nothing_of_a_greeting_is_ever_unpickled(server: Server, tmp_path: Path) -> None:  # S6, S10
    target = tmp_path / "exploded"
    bomb = pickle.dumps(Bomb(str(target)), 0)
    text = bomb.decode("latin-1")
    good = server.member("worker")

    def with_field(hello: Hello, name: str, value: Any) -> Any:
        fields = msgspec.to_builtins(hello, builtin_types=(bytes,)) | {"type": "hello"}
        return msgspec.Raw(msgspec.msgpack.encode(fields | {name: value}))

    said = [
        partial(with_field, name=name, value=value)
        for name in ("type", *Hello.__struct_fields__)
        for value in (bomb, text, [bomb], {"x": bomb}, float("nan"), -1, None)
    ]
    for say in (*said, lambda _: msgspec.Raw(bomb)):
        link = greet(server, say, good)
        answer = link.receive()
        assert answer and isinstance(answer.message, Refused), say
        link.close()
    assert server.up == []
    assert not target.exists()
    pickle.loads(bomb)
    assert target.exists(), "it would have gone off"


# --- other users of this machine --------------------------------------------------------------------------------------


def test_the_socket_is_closed_to_others(unix_server: Server) -> None:  # S12
    assert stat.S_IMODE(os.stat(unix_server.address.path).st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_another_user_is_refused_even_where_the_file_lets_it_through(unix_server: Server) -> None:  # S14
    path = unix_server.address.path
    os.chmod(os.path.dirname(path), 0o755)
    code = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "sock = socket.socket(socket.AF_UNIX); sock.settimeout(10)\n"
        "try: sock.connect(sys.argv[1])\n"
        "except PermissionError: print('denied'); raise SystemExit\n"
        "try: print(sock.recv(100))\n"
        "except ConnectionResetError: print(b'')\n"
    )

    def nobody_says() -> str:
        return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True).stdout.strip()

    parents = [os.path.dirname(path), os.environ["TMPDIR"]]
    modes = [stat.S_IMODE(os.stat(folder).st_mode) for folder in parents]
    try:
        for folder in parents:
            os.chmod(folder, 0o755)
        assert nobody_says() == "denied", "mode 0600"
        os.chmod(path, 0o666)
        assert nobody_says() == "b''", "the kernel names the peer"
    finally:
        for folder, mode in zip(parents, modes, strict=True):
            os.chmod(folder, mode)
    assert unix_server.listener.num_refused == 1
    link = unix_server.dial(unix_server.member("worker"))
    assert unix_server.answers(link)
    link.close()


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_nothing_is_said_to_another_user_who_listens_in_our_place(tmp_path: Path) -> None:
    """Somebody may make a socket where one of ours is expected; not even a greeting goes there."""
    path = f"{tempfile.gettempdir()}/taken.sock"
    code = (
        "import os, socket, sys\n"
        "listener = socket.socket(socket.AF_UNIX); listener.bind(sys.argv[1]); os.chmod(sys.argv[1], 0o777)\n"
        "os.setuid(65534)\n"
        "listener.listen(); print('up', flush=True); listener.settimeout(20)\n"
        "peer = listener.accept()[0]; peer.settimeout(20); print(peer.recv(100))\n"
    )
    squatter = subprocess.Popen([sys.executable, "-S", "-c", code, path], stdout=subprocess.PIPE, text=True)
    with squatter:
        assert squatter.stdout
        assert squatter.stdout.readline() == "up\n"
        with pytest.raises(LinkClosed, match="user 65534 listens there, and not you"):
            dial(UnixAddress(path), Credentials.create(RUN, "x"), NOTES, timeout_s=PATIENCE_S)
        assert squatter.stdout.read() == "b''\n"
    os.unlink(path)


# --- misfortunes ------------------------------------------------------------------------------------------------------


def test_a_listener_that_is_out_of_descriptors_pauses_and_goes_on(unix_server: Server) -> None:
    first = unix_server.dial(unix_server.member("first"))

    def fail() -> Any:
        raise OSError(24, "Too many open files")

    listener = unix_server.listener
    real = listener._socket

    class Full:
        accept = staticmethod(fail)
        fileno = staticmethod(real.fileno)

    listener._socket = Full()  # type: ignore[assignment]
    sock = unix_server.raw()
    time.sleep(0.05)
    assert unix_server.answers(first)
    listener._socket = real
    sock.close()
    late = unix_server.dial(unix_server.member("late"))
    assert unix_server.answers(late)
    for link in (first, late):
        link.close()


def test_closing_while_it_pauses_does_not_open_it_again(unix_server: Server) -> None:
    def close_then_open() -> bool:
        unix_server.listener.close()
        unix_server.listener.open()
        return True

    on_loop(unix_server.loop, close_then_open)


def test_an_owner_that_raises_does_not_leave_the_link_open(
    unix_server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(process_id: str, link: Link) -> None:
        raise RuntimeError("no place for you")

    unix_server.listener._on_link = fail
    with caplog.at_level(logging.CRITICAL, "ropewalk.transport.loop"):
        link = unix_server.dial(unix_server.member("worker"))
        assert link.receive() is None
    link.close()


def test_a_forked_child_lets_go_of_everything(server: Server) -> None:
    sock = server.raw()
    wait_until(lambda: len(server.listener._strangers) == 1, "the connection is there")
    pid = os.fork()
    if pid == 0:
        server.listener.forget()
        left = [s for s in server.listener._strangers if s.stream.fileno() != -1]
        os._exit(bool(left) or server.listener._socket.fileno() != -1)
    assert os.waitpid(pid, 0)[1] == 0
    link = server.dial(server.member("worker"))
    assert server.answers(link)
    link.close()
    sock.close()


def test_threads_of_handshakes_end_with_the_listener(tls_server: Server) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(tls_server.raw())
        wait_until(lambda: len(tls_server.listener._strangers) == 20, "all are there")
        on_loop(tls_server.loop, lambda: tls_server.listener.close() or True)
        wait_until(
            lambda: not [t for t in threading.enumerate() if t.name == "ropewalk-tls-handshake"], "no thread is left"
        )


def test_a_new_process_is_patient_with_an_owner_that_hangs_up_and_not_with_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_S", 3600.0)
    # With 2,000 workers that came up at once, those whom the launcher had not heard in time gave up for good.
    path = str(tmp_path / "owner.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as owner, ThreadPoolExecutor(1) as executor:
        owner.bind(path)
        owner.listen()
        owner.settimeout(PATIENCE_S)
        dialling = executor.submit(dial_owner, UnixAddress(path), Credentials.create(RUN, "late"), NOTES)
        for _ in range(3):
            owner.accept()[0].close()  # unheard
        os.unlink(path)
        owner.close()
        with pytest.raises(LinkClosed, match="nobody answers"):  # the patience is not over
            dialling.result(PATIENCE_S)
