"""A fake Kubernetes API server: HTTPS, tokens, RBAC, watches, and every failure that a test asks for.

    client ── TLS ──▶ ApiServer ──▶ Store ◀── Kubelet
                       │ faults: 401 403 429 500 on demand, dropped streams, 410 Gone

One server may listen at several addresses: loopback for the test, and a machine of the lab for launchers in it.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.lab.kubernetes_store import Object, Refused, Store, matcher

BOOKMARK_S = 0.5
#: What every authenticated user may do in a real cluster.
EVERYBODY = (("create", "selfsubjectaccessreviews"),)


@dataclass
class Fault:
    """The next answers to some requests."""

    code: int
    reason: str
    message: str
    times: int
    verb: str = ""
    resource: str = ""
    retry_after_s: int | None = None
    delay_s: float = 0.0
    """Before the answer, which is a good one with code 200."""
    after_doing: bool = False
    """The request is carried out, and only its answer gets lost."""


@dataclass
class User:
    """Who a token stands for; without rules, somebody who may do everything."""

    name: str
    rules: Sequence[Object] | None = None
    expired: bool = False


@dataclass
class ApiServer:
    """The server's switches, and the loop that serves one request."""

    store: Store
    folder: Path
    users: dict[str, User] = field(default_factory=dict)
    """By token."""
    faults: list[Fault] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    """Verb, resource and user of every request that was allowed."""
    read_log: Callable[[str, str], bytes] = lambda namespace, name: b""
    gone_by_status: bool = False
    """Tell of 410 by the HTTP status instead of by an event; real servers do either."""
    clock_skew_s: float = 0.0
    generation: int = 0
    """Streams of an older generation are dropped."""
    num_watches: int = 0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: list[tuple[_Server, threading.Thread]] = []

    def listen(self, sock: socket.socket) -> str:
        """Serve at a listening socket, and return the URL."""
        ip, port = sock.getsockname()[:2]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._certificate(ip))
        server = _Server(sock, context, self)
        thread = threading.Thread(target=lambda: server.serve_forever(0.05), name=f"fake-kubernetes-{port}")
        thread.start()
        self._listeners.append((server, thread))
        return f"https://{ip}:{port}"

    def close(self) -> None:
        self.drop_streams()
        for server, thread in self._listeners:
            server.shutdown()
            server.close_connections()
            server.server_close()
            thread.join()
        self._listeners.clear()

    # --- failures -----------------------------------------------------------------------------------------------------

    def fail(self, code: int, times: int = 1, **facts: Any) -> None:
        """Answer the next requests with an error, or late; see `Fault` for which ones."""
        reason = {401: "Unauthorized", 403: "Forbidden", 429: "TooManyRequests"}.get(code, "InternalError")
        with self._lock:
            self.faults.append(Fault(code, reason, f"on demand: {code}", times, **facts))

    def drop_streams(self) -> None:
        """Break every watch in the middle."""
        with self.store.changed:
            self.generation += 1
            self.store.changed.notify_all()

    def forget(self) -> None:
        """Compact the history and drop all streams: whoever comes back with a version is told 410."""
        self.store.compact()
        self.drop_streams()

    def take_fault(self, verb: str, resource: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.verb in ("", verb) and fault.resource in ("", resource):
                    fault.times -= 1
                    return fault
        return None

    # --- who may what -------------------------------------------------------------------------------------------------

    def user_of(self, header: str | None) -> User:
        scheme, _, token = (header or "").partition(" ")
        user = self.users.get(token) if scheme.lower() == "bearer" else None
        if user is None or user.expired:
            raise Refused(401, "Unauthorized", "Unauthorized")
        return user

    def may(self, user: User, verb: str, resource: str) -> bool:
        if user.rules is None or (verb, resource) in EVERYBODY:
            return True
        return any(verb in rule["verbs"] and resource in rule["resources"] for rule in user.rules)

    def authorize(self, user: User, verb: str, resource: str, namespace: str) -> None:
        if not self.may(user, verb, resource):
            scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            raise Refused(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "{user.name}" cannot {verb} resource "{resource}" '
                f'in API group "" {scope}',
            )
        with self._lock:
            self.requests.append((verb, resource, user.name))

    # --- certificates -------------------------------------------------------------------------------------------------

    @property
    def ca_file(self) -> Path:
        """The authority that signed all certificates of this server."""
        self._authority()
        return self.folder / "ca.crt"

    def _authority(self) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
        if not hasattr(self, "_made"):
            key = ec.generate_private_key(ec.SECP256R1())
            certificate = _certify("fake-kubernetes-ca", key, key, "fake-kubernetes-ca", None)
            (self.folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
            self._made = key, certificate
        return self._made

    def _certificate(self, ip: str) -> Path:
        ca_key, _ = self._authority()
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certify("fake-kubernetes", key, ca_key, "fake-kubernetes-ca", ip)
        file = self.folder / f"server-{ip}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
        return file


def _certify(
    name: str, key: ec.EllipticCurvePrivateKey, ca_key: ec.EllipticCurvePrivateKey, ca_name: str, ip: str | None
) -> x509.Certificate:
    today = datetime.datetime.now(datetime.UTC)
    authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    usage = x509.KeyUsage(True, False, False, False, False, ip is None, ip is None, False, False)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, ca_name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(days=1))
        .not_valid_after(today + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=ip is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority_id, critical=False)
        .add_extension(usage, critical=True)
    )
    if ip is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(ip))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(ca_key, hashes.SHA256())


class _Server(http.server.ThreadingHTTPServer):
    """Speaks TLS in the thread of each connection, and can end connections that a client keeps open."""

    daemon_threads = False
    block_on_close = True

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, api: ApiServer) -> None:
        super().__init__(sock.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.context = context
        self.api = api
        self._connections: set[socket.socket] = set()
        self._closing = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        with contextlib.suppress(OSError, ssl.SSLError):
            request.settimeout(10)  # of the handshake
            wrapped = self.context.wrap_socket(request, server_side=True)
            wrapped.settimeout(None)
            self._connections.add(wrapped)
            try:
                if not self._closing:
                    super().finish_request(wrapped, client_address)
            finally:
                self._connections.discard(wrapped)
                wrapped.close()

    def close_connections(self) -> None:
        self._closing = True
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients hang up; that is nobody's error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - the only one that makes it

    def log_message(self, format: str, *args: object) -> None: ...

    def date_time_string(self, timestamp: float | None = None) -> str:
        return super().date_time_string((timestamp or time.time()) + self.server.api.clock_skew_s)

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_DELETE = do_GET

    def _serve(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"null")
        url = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(url.query).items()}
        try:
            self._route([part for part in url.path.split("/") if part], query, body)
        except Refused as refused:
            headers = {} if refused.retry_after_s is None else {"Retry-After": str(refused.retry_after_s)}
            self._answer(refused.code, refused.status(), headers)

    def _route(self, path: list[str], query: dict[str, str], body: Any) -> None:
        api = self.server.api
        if path == ["version"]:
            fault = api.take_fault("get", "version")
            if fault:
                raise Refused(fault.code, fault.reason, fault.message)
            self._answer(200, {"major": "1", "minor": "36", "gitVersion": "v1.36.0-fake"})
            return
        user = api.user_of(self.headers.get("Authorization"))
        match path:
            case ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"]:
                self._review(user, body)
                return
            case ["api", "v1", "nodes"]:
                namespace, resource, name = "", "nodes", ""
            case ["api", "v1", "namespaces"]:
                namespace, resource, name = "", "namespaces", ""
            case ["api", "v1", "namespaces", name]:
                namespace, resource = "", "namespaces"
            case ["api", "v1", "namespaces", namespace, resource]:
                name = ""
            case ["api", "v1", "namespaces", namespace, resource, name]:
                pass
            case ["api", "v1", "namespaces", namespace, "pods", name, "log"]:
                resource = "pods/log"
            case ["api", "v1", "namespaces", namespace, "pods", name, "eviction"]:
                resource = "pods/eviction"
            case _:
                raise Refused(404, "NotFound", f"the server could not find the requested resource {path}")
        verb = {"POST": "create", "DELETE": "delete", "GET": "get" if name else "list"}[self.command]
        verb = "watch" if query.get("watch") in ("true", "True", "1") else verb
        api.authorize(user, verb, resource, namespace)
        fault = api.take_fault(verb, resource)
        if fault and fault.code == 200:
            time.sleep(fault.delay_s)
            fault = None
        if fault and not fault.after_doing:
            raise Refused(fault.code, fault.reason, fault.message, fault.retry_after_s)
        answer = self._act(verb, resource, namespace, name, query, body)
        if fault:
            if fault.code == 0:
                self.close_connection = True
                return
            raise Refused(fault.code, fault.reason, fault.message, fault.retry_after_s)
        if isinstance(answer, bytes):
            self._send(200, "text/plain", answer)
        elif answer is not None:
            self._answer(201 if verb == "create" else 200, answer)

    def _act(
        self, verb: str, resource: str, namespace: str, name: str, query: dict[str, str], body: Any
    ) -> Object | bytes | None:
        api, store = self.server.api, self.server.api.store
        match verb, resource:
            case "create", "pods" | "secrets" | "resourcequotas":
                return store.create(resource, namespace, body, query.get("dryRun") == "All")
            case "delete", "pods":
                grace = query.get("gracePeriodSeconds", (body or {}).get("gracePeriodSeconds"))
                return store.delete_pod(namespace, name, None if grace is None else int(grace))
            case "create", "pods/eviction":
                return store.evict_pod(namespace, name, body.get("deleteOptions", {}).get("gracePeriodSeconds"))
            case "create", "namespaces":
                return store.create_namespace(body)
            case "delete", "namespaces":
                return store.delete_namespace(name)
            case "delete", "secrets" | "resourcequotas":
                return store.remove(resource, namespace, name)
            case "list", "pods" | "nodes":
                items, version = store.list(resource, namespace, query.get("labelSelector", ""))
                kind = {"pods": "PodList", "nodes": "NodeList"}[resource]
                metadata = {"resourceVersion": str(version)}
                return {"kind": kind, "apiVersion": "v1", "metadata": metadata, "items": items}
            case "get", "pods/log":
                log = api.read_log(namespace, name)
                lines = log.splitlines(keepends=True)
                return b"".join(lines[-int(query.get("tailLines", len(lines) or 1)) :])
            case "watch", "pods":
                self._watch(namespace, query)
                return None
            case _:
                raise Refused(405, "MethodNotAllowed", f"{verb} {resource} is nothing that the fake can do")

    def _review(self, user: User, body: Object) -> None:
        asked = body["spec"]["resourceAttributes"]
        resource = "/".join(part for part in (asked["resource"], asked.get("subresource")) if part)
        allowed = self.server.api.may(user, asked["verb"], resource)
        self._answer(201, body | {"status": {"allowed": allowed}})

    # --- watches ------------------------------------------------------------------------------------------------------

    def _watch(self, namespace: str, query: dict[str, str]) -> None:
        api = self.server.api
        api.num_watches += 1
        version = int(query.get("resourceVersion") or 0)
        if version < api.store.oldest and api.gone_by_status:
            raise Refused(410, "Expired", f"too old resource version: {version} ({api.store.oldest})")
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in self._events(namespace, query, version):
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
        except (OSError, _Dropped):
            self.close_connection = True

    def _events(self, namespace: str, query: dict[str, str], version: int) -> Iterator[Object]:
        api, store = self.server.api, self.server.api.store
        matches = matcher(query.get("labelSelector", ""))
        deadline = time.monotonic() + float(query.get("timeoutSeconds") or 60)
        generation = api.generation
        while True:
            with store.changed:
                too_old = version < store.oldest
                news = [change for change in store.changes if change.version > version]
                if not news and not too_old and generation == api.generation:
                    store.changed.wait(min(BOOKMARK_S, max(0.0, deadline - time.monotonic())))
                    news = [change for change in store.changes if change.version > version]
                if generation != api.generation:
                    raise _Dropped
                version = store.version if not store.oldest > version else version
            if too_old:
                refused = Refused(410, "Expired", f"too old resource version: {version} ({store.oldest})")
                yield {"type": "ERROR", "object": refused.status()}
                return
            for change in news:
                if change.kind == "pods" and change.namespace == namespace and matches(change.object):
                    yield {"type": change.type, "object": change.object}
            if not news and query.get("allowWatchBookmarks") in ("true", "True"):
                bookmark = {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}}
                yield {"type": "BOOKMARK", "object": bookmark}
            if time.monotonic() > deadline:
                return

    # --- answers ------------------------------------------------------------------------------------------------------

    def _answer(self, code: int, body: Object, headers: dict[str, str] | None = None) -> None:
        self._send(code, "application/json", json.dumps(body).encode(), headers)

    def _send(self, code: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


class _Dropped(Exception):
    """The stream is to break now."""
