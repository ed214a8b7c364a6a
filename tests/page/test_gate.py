from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from ropewalk.page.gate import ROLE, Access, Admitted, ComesAgain, Denied, Enters, Gate, Scope, place_of

ACCESS = Access({"own": "owner", "read": "reader"}, frozenset({"127.0.0.1", "localhost"}), "rw_1")
HOST = (b"host", b"127.0.0.1:8470")
ORIGIN = (b"origin", b"http://127.0.0.1:8470")
OWNER = (b"cookie", b"other=1; rw_1=own")


OURS, READERS = place_of("own"), place_of("read")


def decide(
    *headers: tuple[bytes, bytes],
    kind: str = "http",
    method: str = "GET",
    path: str = "/",
    query: str = "",
    place: str = OURS,
):
    return ACCESS.decide(kind, method, place + path, query, headers)


def test_cookie_says_the_role():
    assert decide(HOST, OWNER) == Admitted("owner", OURS)
    assert decide(HOST, (b"cookie", b"rw_1=read"), place=READERS) == Admitted("reader", READERS)


@pytest.mark.parametrize(
    "cookie",
    [
        b'theirs={"a": 1}; rw_1=own',
        b"a b[]=1; rw_1=own",
        b"rw_1=wrong; rw_1=own",
        b"rw_1=own; rw_1=wrong",
        b"=;rw_1=own",
    ],
)
def test_cookies_of_other_ports_shut_nobody_out(cookie: bytes):
    assert decide(HOST, (b"cookie", cookie)) == Admitted("owner", OURS)


@pytest.mark.parametrize("cookie", [b"", b"rw_1=", b"rw_1=wrong", b"rw_2=own", b"rw_1=own2", b"rw_1=\xff", b"own"])
def test_without_a_token_nobody_enters(cookie: bytes):
    for kind, method in (("http", "GET"), ("http", "POST"), ("websocket", "")):
        verdict = decide(HOST, ORIGIN, (b"cookie", cookie), kind=kind, method=method)
        assert isinstance(verdict, Denied) and verdict.status == 403


def test_token_of_the_address_becomes_a_cookie_and_leaves_the_address():
    for place in ("", OURS, READERS):
        assert decide(HOST, query="token=own", place=place) == Enters("own", f"{OURS}/")
    assert decide(HOST, path="/runs", query="a=1&token=read&b=%2F", place="") == Enters(
        "read", f"{READERS}/runs?a=1&b=%2F"
    )
    assert isinstance(decide(HOST, OWNER, query="token=wrong"), Denied)


@pytest.mark.parametrize("path", ["//evil.example/x", "/\\evil.example", "/\r\nset-cookie: a=b", "///evil.example"])
def test_redirects_stay_here(path: str):
    verdict = decide(HOST, path=path, query="token=own", place="")
    assert isinstance(verdict, Enters)
    assert verdict.location.startswith(f"{OURS}/")
    assert verdict.location.isprintable()


def test_posts_and_sockets_do_not_take_a_token_from_the_address():
    assert isinstance(decide(HOST, ORIGIN, method="POST", query="token=own"), Denied)
    assert isinstance(decide(HOST, ORIGIN, kind="websocket", query="token=own"), Denied)


@pytest.mark.parametrize(
    "host", [b"evil.example:8470", b"127.0.0.1.evil.example", b"", b"127.0.0.1@evil.example", b"localhost.:8470"]
)
def test_other_hosts_are_refused_so_that_no_name_can_be_rebound_to_us(host: bytes):
    verdict = decide((b"host", host), OWNER)
    assert isinstance(verdict, Denied) and verdict.status == 421


def test_no_host_or_two_of_them_are_refused():
    assert isinstance(decide(OWNER), Denied)
    assert isinstance(decide(HOST, HOST, OWNER), Denied)


def test_forwarded_port_may_be_another_one():
    assert decide((b"host", b"localhost:9000"), (b"origin", b"http://localhost:9000"), OWNER) == Admitted("owner", OURS)


@pytest.mark.parametrize(
    "origin",
    [
        b"http://evil.example",
        b"null",
        b"https://127.0.0.1:8470",
        b"http://127.0.0.1:8471",
        b"http://localhost:8470",
        b"",
    ],
)
def test_requests_of_other_sites_are_refused_though_they_bring_the_cookie(origin: bytes):
    for kind, method in (("http", "POST"), ("websocket", ""), ("http", "GET")):
        assert isinstance(decide(HOST, OWNER, (b"origin", origin), kind=kind, method=method), Denied)


def test_what_changes_something_says_from_which_page_it_comes():
    assert isinstance(decide(HOST, OWNER, method="POST"), Denied)
    assert isinstance(decide(HOST, OWNER, kind="websocket"), Denied)
    assert decide(HOST, OWNER, ORIGIN, method="POST") == Admitted("owner", OURS)
    assert decide(HOST, OWNER, ORIGIN, kind="websocket") == Admitted("owner", OURS)


def test_polling_by_another_site_is_refused():
    site = (b"sec-fetch-site", b"cross-site")
    assert isinstance(decide(HOST, OWNER, site, path="/_nicegui_ws/socket.io"), Denied)
    assert decide(HOST, OWNER, (b"sec-fetch-site", b"same-origin"), path="/_nicegui_ws/socket.io") == Admitted(
        "owner", OURS
    )


def test_cookie_is_worth_nothing_below_the_path_of_another_token():
    for place in ("", READERS, "/other"):
        assert isinstance(decide(HOST, OWNER, place=place), Denied)
    assert OURS != READERS
    assert len(OURS) > 20 and "own" not in OURS


def test_browser_that_followed_a_link_of_another_site_comes_again_with_its_cookie():
    cross, document = (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-dest", b"document")
    assert decide(HOST, cross, document) == ComesAgain()
    assert isinstance(decide(HOST, (b"sec-fetch-site", b"same-origin"), document), Denied)
    assert isinstance(decide(HOST, cross, (b"sec-fetch-dest", b"iframe")), Denied)
    assert isinstance(decide(HOST, cross, document, place=""), Denied)
    assert isinstance(decide(HOST, ORIGIN, cross, document, method="POST"), Denied)


def test_cookie_is_kept_from_scripts_and_other_sites_and_ports():
    sent = asyncio.run(_request({"query_string": b"token=own", "headers": [HOST]}))
    headers = dict(sent[0]["headers"])
    assert sent[0]["status"] == 303
    assert headers[b"location"] == f"{OURS}/".encode()
    assert headers[b"set-cookie"] == f"rw_1=own; HttpOnly; SameSite=Strict; Path={OURS}/".encode()


def test_refused_requests_do_not_reach_the_page_and_admitted_ones_bring_their_role():
    refused = asyncio.run(_request({"query_string": b"", "headers": [HOST]}))
    assert refused[0]["status"] == 403
    assert dict(refused[0]["headers"])[b"connection"] == b"close"
    cookie = (b"cookie", b"rw_1=read")
    passed = asyncio.run(_request({"path": f"{READERS}/", "query_string": b"", "headers": [HOST, cookie]}))
    assert passed[-1]["body"] == b"reader"
    headers = dict(passed[0]["headers"])
    assert headers[b"x-frame-options"] == b"SAMEORIGIN"
    assert headers[b"content-security-policy"].startswith(b"default-src 'self' data: blob: ")


def test_refused_websocket_is_closed_before_it_opens():
    sent = asyncio.run(_request({"type": "websocket", "query_string": b"", "headers": [HOST, ORIGIN]}))
    assert [message["type"] for message in sent] == ["websocket.close"]


def test_who_has_a_token_and_nobody_else_is_vouched_for():
    admitted: list[tuple[str, int]] = []
    cookie = (b"cookie", b"rw_1=read")
    asyncio.run(_request({"query_string": b"", "headers": [HOST], "client": ("10.0.0.1", 1)}, admitted))
    asyncio.run(_request({"query_string": b"token=read", "headers": [HOST], "client": ("10.0.0.2", 2)}, admitted))
    passed = {"path": f"{READERS}/", "query_string": b"", "headers": [HOST, cookie]}
    asyncio.run(_request({**passed, "client": ("10.0.0.3", 3)}, admitted))
    asyncio.run(_request({**passed, "client": None}, admitted))
    assert admitted == [("10.0.0.3", 3)]


async def _request(
    scope: dict[str, Any], admitted: list[tuple[str, int]] | None = None
) -> list[MutableMapping[str, Any]]:
    sent: list[MutableMapping[str, Any]] = []

    async def page(scope: Scope, receive: Any, send: Any) -> None:
        assert scope["root_path"] == READERS
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": scope[ROLE].encode()})

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    note = (lambda peer: None) if admitted is None else admitted.append
    await Gate(page, ACCESS, note)({"type": "http", "method": "GET", "path": "/", **scope}, receive, send)
    return sent
