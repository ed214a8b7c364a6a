"""Who may see the page: decides for each request, before anything else sees it.

    browser ── GET /...?token=... ──▶ cookie, and a redirect to /PLACE/... without the token
            ── GET /PLACE/... ──────▶ Host is ours? Origin is ours? cookie holds its token? ──▶ page, as owner or reader

Browsers send a cookie to all ports of a host (RFC 6265, section 8.5), at which other users of it may listen. So it is
only sent below a path that is another one for each token, and that a page on another port cannot guess.

A page of another site could send requests of a person's browser here (cross-site requests, DNS rebinding): `Host` must
be an address that was opened, and `Origin`, which browsers send with each WebSocket and POST, must be the same.
Source: OWASP, Cross-Site Request Forgery Prevention Cheat Sheet, "Verifying origin with standard headers".
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["owner", "reader"]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

ROLE = "ropewalk.role"
"""The entry of a scope that holds the role of its sender."""
READER = "ropewalk.reader"
"""The entry of a scope that holds a token of readers, for links that are given to them; absent if there is none."""
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_AGAIN = b"<!doctype html><title>Ropewalk</title><script>location.replace(location.href)</script>"
_POLICY = (
    b"default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; "  # NiceGUI makes functions of texts
    b"object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'self'"
)
"""Nothing is loaded from other hosts, or sent to them, even if a text were taken for HTML."""
_HEADERS = (
    (b"content-security-policy", _POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request may pass.

    Attributes:
        role: of its sender.
        place: how its path begins; the rest is the path within the page.
    """

    role: Role
    place: str


@dataclass(frozen=True, slots=True)
class Enters:
    """The request brings a token: the browser gets it as a cookie, and is sent on without it."""

    token: str
    location: str


@dataclass(frozen=True, slots=True)
class ComesAgain:
    """The browser followed a link of another site, and keeps the cookie back; if our own page sends it, it does not."""


@dataclass(frozen=True, slots=True)
class Denied:
    """The request may not pass."""

    status: int
    why: str


@dataclass(frozen=True, slots=True)
class Access:
    """Who may enter.

    Args:
        tokens: role by token.
        names: what the `Host` header may name, such as "127.0.0.1", in lower case, without the port: a port may be
            another one here than at the browser (`ssh -L`).
        cookie: the name of the cookie; browsers do not tell ports apart, so it differs from page to page.
        secure: whether it is served by TLS.
    """

    tokens: Mapping[str, Role] = field(repr=False)
    names: frozenset[str]
    cookie: str
    secure: bool = False

    def decide(
        self, kind: str, method: str, path: str, query: str, headers: Iterable[tuple[bytes, bytes]]
    ) -> Admitted | Enters | ComesAgain | Denied:
        """Decide about a request.

        Args:
            kind: "http" or "websocket".
            method: of HTTP.
            path: that is requested, decoded.
            query: what follows the "?".
            headers: names in lower case, and values.
        """
        found: dict[str, list[str]] = {}
        for name, value in headers:
            found.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        place = next((place for place in map(place_of, self.tokens) if path.startswith(f"{place}/")), "")
        inner = path.removeprefix(place)
        return self._of_elsewhere(kind, method, inner, found) or self._by_token(
            kind, method, place, inner, query, found
        )

    def _of_elsewhere(self, kind: str, method: str, path: str, found: Mapping[str, list[str]]) -> Denied | None:
        hosts = [host.lower() for host in found.get("host", [])]
        if len(hosts) != 1 or _without_port(hosts[0]) not in self.names:
            named = ", ".join(hosts) or "by no name"
            return Denied(421, f"this page is not called {named}; it is {' or '.join(sorted(self.names))}")
        origins = [origin.lower() for origin in found.get("origin", [])]
        ours = f"{'https' if self.secure else 'http'}://{hosts[0]}"
        if any(origin != ours for origin in origins):
            return Denied(403, "the request comes from another site")
        if not origins and (kind == "websocket" or method not in _SAFE_METHODS):
            return Denied(403, "the request does not say from which page it comes")
        if path.startswith("/_") and found.get("sec-fetch-site", [""])[0] in ("cross-site", "same-site"):
            return Denied(403, "the request comes from another site")
        return None

    def _by_token(
        self, kind: str, method: str, place: str, path: str, query: str, found: Mapping[str, list[str]]
    ) -> Admitted | Enters | ComesAgain | Denied:
        pairs = urllib.parse.parse_qsl(query, keep_blank_values=True)
        given = [value for name, value in pairs if name == "token"]
        is_safe = kind == "http" and method in _SAFE_METHODS
        if given and is_safe:
            if self._role(given[0]) is None:
                return Denied(403, "the token is not that of this page, perhaps of one that ran before")
            rest = urllib.parse.urlencode([pair for pair in pairs if pair[0] != "token"])
            location = f"{place_of(given[0])}/{urllib.parse.quote(path.lstrip('/'))}{f'?{rest}' if rest else ''}"
            return Enters(given[0], location)
        # Pages on other ports of this host can add cookies of the same name, and other cookies in any form.
        for token in _cookies(found.get("cookie", []), self.cookie):
            role = self._role(token)
            if role and place == place_of(token):
                return Admitted(role, place)
        sent_by = [found.get(f"sec-fetch-{name}", [""])[0] for name in ("site", "dest")]
        if place and is_safe and sent_by in (["cross-site", "document"], ["same-site", "document"]):
            return ComesAgain()
        return Denied(403, "this page needs the token of the address that was printed where it was started")

    def _role(self, token: str) -> Role | None:
        found: Role | None = None
        for known, role in self.tokens.items():  # all are compared, and none faster than the others
            if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogateescape")):
                found = role
        return found


class Gate:
    """Passes requests on to an application, or refuses them; an ASGI application itself.

    Args:
        app: gets what may pass, with the sender's role in the scope.
        access: decides.
        admitted: called with the address and port of who has sent what passes.
    """

    def __init__(
        self, app: App, access: Access, admitted: Callable[[tuple[str, int]], object] = lambda peer: None
    ) -> None:
        self.app = app
        self._access = access
        self._admitted = admitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request or WebSocket."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        verdict = self._access.decide(
            scope["type"],
            scope.get("method", ""),
            scope["path"],
            scope.get("query_string", b"").decode("latin-1"),
            scope["headers"],
        )
        match verdict:
            case Admitted(role, place):
                scope[ROLE], scope["root_path"] = role, place
                if readers := [token for token, of in self._access.tokens.items() if of == "reader"]:
                    scope[READER] = readers[0]
                if peer := scope.get("client"):
                    self._admitted((peer[0], peer[1]))
                await self.app(scope, receive, _with_headers(send))
            case Enters(token, location):
                flags = f"HttpOnly; SameSite=Strict; Path={place_of(token)}/{'; Secure' if self._access.secure else ''}"
                cookie = f"{self._access.cookie}={token}; {flags}".encode("latin-1")
                await _answer(send, 303, b"", [(b"set-cookie", cookie), (b"location", location.encode("latin-1"))])
            case ComesAgain():
                await _answer(send, 200, _AGAIN, [(b"content-type", b"text/html; charset=utf-8")])
            case Denied(status, why):
                if scope["type"] == "websocket":
                    await receive()
                    await send({"type": "websocket.close", "code": 1008, "reason": why[:100]})
                else:
                    await _answer(send, status, f"Refused: {why}.\n".encode(), [])


def place_of(token: str) -> str:
    """Return how the paths begin that a browser with a token is sent to."""
    return f"/{hashlib.sha256(f'place {token}'.encode('utf-8', 'surrogateescape')).hexdigest()[:24]}"


def _without_port(host: str) -> str:
    return host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and host[-1:] != "]" else host


def _cookies(headers: list[str], name: str) -> list[str]:
    pairs = [pair.strip().partition("=") for header in headers for pair in header.split(";")]
    return [value.strip('"') for key, _, value in pairs if key == name]


async def _answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    # Strangers keep no connection open.
    closing = (b"connection", b"close")
    if not any(name == b"content-type" for name, _ in headers):
        headers = [*headers, (b"content-type", b"text/plain; charset=utf-8")]
    common = [(b"cache-control", b"no-store"), closing, *_HEADERS]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *common]})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sending(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_HEADERS]
        await send(message)

    return sending
