"""The connection to a Docker daemon, and explanations of its refusals; the only module that uses the docker SDK."""

from __future__ import annotations

import contextlib
import functools
import importlib
import ipaddress
import math
import os
import re
import threading
from collections.abc import Generator
from typing import Any
from urllib.parse import urlsplit

from ropewalk.errors import EngineError

_TIMEOUT_S = 60
_SOCKET_BYTES = 16 * 1024
"""Bytes that a new socket accepts without a reader."""
_NO_MORE_WRITING, _NO_MORE = 1, 2
"""`socket.SHUT_WR` and `socket.SHUT_RDWR`: engines do not import sockets, and this one comes from the SDK."""

_SOCKET = "/var/run/docker.sock"
_NEXT_STEPS = (
    (
        r"permission denied",
        "this user may not open the socket {host}: `sudo usermod -aG docker $USER` and a new login change that, or use"
        " rootless Docker or Podman with the option host=unix:///run/user/UID/docker.sock",
    ),
    (
        r"no such file or directory.*dial|file ?not ?found|'no such file|errno 2\b|connection refused|errno 111",
        "nobody listens at {host}: start the daemon (`sudo systemctl start docker`, or Docker Desktop), or set"
        " DOCKER_HOST or the option host to where it listens; `docker version` shows what it sees",
    ),
    (
        r"invalid bind address|unsupported|invalid host|error while fetching server api version.*(url|scheme)|scheme",
        "the daemon's address {host} is not valid: DOCKER_HOST and the option host are written unix:///PATH, tcp://IP:PORT"
        " or ssh://USER@HOST",
    ),
    (
        r"timed out|timeout|no route to host|network is unreachable|name or service not known",
        "the daemon at {host} did not answer: try `docker version`, and check the network in between",
    ),
    (
        r"certificate|tlsv1|ssl",
        "set DOCKER_TLS_VERIFY and DOCKER_CERT_PATH to the daemon's certificates",
    ),
    (
        r"could not select device driver|nvidia-container-cli|failed to inject cdi|unknown device",
        "containers of this host get no such GPU: install the NVIDIA Container Toolkit there, and try"
        " `docker run --gpus all IMAGE nvidia-smi`",
    ),
    (r"unknown (or invalid )?runtime", "`docker info` lists the runtimes; the option runtime names one of them"),
    (r"network .*not found", "`docker network ls` lists those there are; without the option network the run makes one"),
    (
        r"address pools?|non-overlapping",
        "networks have used up the daemon's addresses: `docker network prune` removes unused ones, and the option"
        " network names one to share",
    ),
    (r"bind source path does not exist", "make that folder on the daemon's host, or correct the option volumes"),
    (r"no space left|quota exceeded", "make room on the daemon's host: `docker system df`, `docker system prune`"),
    (r"unable to find user|no matching entries", "the option user must be one of the image's users, or UID:GID"),
    (r"memory limit", "ask for more memory per process"),
    (r"docker-init|catatonit|tini", "install the daemon's init: the package `tini`, or `catatonit` for Podman"),
)
"""Advice for messages of the daemon, of the SDK or of the operating system; the first match counts."""


class Daemon:
    """A connection to a daemon, which is made when it is first needed, and may be closed and made again."""

    def __init__(self, host: str) -> None:
        """Look for the SDK.

        Args:
            host: as in DOCKER_HOST; if empty, the default of `docker`.

        Raises:
            EngineError: the SDK is not installed.
        """
        try:
            self._sdk: Any = importlib.import_module("docker")
        except ImportError as error:
            raise EngineError(
                f"the engine docker needs the package docker ({error}); install it: pip install 'ropewalk[docker]'"
            ) from error
        self._host = host

    @property
    def sdk_version(self) -> str:
        """The version of the package docker."""
        return str(self._sdk.__version__)

    @property
    def host(self) -> str:
        """The address of the daemon, as far as is known without a request."""
        return self._host or os.environ.get("DOCKER_HOST", "") or f"unix://{_SOCKET}"

    @property
    def remote_host(self) -> str:
        """The name or address of the daemon's host if it is another machine, else empty."""
        url = urlsplit(self.host)
        name = url.hostname or ""
        if url.scheme not in ("tcp", "http", "https", "ssh") or name == "localhost":
            return ""
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(name).is_loopback:
                return ""
        return name

    @functools.cached_property
    def api(self) -> Any:
        """The SDK's low-level client: one method per request, dictionaries in and out.

        Raises:
            EngineError: no daemon can be reached.
        """
        environment = os.environ | ({"DOCKER_HOST": self._host} if self._host else {})
        with self.asked("reach the Docker daemon"):
            return self._sdk.from_env(environment=environment, timeout=_TIMEOUT_S).api

    def close(self) -> None:
        """Close the connection, if there is one; the next request makes a new one."""
        api = self.__dict__.pop("api", None)
        if api is not None:
            api.close()

    @contextlib.contextmanager
    def asked(self, what: str) -> Generator[None]:
        """Convert the errors of the SDK to an `EngineError` that says that `what` failed, with advice."""
        try:
            yield
        except (self._sdk.errors.DockerException, OSError) as error:  # OSError: those of requests
            raise self._explain(what, error) from error

    def inspect(self, id: str) -> dict[str, Any] | None:
        """Return the inspection of a container; None if it does not exist."""
        with self.asked(f"look at container {id}"):
            try:
                return self.api.inspect_container(id)
            except self._sdk.errors.NotFound:
                return None

    def ran_out_of_memory(self, id: str, since_s: float, until_s: float) -> bool:
        """Return whether the kernel has killed a process of a container for lack of memory.

        Where the daemon learns that after the end of the container, as on a busy host, its inspection never says so.
        The daemon remembers some hundred events, and answers when `until_s` has passed.

        Args:
            id: the container.
            since_s: the beginning of the time that is looked at, in seconds since 1970 by the daemon's clock.
            until_s: its end.
        """
        wanted = {"container": id, "event": "oom"}
        with self.asked(f"read the events of container {id}"):
            events = self.api.events(since=int(since_s), until=math.ceil(until_s), filters=wanted, decode=True)
            return bool(list(events))

    @contextlib.contextmanager
    def forgiving(self, *codes: int) -> Generator[None]:
        """Ignore refusals with these HTTP codes: 404 does not exist, 409 in the wrong state, 403 in use."""
        try:
            yield
        except self._sdk.errors.APIError as error:
            if error.status_code not in codes:
                raise

    def has_image(self, image: str) -> bool:
        """Return whether the daemon has an image already."""
        with self.asked(f"look for the image {image}"):
            try:
                self.api.inspect_image(image)
            except self._sdk.errors.NotFound:
                return False
            return True

    def pull(self, image: str) -> None:
        """Fetch an image.

        Raises:
            EngineError: the image cannot be fetched; the message says how to make or get it.
        """
        refusal = ""
        try:
            for line in self.api.pull(image, stream=True, decode=True):
                refusal = line.get("error", refusal)  # failures during the transfer come after a status of 200
        except (self._sdk.errors.DockerException, OSError) as error:
            refusal = _words(error)
        if refusal:
            raise EngineError(
                f"cannot pull the image {image!r}: {refusal}; `docker pull {image}` tries again and shows more,"
                f" `docker login` gives it credentials, `docker build -t {image} .` makes the image here"
            )

    def start(self, id: str, data: bytes) -> StandardInput | None:
        """Start a container and write `data` to its standard input, which then ends."""
        if not data:
            self.api.start(id)
            return None
        # Attached before the start: a container that closes its input after the first reader loses no data.
        stdin = StandardInput(self.api.attach_socket(id, {"stdin": 1, "stream": 1}))
        try:
            self.api.start(id)
        except BaseException:
            stdin.close()
            raise
        stdin.hand_over(data)
        return stdin

    def _explain(self, what: str, error: Exception) -> EngineError:
        words = _words(error)
        for pattern, step in _NEXT_STEPS:
            if re.search(pattern, words, re.IGNORECASE):
                return EngineError(f"cannot {what}: {words}; {step.format(host=self.host)}")
        return EngineError(f"cannot {what}: {words}; `docker info` and the daemon's log may say more")


class StandardInput:
    """The attached standard input of a container. A job that does not read blocks only a thread."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._socket: Any = getattr(stream, "_sock", stream)
        """The SDK returns a file object around the socket, except over ssh."""
        self._thread: threading.Thread | None = None

    def hand_over(self, data: bytes) -> None:
        """Send all data, then the end of the stream."""
        if len(data) <= _SOCKET_BYTES:
            self._send(data)
        else:
            self._thread = threading.Thread(target=self._send, args=(data,), name="ropewalk-stdin", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Drop the data that has not been read; may be called twice."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(_NO_MORE)
        if self._thread is not None:
            self._thread.join()
        self._close()

    def _send(self, data: bytes) -> None:
        try:
            # The container ended, or does not read: `poll` reports its end.
            with contextlib.suppress(OSError):
                self._socket.sendall(data)
                self._socket.shutdown(_NO_MORE_WRITING)
        finally:
            self._close()

    def _close(self) -> None:
        self._socket.close()  # in this order: the file object keeps the socket open
        self._stream.close()


def _words(error: Exception) -> str:
    text = str(getattr(error, "explanation", None) or error)
    return re.sub(r"\s+", " ", text).strip().rstrip(".")
