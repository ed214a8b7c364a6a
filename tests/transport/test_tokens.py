"""A token is good for one process, at one service, with one certificate, until the process is retired (S4, S9)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.errors import TransportRefused
from ropewalk.transport.credentials import MAX_SOCKET_NAME_BYTES, Credentials
from ropewalk.transport.handshake import Dialling, Ends, Refused, ServerHandshake
from ropewalk.transport.tokens import (
    TokenList,
    host_of,
    key_of_host,
    key_of_socket,
    new_key,
    socket_of,
    token_for,
    token_of,
)
from tests.transport.test_credentials import knows

RUN = "run-1"
SERVER = "5" * 64
names = st.text(max_size=20)


@given(names, names, names, names)
def test_a_token_is_good_for_its_name_certificate_and_key_alone(key: str, name: str, other: str, shown: str) -> None:
    tokens = TokenList(key)
    token = token_of(key, name, shown)
    assert knows(tokens, name, token, shown)
    assert other == name or not knows(tokens, other, token, shown)
    assert other == shown or not knows(tokens, name, token, other)
    # A key is padded with zeros (RFC 2104), so that these two are one; ours are 64 hexadecimal digits.
    same = key.rstrip("\0") == other.rstrip("\0")
    assert same or len(key.encode()) > 64 or not knows(TokenList(other), name, token, shown)


@given(names, names, names, names)
def test_no_two_names_and_certificates_have_one_token(name: str, shown: str, other: str, others: str) -> None:
    assert (name, shown) == (other, others) or token_of("key", name, shown) != token_of("key", other, others)


@pytest.mark.parametrize("wrong", ["", "x", "é" * 64, "\udc80", token_of("key", "actor.3#1").upper()])
def test_what_is_no_token_is_refused_without_an_error(wrong: str) -> None:
    tokens = TokenList("key")
    assert not knows(tokens, "actor.3#1", wrong)
    assert not knows(tokens, "\udc80", wrong)


def test_a_process_that_was_retired_is_refused_with_a_good_token_and_others_are_not() -> None:
    tokens = TokenList("key")
    for _ in range(2):
        tokens.retire("actor.3#1")
    assert not knows(tokens, "actor.3#1", token_of("key", "actor.3#1"))
    assert knows(tokens, "actor.3#2", token_of("key", "actor.3#2"))


def test_a_retired_process_is_refused_under_every_name_with_its_certificate() -> None:
    """Any certificate of the run used to do, under any name of which the token was known."""
    tokens = TokenList("key")
    tokens.retire("worker-1", "a" * 64)
    for name in ("worker-1", "worker-2"):
        assert not knows(tokens, name, token_of("key", name, "a" * 64), "a" * 64)
    assert tokens.check_fingerprint("a" * 64) is None, "TLS ends there"
    assert tokens.check_fingerprint("b" * 64) is not None
    assert knows(tokens, "worker-2", token_of("key", "worker-2", "b" * 64), "b" * 64)


def refusal(tokens: TokenList, who: Credentials, shown: str) -> str:
    """Why a process is refused on a TLS connection on which it shows a certificate."""
    ends = Ends(shown, SERVER)
    admission = ServerHandshake(RUN, tokens, ends)
    answer = admission.judge(Dialling(who, "service", ends).answer(admission.challenge))
    return answer.reason if isinstance(answer, Refused) else ""


def test_between_hosts_the_certificate_must_be_that_of_the_token() -> None:
    key, mine, theirs = new_key(), "a" * 64, "b" * 64
    token = token_of(key, "worker-1", mine)
    assert refusal(TokenList(key), Credentials(RUN, "worker-1", token, mine), mine) == ""
    stolen = Credentials(RUN, "worker-1", token, mine)
    assert "certificate of another process" in refusal(TokenList(key), stolen, theirs)
    for claimed in ("", theirs):
        forged = Credentials(RUN, "worker-1", token, claimed)
        assert "not a member" in refusal(TokenList(key), forged, theirs)
    without = Credentials(RUN, "worker-1", token_of(key, "worker-1"), "")
    assert "not a member" in refusal(TokenList(key), without, mine)
    assert "not a member" in refusal(TokenList(new_key()), Credentials(RUN, "worker-1", token, mine), mine)


def test_a_server_that_does_not_have_the_key_cannot_answer() -> None:
    dialling = Dialling(Credentials(RUN, "worker-1", token_of(new_key(), "worker-1")), "service")
    impostor = ServerHandshake(RUN, TokenList(new_key()))
    with pytest.raises(TransportRefused):
        dialling.check(impostor.judge(dialling.answer(impostor.challenge)))


# --- keys -------------------------------------------------------------------------------------------------------------

HERE = "unix:/run/ropewalk-x/ab.sock"
THERE = f"at:agent-2|{HERE}|tls:10.0.0.3:4711/{'c' * 64}"


def test_the_token_for_an_address_is_that_of_the_socket_on_that_host() -> None:
    run_key = new_key()
    for address, host in ((HERE, ""), (THERE, "agent-2")):
        assert host_of(address) == host
        host_key = key_of_host(run_key, host)
        served = TokenList(key_of_socket(host_key, "ab.sock"))
        assert knows(served, "worker-1", token_for(host_key, address, "worker-1", "a" * 64), "a" * 64)
    here, there = (token_for(key_of_host(run_key, host), THERE, "worker-1") for host in ("agent-1", "agent-2"))
    assert here != there, "who has the key of one host makes no tokens for another"


def test_every_key_and_token_differs_from_every_other() -> None:
    run_key = new_key()
    keys = [key_of_host(run_key, host) for host in ("", "agent-1", "agent-2")]
    made = [run_key, *keys, *(key_of_socket(key, name) for key in keys for name in ("a.sock", "b.sock"))]
    made += [token_of(key, name) for key in made for name in ("a.sock", "agent-1", "")]
    assert len(set(made)) == len(made) and all(len(each) == 64 for each in made)


@pytest.mark.parametrize("address", ["", "tls:10.0.0.1:1/" + "a" * 64, "nowhere", "at:|unix:/x"])
def test_what_is_no_address_of_a_service_is_refused(address: str) -> None:
    for call in (lambda: host_of(address), lambda: token_for("key", address, "worker-1")):
        with pytest.raises(ValueError):
            call()


@given(st.text(max_size=300))
def test_the_name_of_any_process_becomes_a_socket_name_that_fits(process_id: str) -> None:
    name = socket_of(process_id)
    assert len(name) <= MAX_SOCKET_NAME_BYTES and name.replace(".", "").isalnum()
