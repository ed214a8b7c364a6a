"""A process that was struck off, and lives on, is heard by nobody: its links are closed, and no others are opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

import ropewalk as rw
from ropewalk.errors import TransportError, TransportRefused
from ropewalk.processes.host_services import ServiceUp
from ropewalk.processes.questions import ask_agent, tokens_through_agent
from ropewalk.sharing.membership import member_of
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.link import Codec
from ropewalk.transport.tokens import key_of_host, token_for
from tests.patience import PATIENCE_S, wait_until


def probe(shared: Any, lock: Any, path: str) -> None:
    """Hold a lock, and call a manager again and again, noting what comes of it."""
    lock.acquire()
    while True:
        try:
            shared["calls"] = shared["calls"] + 1
            word = "heard"
        except Exception as error:
            word = type(error).__name__
        with open(path, "a", encoding="ascii") as file:
            file.write(f"{word}\n")


def words(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def test_what_was_struck_off_holds_no_lock_and_calls_no_manager(
    session: rw.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Managers were never told, and let it go on."""
    path = tmp_path / "words"
    lock = rw.Lock(session=session)
    with rw.Manager(session=session) as manager:
        shared = cast("Any", manager).dict(calls=0)
        process = rw.Process(target=probe, args=(shared, lock, str(path)))
        process.start()
        wait_until(lambda: "heard" in words(path))
        with monkeypatch.context() as patch:
            # It lives on, as on a host that is out of reach.
            patch.setattr(session.processes, "signal", lambda *_: None)
            session.processes.retire(cast("Any", process)._popen._id)
        wait_until(lambda: words(path)[-3:] == ["PeerLost"] * 3)
        assert lock.acquire(timeout=PATIENCE_S)
        calls = shared["calls"]
        wait_until(lambda: len(words(path)) > 10 + words(path).index("PeerLost"))
        assert shared["calls"] == calls
        assert set(words(path)[words(path).index("PeerLost") :]) == {"PeerLost"}
        assert process.is_alive()
        process.kill()
        process.join()
    lock.release()


def start_guest(into: Any) -> None:
    child = rw.Process(target=say_who_i_am, args=(into,))
    child.start()
    child.join()


def say_who_i_am(into: Any) -> None:
    from ropewalk.processes import bootstrap

    assert bootstrap.current
    into.put(bootstrap.current.credentials.process_id)
    into.get()


def test_services_let_a_process_in_that_a_process_has_started_until_it_ends(session: rw.Session) -> None:
    """They heard only of the ends of processes that the launcher itself had started."""
    depot = member_of(session).depot()
    key = key_of_host(session._run_key, "")
    into = rw.Queue(session=session)
    process = rw.Process(target=start_guest, args=(into,))
    process.start()
    guest = into.get(timeout=PATIENCE_S)
    credentials = Credentials(session.run_id, guest, token_for(key, depot, guest))
    dial(parse_address(depot), credentials, Codec(ServiceUp)).close()
    into.put("end")
    process.join()

    def is_refused() -> bool:
        try:
            dial(parse_address(depot), credentials, Codec(ServiceUp)).close()
        except TransportRefused as error:
            return "was retired" in str(error)
        return False

    wait_until(is_refused)


def ask_for_tokens(addresses: list[str], results: Any) -> None:
    """Ask the agent for tokens, as a process may, and for what it may not have."""
    from ropewalk.processes import bootstrap

    context = bootstrap.current
    assert context
    find = tokens_through_agent(context)
    for address in addresses:
        try:
            results.put(find(address))
        except TransportError as error:
            results.put(f"refused: {error}")
    assert context.service_key not in repr(context)


def test_each_process_has_tokens_of_its_own_for_each_service(session: rw.Session) -> None:
    results = rw.Queue(session=session)
    member = member_of(session)
    depot = member.depot()
    with rw.Manager(session=session) as manager:
        addresses = [depot, depot, manager.address, "tls:10.0.0.1:1/" + "a" * 64, "nowhere"]
        processes = [rw.Process(target=ask_for_tokens, args=(addresses, results)) for _ in range(2)]
        found: list[list[str]] = []
        for process in processes:
            process.start()
            process.join()
            assert process.exitcode == 0
            found.append([results.get(timeout=PATIENCE_S) for _ in addresses])
    for first, again, other, *refused in found:
        assert first == again != other and len(first) == 64
        assert all(word.startswith("refused: ") for word in refused)
    tokens = {*found[0][:3], *found[1][:3], member._tokens[depot]}
    assert len(tokens) == 5, "no two processes have the same, and no two services"


def ask_in_the_name_of(other: str, address: str, results: Any) -> None:
    from ropewalk.processes import bootstrap
    from ropewalk.processes.messages import NeedToken, TokenIs

    context = bootstrap.current
    assert context
    own = tokens_through_agent(context)(address)
    answer = ask_agent(context.agent_address, context.credentials, NeedToken("ticket", address, other), TokenIs)
    results.put((own, answer.token))


def test_nobody_gets_a_token_in_the_name_of_another(session: rw.Session) -> None:
    results = rw.Queue(session=session)
    process = rw.Process(target=ask_in_the_name_of, args=("launcher", member_of(session).depot(), results))
    process.start()
    own, asked = results.get(timeout=PATIENCE_S)
    process.join()
    assert own == asked
