"""The handshake of a link: each side proves to the other that it belongs to the run.

    server ──Challenge(nonce)──────────────────────────────────────────▶ dialler
           ◀─Hello(process, run, nonce, proof)─────────────────────────
           ──Welcome(proof), or Refused(why)──────────────────────────▶

A proof is the HMAC of everything that was sent, with both nonces, and of the side that gives it, under the secret of
the process that dials. So no secret ever travels, an eavesdropper learns nothing that works on another link, and no
third process can answer in the place of the other side. Between hosts, the certificates of both ends are part of the
text: a proof for one TLS connection proves nothing on another. A link is up only when the dialler has checked the
`Welcome`; nothing is unpickled before that, and a stranger may send one small frame. The order of the server's checks:
the transport (uid of the peer, or its certificate), protocol, Python, package, run, and the proof.
"""

from __future__ import annotations

import hmac
import os
import platform
import sys

import msgspec

from ropewalk.errors import TransportRefused
from ropewalk.escaping import escaped
from ropewalk.transport.credentials import LAUNCHER, AllowList, Credentials
from ropewalk.transport.frames import PROTOCOL
from ropewalk.transport.link import Codec
from ropewalk.version import VERSION

_NONCE_BYTES = 32


class Challenge(msgspec.Struct, tag="challenge", frozen=True):
    """The first message of a server to every dialler: prove that you belong to the run."""

    nonce: bytes
    """Random, for this link only."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """The dialler's description of itself."""

    protocol: int
    python: tuple[int, int]
    package: str
    run_id: str
    process_id: str
    fingerprint: str
    """Fingerprint of the process's certificate, if it has one, whether it is shown on this link or not."""
    host: str
    nonce: bytes
    proof: bytes = b""


class Welcome(msgspec.Struct, tag="welcome", frozen=True):
    """The link is up, provided that the server proves that it belongs to the run as well."""

    proof: bytes


class Refused(msgspec.Struct, tag="refused", frozen=True):
    """The link is refused, with the reason."""

    reason: str


class Ends(msgspec.Struct, frozen=True):
    """The fingerprints of the certificates at the ends of a TLS connection; empty where none are shown."""

    dialler: str = ""
    server: str = ""


CODEC = Codec(Challenge | Hello | Welcome | Refused)


class Dialling:
    """The dialler's side of one handshake.

    Args:
        credentials: credentials of this process.
        peer: name of the process that is dialled, for error messages.
        ends: certificates of the TLS connection, if there is one.
    """

    def __init__(self, credentials: Credentials, peer: str, ends: Ends = Ends()) -> None:  # noqa: B008 - it is frozen
        self._credentials = credentials
        self._peer = peer
        self._ends = ends
        self._nonce = b""
        self._greeting: Hello | None = None

    def answer(self, challenge: object) -> Hello:
        """Return the answer to the server's challenge.

        Raises:
            TransportRefused: the message is not the challenge of a server.
        """
        if not isinstance(challenge, Challenge):
            raise self._refused(challenge)
        self._nonce = challenge.nonce
        self._greeting = Hello(
            protocol=PROTOCOL,
            python=sys.version_info[:2],
            package=VERSION,
            run_id=self._credentials.run_id,
            process_id=self._credentials.process_id,
            fingerprint=self._credentials.fingerprint or self._ends.dialler,
            host=platform.node(),
            nonce=os.urandom(_NONCE_BYTES),
        )
        return msgspec.structs.replace(self._greeting, proof=self._proof("dialler"))

    def check(self, answer: object) -> None:
        """Check the server's answer.

        Raises:
            TransportRefused: the server refuses us, or does not belong to this run.
        """
        if not isinstance(answer, Welcome):
            raise self._refused(answer)
        if not hmac.compare_digest(self._proof("server"), answer.proof):
            raise TransportRefused(
                f"{self._peer} did not prove that it belongs to this run; something else answers there, and was told "
                "nothing"
            )

    def _proof(self, side: str) -> bytes:
        assert self._greeting
        text = _text(side, self._ends, self._nonce, self._greeting)
        return hmac.digest(self._credentials.secret.encode(), text, "sha256")

    def _refused(self, answer: object) -> TransportRefused:
        if isinstance(answer, Refused):  # any process may have sent it, so no part of it may control a terminal
            reason = escaped(answer.reason)
            return TransportRefused(f"{self._peer} refused this process: {reason}", reason=reason)
        return TransportRefused(
            f"{self._peer} did not answer as a server does; it is not a Ropewalk process of this run"
        )


class ServerHandshake:
    """The server's side of one handshake.

    Args:
        run_id: the run of this side.
        members: the processes that may connect.
        ends: certificates of the TLS connection, if there is one.
    """

    def __init__(self, run_id: str, members: AllowList, ends: Ends = Ends()) -> None:  # noqa: B008 - it is frozen
        self._run_id = run_id
        self._members = members
        self._ends = ends
        self.challenge = Challenge(os.urandom(_NONCE_BYTES))

    def judge(self, theirs: Hello) -> Welcome | Refused:
        """Return the answer to a greeting; a refusal says which side to change."""
        reason = self._why_unfit(theirs)

        def text(side: str) -> bytes:
            return _text(side, self._ends, self.challenge.nonce, theirs)

        members, shown = self._members, self._ends.dialler
        who = theirs.process_id, theirs.fingerprint
        if reason is None and not members.has_proved(*who, text("dialler"), theirs.proof):
            reason = f"{_where(theirs)} is not a member of this run, or was retired from it"
        if reason is None and shown and not (shown == theirs.fingerprint and members.owns(theirs.process_id, shown)):
            reason = f"{_where(theirs)} shows the certificate of another process; start it with its own"
        return Refused(reason) if reason else Welcome(members.proof_for(*who, text("server")))

    def _why_unfit(self, theirs: Hello) -> str | None:
        where, other = _where(theirs), (theirs.protocol, theirs.python, theirs.package)
        own = PROTOCOL, sys.version_info[:2], VERSION
        if theirs.process_id == LAUNCHER:  # it dials an agent, and it is the agent that has to change
            where, other, own = f"the agent on {platform.node()!r}", own, other
        (protocol, python, package), (its_protocol, its_python, its_package) = other, own
        if protocol != its_protocol:
            older = "that" if protocol < its_protocol else "the launcher's"
            return (
                f"{where} speaks protocol {protocol} and the launcher {its_protocol}; "
                f"upgrade ropewalk on {older} side so that both are equal"
            )
        if python != its_python:
            wanted = f"{its_python[0]}.{its_python[1]}"
            return (
                f"{where} runs Python {python[0]}.{python[1]} and the launcher {wanted}; "
                f"code only travels between equal minor versions: start that side with Python {wanted}"
            )
        if package != its_package:
            return (
                f"{where} has ropewalk {package!r} and the launcher {its_package}; "
                f"install ropewalk=={its_package} on that side"
            )
        if theirs.run_id != self._run_id:
            return f"{_where(theirs)} belongs to another run; it was started with stale credentials"
        return None


def _where(theirs: Hello) -> str:
    return f"the process {theirs.process_id!r} on {theirs.host!r}"


def _text(side: str, ends: Ends, nonce: bytes, greeting: Hello) -> bytes:
    """Return the text that a proof covers: each field with its length, so that no two handshakes have the same text."""
    return msgspec.msgpack.encode((side, ends, nonce, msgspec.structs.replace(greeting, proof=b"")))
