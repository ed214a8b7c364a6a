"""A wire between a launcher and the API server of any cluster, which a test may cut; no rights are needed for it.

    engine ── kubeconfig ──▶ ServerProxy ── bytes ──▶ API server

TLS goes through: the kubeconfig names the real host for the certificate (`tls-server-name`), so that nothing is
trusted here that was not trusted before. A kubeconfig with a proxy of its own (`proxy-url`) is not supported.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_FILES = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""What a kubeconfig names by a path, which may be relative to its own folder."""


class ServerProxy:
    """Passes bytes to the server of a kubeconfig's current context.

    Attributes:
        kubeconfig: the same configuration, by way of this proxy.
        num_refused: the number of connections that came while the wire was cut.
    """

    def __init__(self, kubeconfig: Path, folder: Path) -> None:
        config = _read(kubeconfig)
        cluster = _cluster(config)
        url = urlsplit(cluster["server"])
        assert url.hostname
        self._target = url.hostname, url.port or (443 if url.scheme == "https" else 80)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        self.num_refused = 0
        cluster["server"] = urlunsplit(url._replace(netloc=f"127.0.0.1:{self._listener.getsockname()[1]}"))
        if url.scheme == "https":
            cluster.setdefault("tls-server-name", url.hostname)
        self.kubeconfig = folder / "kubeconfig-of-the-proxy"
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(json.dumps(config))
        self._threads = [threading.Thread(target=self._serve, name="server-proxy")]
        self._threads[0].start()

    def __enter__(self) -> ServerProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """End all connections, and every new one as soon as it comes."""
        with self._lock:
            self._is_cut = True
            for end in self._ends:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        """Let new connections through again."""
        with self._lock:
            self._is_cut = False

    def _serve(self) -> None:
        while True:
            try:
                ours, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                theirs = None if self._is_cut else self._dial()
                if theirs is None:
                    self.num_refused += 1
                    ours.close()
                    continue
                self._ends |= {ours, theirs}
            open_directions = [2]
            for source, sink in ((ours, theirs), (theirs, ours)):
                carry = threading.Thread(target=self._carry, args=(source, sink, open_directions), name="server-proxy")
                self._threads.append(carry)
                carry.start()

    def _dial(self) -> socket.socket | None:
        try:
            return socket.create_connection(self._target, 10)
        except OSError:
            return None

    def _carry(self, source: socket.socket, sink: socket.socket, open_directions: list[int]) -> None:
        source.settimeout(None)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with self._lock:
            for end in (source, sink):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            open_directions[0] -= 1
            if not open_directions[0]:
                self._ends -= {source, sink}
                source.close()
                sink.close()


def _read(kubeconfig: Path) -> dict[str, Any]:
    """Return a kubeconfig whose paths are absolute."""
    import yaml  # comes with the client

    config = copy.deepcopy(yaml.safe_load(kubeconfig.read_text()))
    for part in [each["cluster"] for each in config["clusters"]] + [each["user"] for each in config["users"]]:
        for key in _FILES:
            if part.get(key):
                part[key] = os.path.join(kubeconfig.absolute().parent, part[key])
    return config


def _cluster(config: dict[str, Any]) -> dict[str, Any]:
    """Return the cluster of the current context."""
    contexts = {each["name"]: each["context"] for each in config["contexts"]}
    clusters = {each["name"]: each["cluster"] for each in config["clusters"]}
    return clusters[contexts[config["current-context"]]["cluster"]]
