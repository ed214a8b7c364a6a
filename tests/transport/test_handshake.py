"""Both sides prove themselves, nothing that was overheard helps anybody, and the words say which side to change."""

from __future__ import annotations

import platform
import sys
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace as replace_field

from ropewalk.errors import TransportRefused
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.frames import PROTOCOL, STRANGER
from ropewalk.transport.handshake import CODEC, Challenge, Dialling, Ends, Hello, Refused, ServerHandshake, Welcome
from ropewalk.version import VERSION

RUN = "run-1"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
TLS = Ends("f" * 64, "5" * 64)


@pytest.fixture
def credentials() -> Credentials:
    return Credentials.create(RUN, "worker-1")


@pytest.fixture
def members(credentials: Credentials) -> AllowList:
    members = AllowList()
    members.admit("worker-1", credentials.secret, "f" * 64)
    return members


def change(greeting: Hello, **fields: object) -> Hello:
    return msgspec.structs.replace(greeting, **fields)


def refusal(credentials: Credentials, members: AllowList, ends: Ends = TLS, **fields: Any) -> str | None:
    """Why a greeting is refused in which some fields are other ones; None if it is welcome."""
    admission = ServerHandshake(RUN, members, ends)
    answer = admission.judge(change(Dialling(credentials, "server", ends).answer(admission.challenge), **fields))
    return answer.reason if isinstance(answer, Refused) else None


@pytest.mark.parametrize("ends", [Ends(), TLS], ids=["unix", "tls"])
def test_a_member_is_welcome_and_sees_that_the_server_is_one(
    credentials: Credentials, members: AllowList, ends: Ends
) -> None:
    admission, dialling = ServerHandshake(RUN, members, ends), Dialling(credentials, "server", ends)
    dialling.check(admission.judge(dialling.answer(admission.challenge)))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"protocol": PROTOCOL - 1}, ["worker-1", f"protocol {PROTOCOL - 1}", "upgrade ropewalk on that side"]),
        ({"protocol": PROTOCOL + 1}, [f"protocol {PROTOCOL + 1}", "upgrade ropewalk on the launcher's side"]),
        ({"protocol": -5}, ["protocol -5", "on that side"]),
        ({"python": (2, 7)}, ["Python 2.7", f"start that side with Python {HERE}"]),
        ({"python": (sys.version_info[0], sys.version_info[1] + 1)}, [f"start that side with Python {HERE}"]),
        ({"package": "0.0.1"}, ["'0.0.1'", f"install ropewalk=={VERSION} on that side"]),
        ({"run_id": "run-0"}, ["another run", "stale credentials"]),
        ({"proof": bytes(32)}, ["not a member", "retired"]),
        ({"proof": b""}, ["not a member"]),
        ({"nonce": bytes(32)}, ["not a member"]),
        ({"process_id": "worker-2"}, ["worker-2", "not a member"]),
        ({"host": "n\r\n17 forged log line"}, ["not a member"]),  # it is not what was proved
        ({"fingerprint": "e" * 64}, ["not a member"]),
        ({}, []),
    ],
)
def test_what_does_not_fit_is_named_with_the_side_to_change(
    credentials: Credentials, members: AllowList, fields: dict[str, Any], words: list[str]
) -> None:
    reason = refusal(credentials, members, **fields)
    assert (reason is None) == (not fields)
    for word in words:
        assert word in (reason or "")


def test_an_agent_that_the_launcher_dials_names_itself_as_the_side_to_change() -> None:
    launcher, members = Credentials.create(RUN, "launcher"), AllowList()
    members.admit("launcher", launcher.secret, None)

    def words(**fields: Any) -> str:
        return refusal(launcher, members, Ends(), **fields) or ""

    agent = f"the agent on {platform.node()!r}"
    assert f"{agent} has ropewalk {VERSION!r} and the launcher 0.0.1; install ropewalk==0.0.1 on that side" in words(
        package="0.0.1"
    )
    assert f"{agent} runs Python {HERE} and the launcher 3.99; " in words(python=(3, 99))
    assert (
        f"{agent} speaks protocol {PROTOCOL} and the launcher {PROTOCOL + 1}; upgrade ropewalk on that side"
        in words(protocol=PROTOCOL + 1)
    )


def test_no_reason_holds_a_secret_or_a_line_break(credentials: Credentials, members: AllowList) -> None:
    forged: dict[str, Any] = {"host": "a\nb", "package": "1\n2", "process_id": "x\r\ny", "run_id": "z\n"}
    others: list[dict[str, Any]] = [{}, {"protocol": 0}, {"python": (0, 0)}, {"package": VERSION}]
    for fields in others:
        reason = refusal(credentials, members, **forged | fields)
        assert reason
        assert "\n" not in reason and "\r" not in reason
        assert credentials.secret not in reason


def test_no_secret_ever_travels(credentials: Credentials, members: AllowList) -> None:
    admission, dialling = ServerHandshake(RUN, members), Dialling(credentials, "server")
    greeting = dialling.answer(admission.challenge)
    said = b"".join(map(CODEC.encode, (admission.challenge, greeting, admission.judge(greeting))))
    assert credentials.secret.encode() not in said and bytes.fromhex(credentials.secret) not in said


def test_a_refusal_tells_a_stranger_nothing_of_the_members(members: AllowList) -> None:
    unknown = refusal(Credentials.create(RUN, "nobody"), members)
    guessed = refusal(Credentials.create(RUN, "worker-1"), members)
    assert unknown and guessed == unknown.replace("nobody", "worker-1")


def test_a_retired_process_is_refused(credentials: Credentials, members: AllowList) -> None:
    members.retire("worker-1")
    assert "retired" in (refusal(credentials, members) or "")


def test_the_certificate_must_be_that_of_the_process(credentials: Credentials, members: AllowList) -> None:
    members.admit("worker-2", "0" * 64, "e" * 64)
    for fingerprint in ("e" * 64, "d" * 64):
        reason = refusal(credentials, members, Ends(fingerprint, "5" * 64))
        assert "certificate of another process" in (reason or "")


def test_what_was_overheard_is_worth_nothing_on_another_link(credentials: Credentials, members: AllowList) -> None:
    """S9: a greeting that is said again, here, on another kind of connection, or to another server."""
    first = ServerHandshake(RUN, members, TLS)
    greeting = Dialling(credentials, "server", TLS).answer(first.challenge)
    assert isinstance(first.judge(greeting), Welcome)
    again = ServerHandshake(RUN, members, TLS)
    elsewhere = [ServerHandshake(RUN, members, ends) for ends in (Ends(), Ends("f" * 64, "6" * 64))]
    for admission in elsewhere:  # in the worst case, somebody in the middle has them all say the same
        admission.challenge = first.challenge
    for admission in (again, *elsewhere):
        answer = admission.judge(greeting)
        assert isinstance(answer, Refused) and "not a member" in answer.reason


def test_a_server_without_the_secret_is_found_out(credentials: Credentials, members: AllowList) -> None:
    """Whoever took the place of a socket, and echoes, guesses, or repeats what a real server has said."""
    real = ServerHandshake(RUN, members)
    before = Dialling(credentials, "server")
    overheard = real.judge(before.answer(real.challenge))
    dialling = Dialling(credentials, "server")
    greeting = dialling.answer(real.challenge)
    for proof in (greeting.proof, overheard.proof, bytes(32), b""):  # type: ignore[union-attr]
        with pytest.raises(TransportRefused, match="did not prove that it belongs to this run"):
            dialling.check(Welcome(proof))
    dialling.check(real.judge(greeting))


def test_what_a_server_says_is_accepted_or_raises_with_the_reason(credentials: Credentials) -> None:
    dialling = Dialling(credentials, "server")
    for say in (dialling.answer, dialling.check):
        with pytest.raises(TransportRefused, match="server refused this process: too old") as refused:
            say(Refused("too old"))
        assert refused.value.reason == "too old"  # type: ignore[attr-defined]
        for other in (Hello(1, (3, 11), "", "", "", "", "", b""), None):
            with pytest.raises(TransportRefused, match="not a Ropewalk process"):
                say(other)


def test_the_words_of_a_refusal_cannot_steer_a_terminal(credentials: Credentials) -> None:
    """Anybody may have said them, as nothing is proved by then."""
    with pytest.raises(TransportRefused) as refused:
        Dialling(credentials, "server").check(Refused("no\x1b[2J\r\n[pool-1 0@host] fine\u2028\x9b31m\u202e"))
    assert str(refused.value).isprintable()


def test_greetings_travel_and_wrong_types_do_not(credentials: Credentials) -> None:
    greeting = Dialling(credentials, "server").answer(Challenge(bytes(32)))
    assert CODEC.decode(CODEC.encode(greeting)) == greeting
    assert len(CODEC.encode(greeting)) < STRANGER.header_bytes / 4
    fields = msgspec.to_builtins(greeting, builtin_types=(bytes,)) | {"type": "hello"}
    for name in greeting.__struct_fields__:
        for wrong in (None, {}, 1.5, float("nan"), b"\xff" if name not in ("nonce", "proof") else "x", [[[]]]):
            with pytest.raises(msgspec.ValidationError):
                CODEC.decode(msgspec.msgpack.encode(fields | {name: wrong}))
    with pytest.raises(msgspec.ValidationError):
        CODEC.decode(msgspec.msgpack.encode({"type": "unheard of"}))


def test_printing_credentials_shows_no_secret(credentials: Credentials) -> None:
    assert credentials.secret not in repr(credentials)
    assert replace_field(credentials, secret="x").secret == "x"
