"""The first words on a link: who dials, for which run, and whether that fits.

The dialler says `Hello`; the server answers `Welcome` or `Refused`, and a link is
up only after `Welcome`. Nothing is unpickled before that, and a stranger may send
one small frame. The order of checks: the transport (uid of the peer, or its
certificate), protocol, Python, package, run, and the secret of the process.
"""

from __future__ import annotations

import platform
import sys

import msgspec

from ropewalk.errors import TransportRefused
from ropewalk.transport.credentials import AllowList, Credentials
from ropewalk.transport.frames import PROTOCOL
from ropewalk.transport.link import Codec
from ropewalk.version import VERSION


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """What a dialler says of itself."""

    protocol: int
    python: tuple[int, int]
    package: str
    run_id: str
    process_id: str
    secret: str
    host: str = ""


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The link is up."""


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The link is not up, and why."""

    reason: str


CODEC = Codec(Hello | Welcome | Refused)


def hello(credentials: Credentials) -> Hello:
    """The greeting of this process."""
    return Hello(
        protocol=PROTOCOL,
        python=sys.version_info[:2],
        package=VERSION,
        run_id=credentials.run_id,
        process_id=credentials.process_id,
        secret=credentials.secret,
        host=platform.node(),
    )


def judge(theirs: Hello, run_id: str, members: AllowList, *, fingerprint: str | None = None) -> str | None:
    """Why a greeting is refused, in words that say which side to change; None if it is welcome.

    Args:
        theirs: the greeting.
        run_id: the run of this side.
        members: who may speak.
        fingerprint: of the certificate that the peer has shown, where it had to show one.
    """
    where = f"the process {theirs.process_id!r} on {theirs.host!r}"
    if theirs.protocol != PROTOCOL:
        older = "that" if theirs.protocol < PROTOCOL else "this"
        return (
            f"{where} speaks protocol {theirs.protocol} and this side {PROTOCOL}; "
            f"upgrade ropewalk on {older} side so that both are equal"
        )
    if theirs.python != sys.version_info[:2]:
        return (
            f"{where} runs Python {theirs.python[0]}.{theirs.python[1]} and the launcher "
            f"{sys.version_info[0]}.{sys.version_info[1]}; code only travels between equal minor versions: "
            f"start that side with Python {sys.version_info[0]}.{sys.version_info[1]}"
        )
    if theirs.package != VERSION:
        return (
            f"{where} has ropewalk {theirs.package!r} and the launcher {VERSION}; "
            f"install ropewalk=={VERSION} on that side"
        )
    if theirs.run_id != run_id:
        return f"{where} belongs to another run; it was started with stale credentials"
    if not members.check(theirs.process_id, theirs.secret):
        return f"{where} is not a member of this run, or was retired from it"
    if fingerprint is not None and not members.owns(theirs.process_id, fingerprint):
        return f"{where} shows the certificate of another process; start it with its own"
    return None


def accept_answer(answer: object, peer: str) -> None:
    """Raise `TransportRefused` unless the server's answer is a welcome."""
    if isinstance(answer, Refused):
        raise TransportRefused(f"{peer} refused this process: {answer.reason}", reason=answer.reason)
    if not isinstance(answer, Welcome):
        raise TransportRefused(f"{peer} did not answer the greeting; it is not a Ropewalk process of this run")
