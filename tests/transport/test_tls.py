"""Who gets through a TLS handshake, what the others are told, and how long they can keep us."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import pickle
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec.structs import replace

from ropewalk.errors import LinkClosed, TransportRefused
from ropewalk.transport.authority import RunAuthority
from ropewalk.transport.credentials import AllowList, ProcessCertificate
from ropewalk.transport.streams.tls import TlsStream, client_context, server_context
from tests.patience import PATIENCE_S

AUTHORITY = RunAuthority.create("run")
LAUNCHER = AUTHORITY.issue("launcher")
WORKER = AUTHORITY.issue("worker")

Sockets = Callable[[], tuple[socket.socket, socket.socket]]


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    """Makes connected TCP sockets (dialled, accepted), all closed afterwards."""
    made: list[socket.socket] = []

    def connect() -> tuple[socket.socket, socket.socket]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            made.append(socket.create_connection(listener.getsockname(), timeout=PATIENCE_S))
            made.append(listener.accept()[0])
        return made[-2], made[-1]

    yield connect
    for sock in made:
        sock.close()


def anyone(fingerprint: str) -> bool:
    return True


def refusal(handshake: Callable[[], None]) -> str:
    """What a handshake was refused with; empty if it was not."""
    try:
        handshake()
    except TransportRefused as error:
        return str(error)
    return ""


def both_refusals(
    sockets: Sockets,
    client: ssl.SSLContext,
    server: ssl.SSLContext,
    *,
    client_accepts: Callable[[str], bool] = anyone,
    server_accepts: Callable[[str], bool] = anyone,
) -> tuple[str, str]:
    """Shake hands and return what the client and what the server was refused with."""
    dialled, accepted = sockets()
    dialler = TlsStream(dialled, client, server_side=False)
    answerer = TlsStream(accepted, server, server_side=True)
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(refusal, lambda: answerer.handshake(PATIENCE_S, server_accepts))
        theirs = refusal(lambda: dialler.handshake(PATIENCE_S, client_accepts))
        ours = answered.result()
    for stream, words in [(dialler, theirs), (answerer, ours)]:
        assert (stream.fileno() == -1) == bool(words), "a refused stream is closed, an accepted one is open"
        assert bool(stream.peer_fingerprint) == (not words)
        stream.close()
    return theirs, ours


def self_signed(process_id: str) -> ProcessCertificate:
    """A certificate that somebody made for themselves, who knows the run's authority (it is no secret)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, process_id)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return ProcessCertificate(
        cert_pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
        ca_pem=AUTHORITY.ca_pem,
        fingerprint=certificate.fingerprint(hashes.SHA256()).hex(),
    )


def test_two_processes_of_a_run_accept_each_other_and_learn_who_the_other_is(sockets: Sockets) -> None:
    dialled, accepted = sockets()
    dialler = TlsStream(dialled, client_context(WORKER), server_side=False)
    answerer = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(answerer.handshake, PATIENCE_S, anyone)
        dialler.handshake(PATIENCE_S, anyone)
        answered.result()
    assert answerer.peer_fingerprint == WORKER.fingerprint
    assert dialler.peer_fingerprint == LAUNCHER.fingerprint
    der = ssl.PEM_cert_to_DER_cert(WORKER.cert_pem)
    assert hashlib.sha256(der).hexdigest() == WORKER.fingerprint
    assert dialled.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert dialled.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def test_a_certificate_of_another_run_is_refused_on_both_sides(sockets: Sockets) -> None:
    other = RunAuthority.create("run")  # the same name, another key
    for stranger in (other.issue("worker"), replace(other.issue("worker"), ca_pem=AUTHORITY.ca_pem)):
        theirs, ours = both_refusals(sockets, client_context(stranger), server_context(LAUNCHER))
        assert theirs
        assert "not of this run" in ours or "refuses our certificate" in ours
        theirs, ours = both_refusals(sockets, client_context(WORKER), server_context(stranger))
        assert "not of this run" in theirs
        assert "refuses our certificate" in ours


def test_a_client_learns_in_the_handshake_that_the_server_refuses_its_certificate(sockets: Sockets) -> None:
    stranger = replace(RunAuthority.create("other").issue("worker"), ca_pem=AUTHORITY.ca_pem)
    theirs, ours = both_refusals(sockets, client_context(stranger), server_context(LAUNCHER))
    assert "refuses our certificate" in theirs
    assert "not of this run" in ours and "credentials of this run" in ours


def test_a_self_signed_certificate_is_refused(sockets: Sockets) -> None:
    theirs, ours = both_refusals(sockets, client_context(self_signed("worker")), server_context(LAUNCHER))
    assert "refuses our certificate" in theirs
    assert "not of this run" in ours
    theirs, ours = both_refusals(sockets, client_context(WORKER), server_context(self_signed("launcher")))
    assert "not of this run" in theirs
    assert "refuses our certificate" in ours


def test_a_member_cannot_issue_certificates_itself(sockets: Sockets) -> None:
    key = serialization.load_pem_private_key(WORKER.key_pem.encode(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    forged = RunAuthority("run", key, x509.load_pem_x509_certificate(WORKER.cert_pem.encode())).issue("launcher")
    forged = replace(forged, cert_pem=forged.cert_pem + WORKER.cert_pem, ca_pem=AUTHORITY.ca_pem)
    theirs, ours = both_refusals(sockets, client_context(forged), server_context(LAUNCHER))
    assert theirs
    assert "not of this run" in ours


def test_a_certificate_that_does_not_keep_to_rfc_5280_is_refused(sockets: Sockets) -> None:
    """It is of the run, but does not say by which key it was signed."""
    authority: Any = AUTHORITY
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "worker")]))
        .issuer_name(x509.load_pem_x509_certificate(AUTHORITY.ca_pem.encode()).subject)
        .public_key(key.public_key())
        .serial_number(2)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(authority._key, hashes.SHA256())
    )
    careless = replace(
        self_signed("worker"),
        cert_pem=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key_pem=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )
    theirs, ours = both_refusals(sockets, client_context(careless), server_context(LAUNCHER))
    assert theirs
    assert "not of this run" in ours and "key identifier" in ours.lower()


def test_an_expired_certificate_is_refused_with_a_word_on_clocks(sockets: Sockets) -> None:
    expired = AUTHORITY.issue("worker", lifetime_s=-60)
    theirs, ours = both_refusals(sockets, client_context(expired), server_context(LAUNCHER))
    assert "our certificate has expired; compare the clocks" in theirs
    assert "certificate has expired" in ours and "compare the clocks: that of this host says 20" in ours


def test_a_client_without_a_certificate_is_refused(sockets: Sockets) -> None:
    naked = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    naked.check_hostname = False
    naked.load_verify_locations(cadata=AUTHORITY.ca_pem)
    theirs, ours = both_refusals(sockets, naked, server_context(LAUNCHER))
    assert "asks for a certificate" in theirs
    assert "showed no certificate" in ours


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_tls_1_2_is_refused(sockets: Sockets) -> None:
    old_client, old_server = client_context(WORKER), server_context(LAUNCHER)
    for old in (old_client, old_server):
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
    theirs, ours = both_refusals(sockets, old_client, server_context(LAUNCHER))
    assert "TLS 1.3" in theirs and "TLS 1.3" in ours
    theirs, ours = both_refusals(sockets, client_context(WORKER), old_server)
    assert "TLS 1.3" in theirs and "TLS 1.3" in ours


def test_a_retired_process_is_refused_and_told_so(sockets: Sockets) -> None:
    members = AllowList()
    members.admit("worker", "secret", WORKER.fingerprint)

    def shake() -> tuple[str, str]:
        return both_refusals(
            sockets,
            client_context(WORKER),
            server_context(LAUNCHER),
            server_accepts=lambda fingerprint: members.check_fingerprint(fingerprint) == "worker",
        )

    assert shake() == ("", "")
    members.retire("worker")
    theirs, ours = shake()
    assert "does not admit this process" in theirs and "retired" in theirs
    assert WORKER.fingerprint[:16] in ours and "not admitted here" in ours


def test_a_member_that_took_the_port_of_another_is_found_out(sockets: Sockets) -> None:
    squatter = AUTHORITY.issue("another worker")
    theirs, ours = both_refusals(
        sockets,
        client_context(WORKER),
        server_context(squatter),
        client_accepts=lambda fingerprint: fingerprint == LAUNCHER.fingerprint,
    )
    assert squatter.fingerprint[:16] in theirs
    assert "does not admit this process" in ours


def test_a_failing_accept_closes_the_stream(sockets: Sockets) -> None:
    dialled, accepted = sockets()
    dialler = TlsStream(dialled, client_context(WORKER), server_side=False)
    answerer = TlsStream(accepted, server_context(LAUNCHER), server_side=True)

    def broken(fingerprint: str) -> bool:
        raise KeyError(fingerprint)

    with ThreadPoolExecutor(1) as executor:
        answered = executor.submit(answerer.handshake, PATIENCE_S, broken)
        assert "hung up" in refusal(lambda: dialler.handshake(PATIENCE_S, anyone))
        with pytest.raises(KeyError):
            answered.result()
    assert answerer.fileno() == -1


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "plain HTTP"),
        (b"rw\x01\x00\x00\x00 a plain frame of ours, but no TLS around it", "does not speak TLS"),
        (bytes(200), "Ropewalk process"),
        (b"\x16\x03\x01\x02\x00" + b"\xff" * 512, "Ropewalk process"),
        (b"\xff" * 1_000_000, "does not speak TLS"),
    ],
)
def test_garbage_is_refused_and_nothing_of_it_reaches_us(sockets: Sockets, words: bytes, answer: str) -> None:
    dialled, accepted = sockets()
    stream = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    with ThreadPoolExecutor(1) as executor:

        def talk() -> bytes:
            with contextlib.suppress(ConnectionError):
                dialled.sendall(words)
            heard = b""
            with contextlib.suppress(ConnectionError):
                while data := dialled.recv(1000):
                    heard += data
            dialled.close()
            return heard

        talked = executor.submit(talk)
        assert answer in refusal(lambda: stream.handshake(PATIENCE_S, anyone))
        heard = talked.result()
    assert len(heard) <= 7, "a stranger hears an alert at most"
    assert stream.fileno() == -1


def test_a_plain_server_is_refused(sockets: Sockets) -> None:
    dialled, accepted = sockets()
    accepted.sendall(b"220 mail.example ESMTP\r\n")
    stream = TlsStream(dialled, client_context(WORKER), server_side=False)

    def listen_to_the_end() -> None:
        while accepted.recv(1000):
            pass
        accepted.close()

    with ThreadPoolExecutor(1) as executor:
        listened = executor.submit(listen_to_the_end)
        assert "does not speak TLS" in refusal(lambda: stream.handshake(PATIENCE_S, anyone))
        listened.result()


def test_a_peer_that_hangs_up_is_refused(sockets: Sockets) -> None:
    for server_side in (True, False):
        dialled, accepted = sockets()
        dialled.close()
        context = server_context(LAUNCHER) if server_side else client_context(WORKER)
        stream = TlsStream(accepted, context, server_side=server_side)
        assert "hung up" in refusal(lambda stream=stream: stream.handshake(PATIENCE_S, anyone))


def test_a_peer_that_says_nothing_is_refused_in_time(sockets: Sockets) -> None:
    _, accepted = sockets()
    stream = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    assert "within 0.1 s" in refusal(lambda: stream.handshake(0.1, anyone))
    assert stream.fileno() == -1


def test_a_peer_that_sends_byte_by_byte_gets_no_more_time(sockets: Sockets) -> None:
    """Slow-loris: each byte comes well before any time-out of a single read, the handshake never ends."""
    dialled, accepted = sockets()
    stream = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    client_hello = b"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03" + bytes(100_000)
    stopped = threading.Event()

    def drip() -> int:
        for count, byte in enumerate(client_hello):
            if stopped.wait(0.01):
                return count
            try:
                dialled.send(bytes([byte]))
            except ConnectionError:
                return count
        return len(client_hello)

    with ThreadPoolExecutor(1) as executor:
        dripped = executor.submit(drip)
        try:
            assert "within 0.3 s" in refusal(lambda: stream.handshake(0.3, anyone))
        finally:
            stopped.set()
        assert dripped.result() > 2


def test_closing_from_another_thread_ends_a_handshake(sockets: Sockets) -> None:
    _, accepted = sockets()
    stream = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    with ThreadPoolExecutor(1) as executor:
        shaken = executor.submit(stream.handshake, PATIENCE_S, anyone)
        with pytest.raises(TimeoutError):
            shaken.result(0.05)
        stream.close()
        with pytest.raises(LinkClosed):
            shaken.result(PATIENCE_S)


def test_a_man_in_the_middle_with_another_authority_is_refused_by_both_ends(sockets: Sockets) -> None:
    mallory = RunAuthority.create("run").issue("launcher")
    dialled, intercepted = sockets()
    forwarded, accepted = sockets()
    ends = {
        "client": TlsStream(dialled, client_context(WORKER), server_side=False),
        "mallory as server": TlsStream(intercepted, server_context(mallory), server_side=True),
        "mallory as client": TlsStream(
            forwarded, client_context(replace(mallory, ca_pem=AUTHORITY.ca_pem)), server_side=False
        ),
        "server": TlsStream(accepted, server_context(LAUNCHER), server_side=True),
    }
    with ThreadPoolExecutor(4) as executor:
        shaken = {
            name: executor.submit(refusal, lambda stream=stream: stream.handshake(PATIENCE_S, anyone))
            for name, stream in ends.items()
        }
        words = {name: future.result() for name, future in shaken.items()}
    assert all(words.values()), words
    assert "not of this run" in words["client"]
    assert "not of this run" in words["server"]


def test_a_flipped_bit_on_the_way_ends_the_stream(sockets: Sockets) -> None:
    dialled, intercepted = sockets()
    forwarded, accepted = sockets()
    tamper = threading.Event()

    def relay(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(100_000):
                if tamper.is_set():
                    data = data[:-1] + bytes([data[-1] ^ 1])
                sink.sendall(data)
        for sock in (source, sink):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    dialler = TlsStream(dialled, client_context(WORKER), server_side=False)
    answerer = TlsStream(accepted, server_context(LAUNCHER), server_side=True)
    buffer = memoryview(bytearray(100))
    with ThreadPoolExecutor(3) as executor:
        executor.submit(relay, intercepted, forwarded)
        executor.submit(relay, forwarded, intercepted)
        answered = executor.submit(answerer.handshake, PATIENCE_S, anyone)
        dialler.handshake(PATIENCE_S, anyone)
        answered.result()
        try:
            dialler.send([memoryview(b"whole")])
            assert answerer.receive_into(buffer, wait=True) == 5
            tamper.set()
            dialler.send([memoryview(b"changed")])
            for _ in range(2):
                with pytest.raises(LinkClosed, match=r"TLS with .* failed"):
                    answerer.receive_into(buffer, wait=True)
        finally:
            dialler.close()
            answerer.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program, which can ask for new keys")
def test_new_keys_in_the_middle_of_a_stream_go_unnoticed(sockets: Sockets, tmp_path: Path) -> None:
    """Python cannot ask for new keys but other TLS libraries do; the answer has to leave in order with our own data."""
    pem, authority = tmp_path / "worker.pem", tmp_path / "authority.pem"
    pem.write_text(WORKER.cert_pem + WORKER.key_pem)
    authority.write_text(AUTHORITY.ca_pem)
    command: list[str | Path] = ["openssl", "s_client", "-quiet", "-no_ign_eof", "-tls1_3", "-cert", pem]
    with socket.create_server(("127.0.0.1", 0)) as listener, open(tmp_path / "said", "wb") as said:
        command += ["-CAfile", authority, "-connect", f"127.0.0.1:{listener.getsockname()[1]}"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, bufsize=0) as client:
            assert client.stdin and client.stdout
            listener.settimeout(PATIENCE_S)
            stream = TlsStream(listener.accept()[0], server_context(LAUNCHER), server_side=True)
            try:
                client.stdin.write(b"\x01")  # the yes that ends our handshake
                stream.handshake(PATIENCE_S, anyone)
                assert client.stdout.read(1) == b"\x01"
                buffer = memoryview(bytearray(100))
                with ThreadPoolExecutor(1) as executor:
                    for turn in range(3):
                        client.stdin.write(b"before")
                        assert stream.receive_into(buffer, wait=True) == 6
                        client.stdin.write(
                            b"K\n"
                        )  # s_client: change my sending key, and ask the peer to change its own
                        received = executor.submit(stream.receive_into, buffer, wait=True)
                        for number in range(50):  # enough turns that the program has read its command
                            words = b"answer %d.%02d" % (turn, number)
                            assert stream.send([memoryview(words)]) == len(words)
                            assert client.stdout.read(len(words)) == words
                        client.stdin.write(b"after")
                        assert received.result(PATIENCE_S) == 5
                        assert bytes(buffer[:5]) == b"after"
            finally:
                stream.close()
                client.kill()
    assert (tmp_path / "said").read_text().count("KEYUPDATE") == 3


def test_contexts_trust_the_run_and_nothing_else() -> None:
    for context in (client_context(WORKER), server_context(LAUNCHER)):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_3
        assert context.verify_mode == ssl.CERT_REQUIRED
        assert len(context.get_ca_certs()) == 1
    assert server_context(LAUNCHER).num_tickets == 0


def test_making_a_context_leaves_no_file_with_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    client_context(WORKER)
    assert list(tmp_path.iterdir()) == []


def test_keys_do_not_show_when_printed_and_the_authority_does_not_travel() -> None:
    for text in (repr(WORKER), str(WORKER), f"{WORKER}"):
        assert "PRIVATE KEY" not in text
        assert WORKER.fingerprint in text
    assert repr(AUTHORITY) == "RunAuthority(run_id='run')"
    with pytest.raises(TypeError, match="stays in the launcher"):
        pickle.dumps(AUTHORITY)
    assert pickle.loads(pickle.dumps(WORKER)) == WORKER


def test_ssl_and_cryptography_are_only_imported_by_those_who_need_them() -> None:
    script = (
        "import sys, ropewalk, ropewalk.transport.credentials, ropewalk.transport.streams.plain\n"
        "print([name for name in ('ssl', 'cryptography') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
