"""Pairs that meet at a relay: what one says the other hears, whole, and whoever has no ticket gets nowhere."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import random
import resource
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from ropewalk.errors import LinkClosed, SettingsError, TransportRefused
from ropewalk.transport import relay as relay_module
from ropewalk.transport.address import UnixAddress
from ropewalk.transport.joining import join, new_ticket
from ropewalk.transport.loop import Loop
from ropewalk.transport.relay import MAX_UNDECIDED, Relay
from ropewalk.transport.splice import BUFFER_BYTES
from ropewalk.transport.streams.tls import TlsStream, client_context, server_context
from tests.patience import PATIENCE_S, wait_until
from tests.transport.ends import certificate, on_loop, running_loop

Pair = tuple[socket.socket, socket.socket]
#: More than the buffers of two sockets and of the splice between them hold.
FLOOD_BYTES = 64 << 20


class Exchange:
    """A relay on a loop of its own, which can be reached by a unix socket and by TCP."""

    def __init__(self, loop: Loop, folder: str) -> None:
        self.loop = loop
        self.joined: list[str] = []
        self.missed: list[str] = []
        self.board = Relay(loop, self.joined.append)
        self.unix = UnixAddress(f"{folder}/relay.sock")
        on_loop(loop, lambda: self.board.listen_unix(self.unix.path))
        self.tcp: tuple[str, int] = on_loop(loop, lambda: self.board.listen_tcp("127.0.0.1"))
        self._executor = ThreadPoolExecutor(32)

    def expect(self, timeout_s: float = PATIENCE_S) -> str:
        ticket = new_ticket()
        on_loop(self.loop, lambda: self.board.expect(ticket, timeout_s, lambda: self.missed.append(ticket)))
        return ticket

    def join(self, ticket: str, kind: str = "tcp", timeout_s: float = PATIENCE_S) -> Future[socket.socket]:
        """A side on its way, in another thread."""
        return self._executor.submit(join, self.unix if kind == "unix" else self.tcp, ticket, timeout_s)

    def pair(self, kinds: str = "tcp-tcp") -> Pair:
        """Two sides that have met."""
        ticket = self.expect()
        first, second = kinds.split("-")
        a = self.join(ticket, first)
        wait_until(lambda: on_loop(self.loop, lambda: self._waits(ticket)), "the first side waits")
        b = self.join(ticket, second)
        for side in (a.result(), b.result()):
            side.settimeout(PATIENCE_S)
        return a.result(), b.result()

    def _waits(self, ticket: str) -> bool:
        return any(meeting.ticket == ticket and meeting.first for meeting in self.board._meetings.values())

    def ask(self, call: Callable[[], object]) -> object:
        return on_loop(self.loop, call)

    def num_splices(self) -> int:
        return on_loop(self.loop, lambda: len(self.board._splices))

    def raw(self, kind: str = "tcp") -> socket.socket:
        """A connection that has said nothing yet."""
        if kind == "tcp":
            return socket.create_connection(self.tcp, timeout=PATIENCE_S)
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE_S)
        sock.connect(self.unix.path)
        return sock

    def close(self) -> None:
        on_loop(self.loop, self.board.close)
        self._executor.shutdown()


@pytest.fixture
def exchange() -> Iterator[Exchange]:
    with tempfile.TemporaryDirectory() as folder, running_loop() as loop:
        exchange = Exchange(loop, folder)
        try:
            yield exchange
        finally:
            exchange.close()


KINDS = ["tcp-tcp", "unix-unix", "unix-tcp", "tcp-unix"]
#: Each kind on each side, and the other two in soak.
EACH_KIND = ["unix-tcp", "tcp-unix", *(pytest.param(kinds, marks=pytest.mark.soak) for kinds in KINDS[:2])]


@pytest.fixture(params=EACH_KIND)
def pair(request: pytest.FixtureRequest, exchange: Exchange) -> Iterator[Pair]:
    a, b = exchange.pair(request.param)
    with a, b:
        yield a, b


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end, however it comes."""
    pieces: list[bytes] = []
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


def digest_of_all(sock: socket.socket) -> str:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(1 << 20))
    while count := sock.recv_into(buffer):
        digest.update(buffer[:count])
    return digest.hexdigest()


def fill(sock: socket.socket, at_most: int = FLOOD_BYTES) -> int:
    """Write until nothing goes for a while; returns how much went."""
    sock.settimeout(0.3)
    written, chunk = 0, bytes(1 << 16)
    with contextlib.suppress(TimeoutError):
        while written < at_most:
            written += sock.send(chunk)
    return written


def speak_on(sock: socket.socket) -> None:
    while True:
        sock.sendall(bytes(1 << 16))


def reset(sock: socket.socket) -> None:
    """Break a connection off, as a process that is killed with unread bytes does."""
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


# --- two that have met ------------------------------------------------------------------------------------------------


def test_what_one_says_the_other_hears_both_ways(pair: Pair) -> None:
    a, b = pair
    for speaker, hearer, words in ((a, b, b"over"), (b, a, b"and back"), (a, b, b"again")):
        speaker.sendall(words)
        assert hearer.recv(100) == words


def test_large_amounts_arrive_whole_in_both_directions_at_once(pair: Pair) -> None:
    randomness = random.Random(4)
    words = [randomness.randbytes(12 << 20), randomness.randbytes(9 << 20)]

    def say(sock: socket.socket, data: bytes) -> None:
        view = memoryview(data)
        while view:
            size = randomness.randrange(1, 400_000)
            sock.sendall(view[:size])
            view = view[size:]
        sock.shutdown(socket.SHUT_WR)

    with ThreadPoolExecutor(4) as executor:
        said = [executor.submit(say, sock, data) for sock, data in zip(pair, words, strict=True)]
        heard = [executor.submit(read_all, sock) for sock in reversed(pair)]
        assert [future.result() == data for future, data in zip(heard, words, strict=True)] == [True, True]
        assert [future.result() for future in said] == [None, None]


def test_an_end_is_passed_on_and_the_other_direction_goes_on(exchange: Exchange, pair: Pair) -> None:
    a, b = pair
    a.sendall(b"a question")
    a.shutdown(socket.SHUT_WR)
    assert read_all(b) == b"a question"
    for _ in range(3):
        b.sendall(b"an answer")
        assert a.recv(100) == b"an answer"
    assert exchange.num_splices() == 1
    b.close()
    assert a.recv(1) == b""
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


def test_last_words_of_a_side_that_closes_at_once_arrive(pair: Pair) -> None:
    a, b = pair
    words = random.Random(5).randbytes(3 << 20)
    with ThreadPoolExecutor(1) as executor:
        heard = executor.submit(read_all, b)
        a.sendall(words)
        a.close()
        assert heard.result() == words


def test_last_words_arrive_although_their_hearer_was_speaking(exchange: Exchange, pair: Pair) -> None:
    """It says no and hangs up, while the other is still in the middle of a long speech."""
    a, b = pair
    fill(a)
    words = b"no, and this is why" * 1000
    b.sendall(words)
    b.close()
    a.settimeout(PATIENCE_S)
    assert read_all(a) == words
    a.close()
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


def test_a_side_that_breaks_ends_the_other_one(exchange: Exchange, pair: Pair) -> None:
    a, b = pair
    a.sendall(b"xy")
    b.recv(1)
    b.sendall(b"last words")
    reset(b)
    assert read_all(a) in (b"", b"last words"), "TCP may lose them, which is why nobody breaks off like that on purpose"
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


def test_a_speaker_that_never_listens_hears_of_the_end_too(
    exchange: Exchange, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "LINGER_S", 0.2)
    a, b = pair
    fill(a)
    reset(b)
    a.settimeout(PATIENCE_S)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        speak_on(a)
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


def test_a_slow_reader_holds_its_speaker_up_and_memory_stays_bounded(exchange: Exchange, pair: Pair) -> None:
    a, b = pair
    process = psutil.Process()
    before = process.memory_info().rss
    written = fill(a)
    assert written < FLOOD_BYTES, "the speaker was held up"
    assert exchange.ask(lambda: max(len(s.a_to_b.held) for s in exchange.board._splices)) <= BUFFER_BYTES  # type: ignore
    assert process.memory_info().rss - before < 8 << 20
    # The other direction does not mind.
    b.sendall(b"hurry")
    assert a.recv(100) == b"hurry"
    assert idles(exchange.loop), "nothing to do is no reason to spin"
    a.settimeout(PATIENCE_S)
    a.shutdown(socket.SHUT_WR)
    assert len(read_all(b)) == written


def test_a_broken_speaker_behind_a_slow_reader_does_not_make_the_loop_spin(exchange: Exchange, pair: Pair) -> None:
    a, b = pair
    written = fill(a)
    a.close()
    assert idles(exchange.loop)
    assert len(read_all(b)) == written, "what was said arrives"
    b.close()
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


def idles(loop: Loop) -> bool:
    """Whether a loop sleeps."""
    turns = 0
    original = loop._handle

    def counted(*args: object) -> None:
        nonlocal turns
        turns += 1
        original(*args)  # type: ignore[arg-type]

    loop._handle = counted  # type: ignore[method-assign]
    time.sleep(0.2)
    del loop._handle
    return turns < 10


def test_a_hundred_splices_carry_at_once(exchange: Exchange) -> None:
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(20) as executor:
        pairs = [exchange.pair(KINDS[number % 4]) for number in range(100)]
        for a, b in pairs:
            stack.enter_context(a)
            stack.enter_context(b)
        assert exchange.num_splices() == 100
        words = [random.Random(number).randbytes(200_000) for number in range(100)]

        def talk(number: int) -> bool:
            a, b = pairs[number]
            threading.Thread(target=lambda: (a.sendall(words[number]), a.shutdown(socket.SHUT_WR))).start()
            return read_all(b) == words[number]

        assert all(executor.map(talk, range(100)))
        assert len(set(exchange.joined)) == 100
    wait_until(lambda: exchange.num_splices() == 0, "all are over")


@pytest.mark.timing
def test_a_busy_splice_does_not_keep_a_small_one_waiting(exchange: Exchange) -> None:
    with contextlib.ExitStack() as stack:
        busy, small = exchange.pair(), exchange.pair()
        for sock in (*busy, *small):
            stack.enter_context(sock)
        stopped = threading.Event()

        def flood() -> None:
            with contextlib.suppress(OSError):
                while not stopped.is_set():
                    busy[0].sendall(bytes(1 << 20))

        def drain() -> None:
            with contextlib.suppress(OSError):
                while busy[1].recv(1 << 20):
                    pass

        threads = [threading.Thread(target=flood), threading.Thread(target=drain)]
        for thread in threads:
            thread.start()
        try:
            waits: list[float] = []
            for _ in range(200):
                began = time.monotonic()
                small[0].sendall(b"?")
                small[1].recv(1)
                waits.append(time.monotonic() - began)
            assert sorted(waits)[100] < 0.05, "half of them are much faster than this, even here"
        finally:
            stopped.set()
            busy[0].shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


_FEED = (
    "import socket,sys\ns=socket.socket(fileno=int(sys.argv[1]))\nd=bytes(1<<20)\nfor _ in range(1024): s.sendall(d)"
)
_SINK = (
    "import socket,sys\ns=socket.socket(fileno=int(sys.argv[1]))\nb=bytearray(1<<20)\nn=0\n"
    "while (c:=s.recv_into(b)): n+=c\nassert n==1<<30, n"
)


def transfer_s(a: socket.socket, b: socket.socket) -> float:
    """Seconds that 1 GiB takes from a process at `a` to another at `b`."""
    began = time.monotonic()
    with a, b:
        command = [sys.executable, "-S", "-c"]
        feed = subprocess.Popen([*command, _FEED, str(a.fileno())], pass_fds=[a.fileno()])
        sink = subprocess.Popen([*command, _SINK, str(b.fileno())], pass_fds=[b.fileno()])
    assert feed.wait() == 0
    assert sink.wait() == 0
    return time.monotonic() - began


@pytest.mark.timing
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_gigabyte_takes_not_much_longer_than_on_a_bare_socket(exchange: Exchange, kind: str) -> None:
    """Two copies more and a third process on two cores: 2 to 3 times the time was measured."""
    if kind == "tcp":
        with socket.create_server(("127.0.0.1", 0)) as listener:
            bare = socket.create_connection(listener.getsockname()), listener.accept()[0]
    else:
        bare = socket.socketpair()
    floor_s = transfer_s(*bare)
    a, b = exchange.pair(f"{kind}-{kind}")
    for sock in (a, b):
        sock.settimeout(None)
    spliced_s = transfer_s(a, b)
    print(f"1 GiB over {kind}: {floor_s:.2f} s bare, {spliced_s:.2f} s spliced")
    assert spliced_s < 8 * floor_s
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


@pytest.mark.parametrize("kinds", EACH_KIND)
def test_tls_from_end_to_end_goes_through_unseen(exchange: Exchange, kinds: str) -> None:
    a, b = exchange.pair(kinds)
    dialler = TlsStream(a, client_context(certificate("client")), server_side=False)
    answerer = TlsStream(b, server_context(certificate("server")), server_side=True)
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(answerer.handshake, PATIENCE_S, certificate("client").fingerprint.__eq__)
        dialler.handshake(PATIENCE_S, certificate("server").fingerprint.__eq__)
        answered.result()
        words = random.Random(6).randbytes(5 << 20)
        buffer = memoryview(bytearray(1 << 20))
        heard = bytearray()

        def listen() -> None:
            while len(heard) < len(words):
                heard.extend(buffer[: answerer.receive_into(buffer, wait=True)])

        listening = executor.submit(listen)
        sent = 0
        while sent < len(words) or not dialler.flush():
            sent += dialler.send([memoryview(words)[sent:]])
        listening.result()
    assert heard == words
    dialler.close()
    assert answerer.receive_into(buffer, wait=True) == 0
    answerer.close()
    wait_until(lambda: exchange.num_splices() == 0, "the splice is over")


# --- tickets ----------------------------------------------------------------------------------------------------------


def test_nobody_is_told_joined_before_the_other_is_there(exchange: Exchange) -> None:
    ticket = exchange.expect()
    a = exchange.join(ticket)
    with pytest.raises(TimeoutError):
        a.result(0.1)
    assert exchange.joined == []
    b = exchange.join(ticket)
    for side in (a, b):
        side.result().close()
    wait_until(lambda: exchange.joined == [ticket], "whoever expected them is told")
    assert exchange.board.num_refused == 0


@pytest.mark.parametrize("ticket", ["0" * 32, "g" * 32, "\u00e4" * 16, "short", "", "0" * 64])
def test_a_ticket_that_was_never_given_out_is_refused(exchange: Exchange, ticket: str) -> None:
    exchange.expect()
    if len(ticket.encode()) < 32:
        with pytest.raises(LinkClosed, match="did not come"):
            exchange.join(ticket, timeout_s=0.2).result()
    else:
        with pytest.raises(TransportRefused, match="not valid"):
            exchange.join(ticket).result()
        assert exchange.board.num_refused == 1


def test_a_third_with_the_same_ticket_is_refused_and_disturbs_nobody(exchange: Exchange) -> None:
    a, b = exchange.pair()
    with a, b:
        wait_until(lambda: exchange.joined, "the relay tells that both came")
        with pytest.raises(TransportRefused, match="was used"):
            exchange.join(exchange.joined[0]).result()
        a.sendall(b"still here")
        assert b.recv(100) == b"still here"


def test_a_ticket_that_nobody_else_comes_with_is_given_up_in_time(exchange: Exchange) -> None:
    ticket = exchange.expect(0.2)
    with pytest.raises(TransportRefused, match=r"did not come within 0\.2 s"):
        exchange.join(ticket).result()
    wait_until(lambda: exchange.missed == [ticket], "whoever expected them is told")
    with pytest.raises(TransportRefused, match="its time is over"):
        exchange.join(ticket).result()


def test_a_ticket_that_nobody_comes_with_is_given_up_in_time(exchange: Exchange) -> None:
    ticket = exchange.expect(0.05)
    wait_until(lambda: exchange.missed == [ticket], "the time is over")
    assert exchange.board._meetings == {}


def test_a_first_side_that_went_away_takes_the_ticket_with_it(exchange: Exchange) -> None:
    ticket = exchange.expect()
    with pytest.raises(LinkClosed, match=r"did not come to the relay at 127.0.0.1:\d+ in 0.1 s"):
        exchange.join(ticket, timeout_s=0.1).result()
    wait_until(lambda: exchange.missed == [ticket], "it is noticed")
    with pytest.raises(TransportRefused, match="not valid"):
        exchange.join(ticket).result()


def test_the_same_ticket_is_not_expected_twice(exchange: Exchange) -> None:
    def expect(ticket: str) -> str:
        try:
            exchange.board.expect(ticket)
        except ValueError as error:
            return str(error)
        return ""

    ticket = exchange.expect()
    assert "expected already" in str(exchange.ask(lambda: expect(ticket)))
    assert ticket not in str(exchange.ask(lambda: expect(ticket)))
    assert "32 hexadecimal digits" in str(exchange.ask(lambda: expect("1234")))
    assert len({new_ticket() for _ in range(100)}) == 100


@pytest.mark.parametrize("early", [b"", b"words before the other came"])
def test_a_side_that_is_here_already_meets_whoever_comes(exchange: Exchange, early: bytes) -> None:
    ticket = exchange.expect()
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(PATIENCE_S)
        ours.sendall(early)
        on_loop(exchange.loop, lambda: exchange.board.bring(ticket, theirs))
        with exchange.join(ticket).result() as other:
            assert other.recv(len(early) or 1) == early if early else True
            other.sendall(b"the first byte")
            assert ours.recv(100) == b"the first byte", "nothing of ours comes before it"


def test_a_side_that_we_connected_ourselves_is_told_nothing_of_tickets(exchange: Exchange) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        service.settimeout(PATIENCE_S)
        ticket = exchange.expect()
        caller = exchange.join(ticket, "unix")
        connected = socket.create_connection(service.getsockname())
        served, _ = service.accept()
        on_loop(exchange.loop, lambda: exchange.board.bring(ticket, connected))
        with caller.result() as sock, served:
            served.settimeout(PATIENCE_S)
            sock.sendall(b"hello")
            assert served.recv(100) == b"hello"
            served.close()
            assert sock.recv(1) == b""


def test_a_side_that_is_brought_for_nobody_is_closed(exchange: Exchange) -> None:
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(PATIENCE_S)
        on_loop(exchange.loop, lambda: exchange.board.bring(new_ticket(), theirs))
        assert ours.recv(1) == b""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(PATIENCE_S)
        ticket = exchange.expect(0.1)
        on_loop(exchange.loop, lambda: exchange.board.bring(ticket, theirs))
        assert ours.recv(1) == b""
        wait_until(lambda: exchange.missed == [ticket], "whoever expected them is told")


def test_a_ticket_that_is_withdrawn_lets_nobody_meet_and_cuts_those_that_have(exchange: Exchange, pair: Pair) -> None:
    """S4: what was joined for a host that is lost now."""
    wait_until(lambda: exchange.num_splices() > 0, "the loop has joined them")
    ticket = next(iter(exchange.board._splices.values()))
    exchange.ask(lambda: exchange.board.withdraw(ticket))
    for side in pair:
        assert side.recv(1) == b""
    assert exchange.num_splices() == 0
    waited = new_ticket()
    exchange.ask(lambda: exchange.board.expect(waited, 5.0))
    with ThreadPoolExecutor(1) as executor:
        joining = executor.submit(join, exchange.unix, waited, 5.0)
        while not exchange.ask(lambda: [each for each in exchange.board._meetings.values() if each.first]):
            time.sleep(0.005)
        exchange.ask(lambda: exchange.board.withdraw(waited))
        with pytest.raises(TransportRefused, match="the other side is gone"):
            joining.result(PATIENCE_S)
    exchange.ask(lambda: exchange.board.withdraw(waited))
    with pytest.raises(TransportRefused, match="not valid"):
        join(exchange.unix, waited, 5.0)


def test_who_comes_with_a_claimed_ticket_speaks_with_this_process(exchange: Exchange) -> None:
    come: queue.Queue[socket.socket] = queue.Queue()
    ticket = new_ticket()
    on_loop(exchange.loop, lambda: exchange.board.claim(ticket, come.put))
    for kind in ("unix", "tcp"):  # as often as they like
        with exchange.join(ticket, kind).result() as theirs, come.get(timeout=PATIENCE_S) as ours:
            theirs.settimeout(PATIENCE_S)
            ours.settimeout(PATIENCE_S)
            theirs.sendall(b"the first byte")
            assert ours.recv(100) == b"the first byte"
            ours.sendall(b"is ours")
            assert theirs.recv(100) == b"is ours"
    assert exchange.num_splices() == 0
    exchange.ask(exchange.board.close)
    assert exchange.board._claims == {}


def test_a_claim_for_a_while_serves_one_or_nobody(exchange: Exchange) -> None:
    come: queue.Queue[socket.socket] = queue.Queue()
    one, late = new_ticket(), new_ticket()
    on_loop(exchange.loop, lambda: exchange.board.claim(one, come.put, PATIENCE_S))
    on_loop(exchange.loop, lambda: exchange.board.claim(late, come.put, 0.01))
    with exchange.join(one).result(), come.get(timeout=PATIENCE_S):
        pass
    wait_until(lambda: exchange.board._claims == {}, "both are worth nothing any more")
    for ticket in (one, late):
        with pytest.raises(TransportRefused, match="not valid"):
            exchange.join(ticket).result()


def test_joining_where_nobody_listens_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    for nowhere in (address, UnixAddress(str(tmp_path / "none"))):
        with pytest.raises(LinkClosed, match="no relay answers at"):
            join(nowhere, new_ticket(), 1)


def test_joining_something_else_says_so() -> None:
    for answer, words in ((b"SSH-2.0-x\r\n", "no relay gives"), (b"", "hung up")):
        with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as executor:
            joining = executor.submit(join, listener.getsockname(), new_ticket(), PATIENCE_S)
            with listener.accept()[0] as sock:
                sock.recv(100)
                sock.sendall(answer)
            with pytest.raises((TransportRefused, LinkClosed), match=words):
                joining.result()


def test_what_somebody_else_gives_as_a_reason_steers_no_terminal() -> None:
    """S19, S32: whoever took over the port of a relay says it, and people read it."""
    reason = "\x1b]0;owned\x07 no\r\n[pool-1 0@n1] done \x9b2J".encode()
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as executor:
        joining = executor.submit(lambda: join(server.getsockname(), new_ticket(), PATIENCE_S))
        with server.accept()[0] as peer:
            peer.sendall(b"\0" + bytes([len(reason)]) + reason)
            with pytest.raises(TransportRefused, match="done") as refused:
                joining.result(PATIENCE_S)
    assert str(refused.value).isprintable()


# --- strangers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_flood_of_strangers_does_not_keep_a_pair_from_meeting(exchange: Exchange, kind: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_UNDECIDED + 100):
            stack.enter_context(exchange.raw(kind))
        ticket = exchange.expect()
        a, b = exchange.join(ticket, "tcp"), exchange.join(ticket, kind)
        with a.result() as one, b.result() as other:
            one.sendall(b"through the crowd")
            assert other.recv(100) == b"through the crowd"
        assert len(exchange.board._guests) <= MAX_UNDECIDED
        assert exchange.board.num_refused >= 100
    wait_until(lambda: len(exchange.board._guests) == 0, "those who closed are forgotten")


def test_a_stranger_that_says_nothing_or_too_little_is_cut_off_in_time(
    exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "TICKET_S", 0.2)
    with exchange.raw() as silent, exchange.raw("unix") as slow:
        slow.sendall(b"ropewalk-switchboard 12")
        assert silent.recv(1) == slow.recv(1) == b""
    assert exchange.board.num_refused == 2


def test_whoever_speaks_something_else_is_told_and_cut_off(exchange: Exchange) -> None:
    for words in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00", b"ropewalk-SWITCHBOARD", bytes(100_000)):
        with exchange.raw() as sock:
            with contextlib.suppress(OSError):
                sock.sendall(words)
            assert b"wants to see a ticket" in read_all(sock)
    wait_until(lambda: not exchange.board._lingering, "all have hung up")


def test_a_greeting_may_come_byte_by_byte(exchange: Exchange) -> None:
    ticket = exchange.expect()
    other = exchange.join(ticket)
    with exchange.raw() as sock:
        for byte in b"ropewalk-switchboard " + ticket.encode():
            sock.sendall(bytes([byte]))
            time.sleep(0.001)
        assert sock.recv(1) == b"\x01"
        with other.result() as there:
            sock.sendall(b"x")
            assert there.recv(1) == b"x"


def test_a_refused_peer_that_does_not_hang_up_is_cut_off(exchange: Exchange, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_module, "LINGER_S", 0.1)
    monkeypatch.setattr(relay_module, "MAX_LINGERING", 3)
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(exchange.raw()).sendall(b"nonsense")
        wait_until(lambda: exchange.board.num_refused == 10, "all are refused")
        assert len(exchange.board._lingering) <= 3
        wait_until(lambda: not exchange.board._lingering, "they are let go")


@pytest.fixture
def open_folder() -> Iterator[None]:
    """The folder of temporary files lets everybody in; later runs would refuse such a folder."""
    folder = os.environ["TMPDIR"]
    before = stat.S_IMODE(os.stat(folder).st_mode)
    os.chmod(folder, 0o777)
    yield
    os.chmod(folder, before)


@pytest.mark.usefixtures("open_folder")
def test_another_user_is_refused_at_the_unix_socket(exchange: Exchange) -> None:  # S14
    if os.geteuid():
        pytest.skip("needs root, to become another user")
    os.chmod(exchange.unix.path, 0o777)
    os.chmod(os.path.dirname(exchange.unix.path), 0o777)
    script = (
        "import os,socket,sys\nos.setuid(65534)\ns=socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\n"
        "s.settimeout(5)\nprint(s.recv(1))"
    )
    result = subprocess.run([sys.executable, "-S", "-c", script, exchange.unix.path], capture_output=True, text=True)
    assert result.stdout.strip() == "b''", result.stderr
    assert exchange.board.num_refused == 1


def test_the_unix_socket_is_for_its_owner_and_no_wildcard_is_listened_on(exchange: Exchange) -> None:
    assert stat.S_IMODE(os.stat(exchange.unix.path).st_mode) == 0o600  # S12

    def listen(ip: str) -> str:
        try:
            return str(exchange.board.listen_tcp(ip))
        except SettingsError as error:
            return str(error)

    for ip in ("0.0.0.0", "::", "::ffff:0.0.0.0", "224.0.0.1"):  # S34
        assert "every network" in str(exchange.ask(lambda ip=ip: listen(ip)))


# --- the end ----------------------------------------------------------------------------------------------------------


def test_closing_ends_everything_at_once_and_may_be_repeated(exchange: Exchange) -> None:
    a, b = exchange.pair("unix-tcp")
    ticket = exchange.expect()
    waiting = exchange.join(ticket)
    stranger = exchange.raw()
    wait_until(lambda: len(exchange.board._guests) == 1, "the stranger is seen")
    wait_until(lambda: exchange._waits(ticket), "the side waits")
    for _ in range(2):
        exchange.ask(exchange.board.close)
    with a, b, stranger:
        assert a.recv(1) == b.recv(1) == stranger.recv(1) == b""
    with pytest.raises(LinkClosed, match="reached and lost again"):
        waiting.result()
    assert exchange.missed == []
    assert not os.path.exists(exchange.unix.path)
    with pytest.raises(LinkClosed, match="no relay answers"):
        exchange.join(ticket).result()


def test_a_forked_child_that_forgets_leaves_everything_to_its_parent(exchange: Exchange) -> None:
    a, b = exchange.pair()
    with a, b:
        child = os.fork()
        if child == 0:
            exchange.loop.forget()
            exchange.board.forget()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        a.sendall(b"untouched")
        assert b.recv(100) == b"untouched"
        other, another = exchange.pair("unix-unix")
        other.close()
        another.close()


def test_no_descriptor_is_left_of_those_who_came_and_went(exchange: Exchange) -> None:
    def come_and_go() -> None:
        for kinds in KINDS:
            a, b = exchange.pair(kinds)
            a.sendall(b"x")
            b.recv(1)
            reset(a)
            b.close()
        with contextlib.suppress(TransportRefused):
            exchange.join(new_ticket()).result()
        exchange.raw().close()
        wait_until(
            lambda: not exchange.num_splices() and not exchange.board._lingering and not exchange.board._guests,
            "all have gone",
        )

    come_and_go()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        come_and_go()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert len(exchange.loop._watched) == 2, "the two that listen"


def test_running_out_of_descriptors_is_survived(exchange: Exchange) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as stack:
        used = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + 12, hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        crowd = contextlib.ExitStack()
        with contextlib.suppress(OSError):
            for _ in range(100):
                crowd.enter_context(exchange.raw())
        crowd.close()
    a, b = exchange.pair()
    with a, b:
        a.sendall(b"here again")
        assert b.recv(100) == b"here again"
