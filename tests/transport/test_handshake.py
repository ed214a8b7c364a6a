"""Who is refused, and that the words say which side to change."""

from __future__ import annotations

import sys
from dataclasses import replace as replace_field

import msgspec
import pytest

from ropewalk.errors import TransportRefused
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.frames import PROTOCOL
from ropewalk.transport.handshake import CODEC, Hello, Refused, Welcome, accept_answer, hello, judge
from ropewalk.version import VERSION

RUN = "run-1"
HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


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


def test_a_member_is_welcome(credentials: Credentials, members: AllowList) -> None:
    assert judge(hello(credentials), RUN, members) is None
    assert judge(hello(credentials), RUN, members, fingerprint="f" * 64) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"protocol": PROTOCOL - 1}, ["worker-1", f"protocol {PROTOCOL - 1}", "upgrade ropewalk on that side"]),
        ({"protocol": PROTOCOL + 1}, [f"protocol {PROTOCOL + 1}", "upgrade ropewalk on this side"]),
        ({"protocol": -5}, ["protocol -5", "on that side"]),
        ({"python": (2, 7)}, ["Python 2.7", f"start that side with Python {HERE}"]),
        ({"python": (sys.version_info[0], sys.version_info[1] + 1)}, [f"start that side with Python {HERE}"]),
        ({"package": "0.0.1"}, ["'0.0.1'", f"install ropewalk=={VERSION} on that side"]),
        ({"run_id": "run-0"}, ["another run", "stale credentials"]),
        ({"secret": "0" * 64}, ["not a member", "retired"]),
        ({"secret": ""}, ["not a member"]),
        ({"secret": "\ud800é"}, ["not a member"]),
        ({"process_id": "worker-2"}, ["worker-2", "not a member"]),
        ({"host": "n\r\n17 forged log line"}, []),
    ],
)
def test_what_does_not_fit_is_named_with_the_side_to_change(
    credentials: Credentials, members: AllowList, fields: dict[str, object], words: list[str]
) -> None:
    reason = judge(change(hello(credentials), **fields), RUN, members)
    assert (reason is None) == (not words)
    for word in words:
        assert word in (reason or "")


def test_no_reason_holds_a_secret_or_a_line_break(credentials: Credentials, members: AllowList) -> None:
    forged = change(hello(credentials), host="a\nb", package="1\n2", process_id="x\r\ny", run_id="z\n")
    for fields in ({}, {"protocol": 0}, {"python": (0, 0)}, {"package": VERSION}):
        reason = judge(change(forged, **fields), RUN, members)
        assert reason
        assert "\n" not in reason and "\r" not in reason
        assert credentials.secret not in reason


def test_the_order_of_checks_tells_a_stranger_nothing_of_the_members(members: AllowList) -> None:
    greeting = Hello(PROTOCOL, sys.version_info[:2], VERSION, RUN, "worker-1", "guess")
    unknown = judge(greeting, RUN, members)
    assert unknown and unknown == (judge(change(greeting, process_id="nobody"), RUN, members) or "").replace(
        "nobody", "worker-1"
    )


def test_a_retired_process_is_refused(credentials: Credentials, members: AllowList) -> None:
    members.retire("worker-1")
    assert "retired" in (judge(hello(credentials), RUN, members) or "")


def test_the_certificate_must_be_that_of_the_process(credentials: Credentials, members: AllowList) -> None:
    members.admit("worker-2", "0" * 64, "e" * 64)
    for fingerprint in ("e" * 64, "d" * 64, ""):
        reason = judge(hello(credentials), RUN, members, fingerprint=fingerprint)
        assert "certificate of another process" in (reason or "")


def test_answers_are_accepted_or_raise_with_the_reason() -> None:
    accept_answer(Welcome(), "server")
    with pytest.raises(TransportRefused, match="server refused this process: too old") as refused:
        accept_answer(Refused("too old"), "server")
    assert refused.value.reason == "too old"  # type: ignore[attr-defined]
    for answer in (Hello(1, (3, 11), "", "", "", ""), None):
        with pytest.raises(TransportRefused, match="not a Ropewalk process"):
            accept_answer(answer, "server")


def test_greetings_travel_and_wrong_types_do_not(credentials: Credentials) -> None:
    greeting = hello(credentials)
    assert CODEC.decode(CODEC.encode(greeting)) == greeting
    fields = msgspec.to_builtins(greeting) | {"type": "hello"}
    for name in greeting.__struct_fields__:
        for wrong in (None, {}, 1.5, float("nan"), b"\xff", [[[]]]):
            with pytest.raises(msgspec.ValidationError):
                CODEC.decode(msgspec.msgpack.encode(fields | {name: wrong}))
    with pytest.raises(msgspec.ValidationError):
        CODEC.decode(msgspec.msgpack.encode({"type": "unheard of"}))


def test_printing_credentials_shows_no_secret(credentials: Credentials) -> None:
    assert credentials.secret not in repr(credentials)
    assert replace_field(credentials, secret="x").secret == "x"
