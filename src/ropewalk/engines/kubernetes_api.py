"""The part of the Kubernetes API that the engine needs; the only module that uses the official client.

Objects are the dictionaries of the API itself; the client does the difficult part, which is finding a cluster and
authenticating (kubeconfig, plugins of clouds, tokens of pods, certificates). Each method is one request: `retrying`
repeats it, `PodWatch` follows changes.
"""

from __future__ import annotations

import contextlib
import email.utils
import functools
import importlib
import inspect
import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ropewalk.errors import EngineError
from ropewalk.trusted_files import check_trusted

Manifest = dict[str, Any]
"""An object of the API, as JSON writes it."""

RIGHTS = (
    ("create", "pods"),
    ("delete", "pods"),
    ("list", "pods"),
    ("watch", "pods"),
    ("get", "pods/log"),
    ("create", "secrets"),
    ("delete", "secrets"),
)
"""The permissions that the engine needs: verb and resource. deploy/kubernetes/rbac.yaml grants exactly these."""
NICE_RIGHTS = (("list", "nodes"),)
"""A permission that the engine can do without: reading the sizes of the nodes."""

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_CONNECT_S, _READ_S = 5.0, 20.0
DISTRUST = "Distrust"
"""The reason of an error of our own: the configuration does not trust the server's certificate."""
_AGAIN = (0, 429, 500, 502, 503, 504)
_LOG_LINES = 1000
_LOG_TAIL_BYTES = 64 * 1024

_T = TypeVar("_T")


class ApiError(EngineError):
    """The API server refused, failed or did not answer."""

    status: int = 0
    """The HTTP status; 0 if there was no answer."""
    reason: str = ""
    """The API's own reason, such as AlreadyExists."""
    retry_after_s: float | None = None
    """Seconds after which the server asks for a retry, if it said so."""


@dataclass(frozen=True, slots=True)
class PodList:
    """The pods at one version of the cluster's state, from which a watch can continue."""

    pods: list[Manifest]
    version: str


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Facts that an API server reports about itself."""

    version: str
    clock_s: float | None
    """Its clock, in seconds since 1970, if it reported it."""


def retrying(call: Callable[[], _T], patience_s: float = 10.0, sleep: Callable[[float], None] = time.sleep) -> _T:
    """Retry a request while the server is overloaded, failing or unreachable, with the delay that it asks for.

    Our requests can be repeated even if an answer was lost: we choose the names, so a second creation is refused.

    Args:
        call: the request.
        patience_s: seconds after which an error is raised instead of retried.
        sleep: waits for a number of seconds.

    Returns:
        The result of `call`.
    """
    deadline = time.monotonic() + patience_s
    pause_s = 0.1
    while True:
        try:
            return call()
        except ApiError as error:
            again = (error.status in _AGAIN and error.reason != DISTRUST) or (
                error.status == 409 and error.reason == "Conflict"
            )
            wait_s = max(pause_s * random.uniform(0.5, 1), error.retry_after_s or 0)
            if not again or time.monotonic() + wait_s > deadline:
                raise
            sleep(wait_s)
            pause_s = min(2.0, 2 * pause_s)


class KubernetesApi:
    """One namespace of one cluster, as one user. Requests may be made by several threads."""

    def __init__(self, kubeconfig: str = "", context: str = "", namespace: str = "") -> None:
        """Read the configuration; no request is made.

        Raises:
            EngineError: the client is not installed, or there is no usable configuration.
        """
        try:
            self._client: Any = importlib.import_module("kubernetes.client")
            self._config: Any = importlib.import_module("kubernetes.config")
            self._http: Any = importlib.import_module("urllib3.exceptions")
        except ImportError as error:
            raise EngineError(
                f'the engine kubernetes needs the official client: pip install "ropewalk[kubernetes]" ({error})'
            ) from error
        self._kubeconfig = os.path.expanduser(kubeconfig or os.environ.get("KUBECONFIG", ""))
        self._context = context
        self._core: Any = None
        self._connect()
        self.server: str = self._core.api_client.configuration.host
        self.namespace = namespace or self._default_namespace()

    def create_pod(self, manifest: Manifest, dry_run: bool = False) -> Manifest:
        """Create a pod; a dry run goes through every check of the server and creates nothing."""
        options = {"dry_run": "All"} if dry_run else {}
        return self._json(lambda calls: calls.create_namespaced_pod(self.namespace, manifest, **_RAW, **options))

    def delete_pod(self, name: str, grace_s: int) -> None:
        """End a pod; with a grace of 0 its object is removed at once, without an answer of its node."""
        self._delete(
            lambda calls: calls.delete_namespaced_pod(name, self.namespace, grace_period_seconds=grace_s, **_RAW)
        )

    def list_pods(self, selector: str) -> PodList:
        """List the pods with these labels."""
        answer = self._json(lambda calls: calls.list_namespaced_pod(self.namespace, label_selector=selector, **_RAW))
        return PodList(answer.get("items") or [], answer["metadata"]["resourceVersion"])

    def watch_pods(self, selector: str, version: str, timeout_s: int) -> PodStream:
        """Return a stream of changes of pods after a version, which lasts `timeout_s` seconds at most."""
        return PodStream(
            self._request(
                lambda calls: calls.list_namespaced_pod(
                    self.namespace,
                    label_selector=selector,
                    resource_version=version,
                    watch=True,
                    allow_watch_bookmarks=True,
                    timeout_seconds=timeout_s,
                    _preload_content=False,
                    _request_timeout=(_CONNECT_S, timeout_s + _CONNECT_S),  # a cut connection brings no error
                )
            ),
            self._http.HTTPError,
        )

    def read_log(self, name: str, container: str, timeout_s: float = _READ_S) -> str:
        """Return the end of a container's output, which its node sends; the node may not answer."""
        options: dict[str, Any] = {"container": container, "tail_lines": _LOG_LINES, "_preload_content": False}
        options["_request_timeout"] = (_CONNECT_S, timeout_s)
        answer = self._request(lambda calls: calls.read_namespaced_pod_log(name, self.namespace, **options))
        tail = b""
        try:
            for chunk in answer.stream(_LOG_TAIL_BYTES):
                tail = (tail + chunk)[-_LOG_TAIL_BYTES:]  # one line alone can be larger than all memory
        except self._http.HTTPError as error:
            raise ApiError(f"the log of pod {name} broke off: {error}") from error
        finally:
            answer.release_conn()
        return tail.decode(errors="replace")

    def create_secret(self, manifest: Manifest) -> None:
        """Create a Secret."""
        self._json(lambda calls: calls.create_namespaced_secret(self.namespace, manifest, **_RAW))

    def delete_secret(self, name: str) -> None:
        """Delete a Secret."""
        self._delete(lambda calls: calls.delete_namespaced_secret(name, self.namespace, **_RAW))

    def list_nodes(self) -> list[Manifest]:
        """List the nodes of the cluster, with their addresses and sizes."""
        return self._json(lambda calls: calls.list_node(**_RAW)).get("items") or []

    def facts(self) -> ServerFacts:
        """Return the server's version and clock."""
        answer = self._request(lambda calls: calls.get_code(**_RAW))
        date = answer.headers.get("Date")
        clock_s = email.utils.parsedate_to_datetime(date).timestamp() if date else None
        return ServerFacts(_decoded(answer)["gitVersion"], clock_s)

    def may(self, verb: str, resource: str) -> bool:
        """Return whether the server permits a verb on a resource, written as in `RIGHTS`."""
        resource, _, subresource = resource.partition("/")
        attributes = {"verb": verb, "resource": resource, "subresource": subresource, "namespace": self.namespace}
        if resource == "nodes":
            del attributes["namespace"]
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes},
        }
        answer = self._json(lambda calls: calls.create_self_subject_access_review(review, **_RAW))
        return bool(answer["status"]["allowed"])

    def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        manager = self._core.api_client.rest_client.pool_manager
        for key in list(manager.pools.keys()):
            if (pool := manager.pools.get(key)) is not None:
                pool.close()  # the client only drops them, and leaves their sockets to the garbage collector
        self._core.api_client.close()

    def _connect(self) -> None:
        settings: Any = self._client.Configuration()
        default = os.path.expanduser("~/.kube/config")
        file = self._kubeconfig or (default if os.path.exists(default) else "")
        try:
            if file or self._context:
                _check_configuration(file or default)
                self._config.load_kube_config(
                    file or default,
                    context=self._context or None,
                    client_configuration=settings,
                    persist_config=False,
                    # The client writes keys from the kubeconfig itself into files. The files of a process that is
                    # killed remain, so they should be in memory.
                    temp_file_path=os.environ.get("XDG_RUNTIME_DIR") or None,
                )
            else:
                self._config.load_incluster_config(client_configuration=settings)
        except Exception as error:  # the client also passes on exceptions of its parsers of YAML and certificates
            raise EngineError(_no_configuration(file, self._context, error)) from error
        settings.retries = False  # `retrying` decides which requests are repeated
        settings.connection_pool_maxsize = 16
        self._core = self._client.CoreV1Api(self._client.ApiClient(settings))
        client = self._core.api_client
        self._calls = _Calls(self._core, self._client.VersionApi(client), self._client.AuthorizationV1Api(client))

    def _default_namespace(self) -> str:
        default = os.path.expanduser("~/.kube/config")
        file = self._kubeconfig or (default if os.path.exists(default) else "")
        if file:
            contexts, active = self._config.list_kube_config_contexts(file)
            chosen = next((each for each in contexts if each["name"] == self._context), active)
            return str(chosen["context"].get("namespace") or "default")
        try:
            return (_ACCOUNT / "namespace").read_text(encoding="ascii").strip() or "default"
        except OSError:
            return "default"

    def _json(self, call: Callable[[Any], Any]) -> Manifest:
        return _decoded(self._request(call))

    def _delete(self, call: Callable[[Any], Any]) -> None:
        """Delete an object; it is not an error if it is already deleted."""
        try:
            self._request(call).drain_conn()
        except ApiError as error:
            if error.status != 404:
                raise

    def _request(self, call: Callable[[Any], Any]) -> Any:
        try:
            return self._attempt(call)
        except ApiError as error:
            if error.status != 401:
                raise
            try:
                self._connect()  # a token in a file may have been renewed since we read it
            except EngineError as unread:  # or is being written at this moment
                raise ApiError(f"{error}; {unread}", status=401, reason=error.reason) from unread
            return self._attempt(call)

    def _attempt(self, call: Callable[[Any], Any]) -> Any:
        try:
            return call(self._calls)
        except self._client.ApiException as error:
            raise _refusal(error) from error
        except (self._http.HTTPError, OSError) as error:
            raise ApiError(f"{self._core.api_client.configuration.host} does not answer: {error}") from error


_RAW: dict[str, Any] = {"_preload_content": False, "_request_timeout": (_CONNECT_S, _READ_S)}
"""Responses as the server sends them, with timeouts."""


class _Calls:
    """The client's methods without the compiled code around them that checks their arguments.

    If the interpreter ends while a thread waits inside that code (pydantic-core), the whole process is aborted.
    """

    def __init__(self, *apis: Any) -> None:
        self._apis = apis

    def __getattr__(self, name: str) -> Callable[..., Any]:
        api = next(each for each in self._apis if hasattr(each, name))
        method: Callable[..., Any] = getattr(type(api), name)  # pyright: ignore[reportUnknownArgumentType]
        return functools.partial(inspect.unwrap(method), api)


class PodStream:
    """Events of a watch: `{"type": "ADDED" | "MODIFIED" | "DELETED" | "BOOKMARK" | "ERROR", "object": {...}}`.

    The iterator ends when the server ends the watch, or with an `ApiError` when the stream breaks.
    """

    def __init__(self, response: Any, broken: type[Exception]) -> None:
        self._response = response
        self._broken = broken

    def __iter__(self) -> Iterator[Manifest]:
        return self._events()

    def _events(self) -> Generator[Manifest]:
        rest = b""
        try:
            for chunk in self._response.stream(None):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        yield json.loads(line)
        except (
            self._broken,
            OSError,
            ValueError,
            RecursionError,
            AttributeError,
        ) as error:  # attributes vanish when it is interrupted
            raise ApiError(f"the stream of changes broke off: {error}") from error
        finally:
            self._response.close()

    def interrupt(self) -> None:
        """End the iteration from another thread."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # the iteration has ended by itself
            self._response.shutdown()


def _decoded(response: Any) -> Manifest:
    try:
        answer: Manifest = json.loads(response.data)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"the server's answer is not JSON: {response.data[:200]!r}", status=502) from error
    return answer


def _refusal(error: Any) -> ApiError:
    """Convert the client's exception to ours, with the server's own message."""
    body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
    reason, message = "", body[:500]
    if not error.status and "CERTIFICATE_VERIFY_FAILED" in str(error.reason):
        return ApiError(str(error.reason), reason=DISTRUST)
    try:
        said = json.loads(body)
        reason, message = str(said.get("reason") or ""), str(said.get("message") or body[:500])
    except (ValueError, AttributeError, RecursionError):
        pass
    wait = str(error.headers.get("Retry-After", "")) if error.headers else ""
    return ApiError(
        message or f"{error.status} {error.reason}",
        status=int(error.status or 0),
        reason=reason or str(error.reason or ""),
        retry_after_s=float(wait) if wait.isdecimal() else None,
    )


def _check_configuration(files: str) -> None:
    """Refuse a configuration that other users could have written: it may name a command that gets credentials.

    Args:
        files: one file or several, as in KUBECONFIG.

    Raises:
        FileNotTrusted: another user could have written one of them.
    """
    for file in files.split(os.pathsep):
        if file:
            with contextlib.suppress(
                FileNotFoundError, NotADirectoryError
            ):  # the client reports it, or uses the others
                check_trusted(file)


def _no_configuration(file: str, context: str, error: Exception) -> str:
    if not file and not context:
        return (
            "there is no Kubernetes configuration: neither the option kubeconfig, nor KUBECONFIG, nor ~/.kube/config, "
            "and this process is not in a pod with a service account's token; set one of them (`kubectl config view` "
            f"shows what kubectl uses) ({error})"
        )
    which = f"context {context!r} of " if context else ""
    return (
        f"the Kubernetes configuration {which}{file or '~/.kube/config'} cannot be used: {error}; "
        "`kubectl config get-contexts` lists those there are, the options kubeconfig and context choose"
    )
