"""Another user of the machine at the doors of a run: nothing that he sends is heard, also with secrets that leaked."""

from __future__ import annotations

import contextlib
import socket
import struct
from pathlib import Path
from typing import Any

import psutil
import pytest

import ropewalk as rw
from ropewalk.errors import TransportError
from ropewalk.pool.pool import Pool
from ropewalk.processes.host_services import ServiceUp
from ropewalk.sharing.membership import member_of
from ropewalk.transport import unix_sockets
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Codec
from ropewalk.transport.tokens import key_of_host, token_for
from tests.other_users import MALLORY, as_user, needs_root
from tests.patience import PATIENCE_S
from tests.population.neighbours import session_of_neighbours

pytestmark = needs_root

#: A frame that announces a header of a tebibyte, and one that announces a million parts; then a flood.
HOSTILE = (struct.pack("<QQQ", 1 << 40, 0, 0), struct.pack("<IIQ", 16, 10**6, 1 << 40), bytes(10**6))


def own_id(_: Any) -> str:
    from ropewalk.processes import bootstrap

    assert bootstrap.current
    return bootstrap.current.credentials.process_id


def members() -> list[psutil.Process]:
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


def unix_doors(folder: Path) -> list[str]:
    """The sockets of a run on this host."""
    return sorted(str(path) for path in folder.iterdir() if path.is_socket())


def tcp_doors() -> list[tuple[str, int]]:
    found: set[tuple[str, int]] = set()
    for process in members():
        with contextlib.suppress(psutil.Error):
            found |= {
                (one.laddr.ip, one.laddr.port) for one in process.net_connections("tcp") if one.status == "LISTEN"
            }
    return sorted(found)


def answers_to(family: int, door: Any) -> list[bytes]:
    """What comes back from a door for each of the hostile beginnings."""
    answers: list[bytes] = []
    for words in HOSTILE:
        with socket.socket(family) as sock:
            sock.settimeout(PATIENCE_S)
            sock.connect(door)
            answer = b""
            with contextlib.suppress(ConnectionError):
                sock.sendall(words)
                sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(4096):
                    answer += piece
            answers.append(answer)
    return answers


def test_the_sockets_of_a_run_are_closed_to_others_and_leaked_secrets_open_none() -> None:  # S4, S9
    with rw.Session() as session, Pool(1, session=session) as pool:
        depot = member_of(session).depot()
        worker = pool.apply(own_id, (0,))
        address = parse_address(depot)
        folder = Path(str(address.path)).parent  # type: ignore[union-attr]
        credentials = Credentials(session.run_id, worker, token_for(key_of_host(session._run_key, ""), depot, worker))

        def knock() -> str:
            unix_sockets._check_listener = lambda _: None  # pyright: ignore  # he does not care who listens
            try:
                dial(address, credentials, Codec(ServiceUp)).close()
            except TransportError as error:
                return f"{error}: {error.__cause__}"
            return "let in"

        assert "Permission denied" in as_user(MALLORY, knock)
        for door in unix_doors(folder):
            with pytest.raises(PermissionError):
                as_user(MALLORY, lambda door=door: answers_to(socket.AF_UNIX, door))
        doors = [folder.parent, folder, *map(Path, unix_doors(folder))]
        modes = [path.stat().st_mode for path in doors]
        try:
            for path in doors:
                path.chmod(0o777)
            assert "let in" not in as_user(MALLORY, knock)
            for door in unix_doors(folder):
                answers = as_user(MALLORY, lambda door=door: answers_to(socket.AF_UNIX, door))
                assert set(answers) == {b""}, "something was said to him"
        finally:
            for path, mode in zip(doors, modes, strict=True):
                path.chmod(mode)
        assert pool.apply(own_id, (0,)) == worker
        dial(address, credentials, Codec(ServiceUp)).close()


def test_what_another_user_sends_to_open_ports_is_not_heard_and_costs_no_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # S8
    with session_of_neighbours(monkeypatch) as session, Pool(2, session=session) as pool:
        pool.map(own_id, range(2))
        doors = tcp_doors()
        assert doors, "nothing listens"
        before = {process.pid: process.memory_info().rss for process in members()}
        for door in doors * 3:
            for answer in as_user(MALLORY, lambda door=door: answers_to(socket.AF_INET, door)):
                assert len(answer) < 100 and b"ropewalk" not in answer.lower(), "more than an alert of TLS"
        for process in members():
            if process.pid in before:
                assert process.memory_info().rss - before[process.pid] < 50 << 20
        assert pool.map(len, ["a", "bc"]) == [1, 2]
