"""A fake Kubernetes cluster in the lab: API server, scheduler, nodes, whose pods are real processes in lab machines.

    def test_something(kubernetes: Cluster) -> None:
        engine = KubernetesEngine(kubernetes.options())

The server listens on loopback for the process of the tests. `kubernetes.machine("launcher")` is a machine of the lab
from which both the server and the pods can be reached, with a kubeconfig in its own /tmp.
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from tests.lab.kubernetes_kubelet import Kubelet
from tests.lab.kubernetes_server import ApiServer, User
from tests.lab.kubernetes_store import Object, Store
from tests.lab.lab import Lab
from tests.lab.machine import Machine
from tests.lab.plugin import require_namespaces, require_packages

NAMESPACE = "training"
IMAGE = "ropewalk:test"


class Cluster:
    """One namespace, two nodes, one image; everything about it can be made worse.

    Attributes:
        store: the objects, the quota, the namespaces.
        api: the server: tokens, faults, streams.
        kubelet: the nodes and machines.
    """

    def __init__(self, lab: Lab, folder: Path, nodes: Mapping[str, dict[str, str]] | None = None) -> None:
        self.lab = lab
        self._folder = folder
        self._host: Machine | None = None
        self._lab_url = ""
        self._account_token = ""
        self.store = Store()
        self.store.namespaces.add(NAMESPACE)
        self.store.service_accounts.add("ropewalk")
        self.api = ApiServer(self.store, folder)
        self.token = self.add_user("admin")
        self.url = self.api.listen(socket.create_server(("127.0.0.1", 0)))
        nodes = {"node-a": {}, "node-b": {}} if nodes is None else dict(nodes)
        self.kubelet = Kubelet(lab, self.store, folder, {IMAGE}, dict(nodes), self._account_files)
        self.api.read_log = self.kubelet.log

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.kubelet.close()
        self.api.close()

    def add_user(self, name: str, rules: Sequence[Object] | None = None) -> str:
        """A new user's token; without rules he may do everything."""
        token = secrets.token_hex()
        self.api.users[token] = User(name, rules)
        return token

    def kubeconfig(self, token: str = "", url: str = "", **more: Any) -> Path:
        """A new kubeconfig file; its one context is for the namespace of the tests."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "fake",
                    "cluster": {"server": url or self.url, "certificate-authority": str(self.api.ca_file)},
                }
            ],
            "users": [{"name": "tests", "user": {"token": token or self.token}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "tests", "namespace": NAMESPACE}}],
            "current-context": "fake",
        } | more
        file = self._folder / f"kubeconfig-{secrets.token_hex(4)}"
        file.write_text(json.dumps(config))
        return file

    def options(self, **more: object) -> dict[str, object]:
        """Options of an engine that uses this cluster from the process of the tests."""
        return {"image": IMAGE, "kubeconfig": str(self.kubeconfig()), "python": sys.executable, **more}

    def machine(self, name: str) -> Machine:
        """A machine that reaches the API server and all pods; its /tmp/kubeconfig says how."""
        machine = self.lab.machine(name)
        url = self._url_in_lab()
        ca_file = machine.path("/tmp/ca.crt")
        ca_file.write_bytes(self.api.ca_file.read_bytes())
        config = json.loads(self.kubeconfig(url=url).read_text())
        config["clusters"][0]["cluster"]["certificate-authority"] = "/tmp/ca.crt"
        machine.path("/tmp/kubeconfig").write_text(json.dumps(config))
        return machine

    def pods(self) -> list[Object]:
        return self.store.list("pods", NAMESPACE, "")[0]

    def secrets(self) -> list[str]:
        return [name for kind, _, name in self.store.objects if kind == "secrets"]

    def allow_pods_to_ask(self, rules: Sequence[Object]) -> None:
        """Let pods of the service account `ropewalk` reach the API server, with these rights."""
        host, port = self._url_in_lab().removeprefix("https://").split(":")
        self._account_token = self.add_user(f"system:serviceaccount:{NAMESPACE}:ropewalk", rules)
        self.kubelet.account_environment |= {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def _account_files(self, account: str) -> dict[str, str]:
        token = self._account_token if account == "ropewalk" else ""
        return {"token": token, "namespace": NAMESPACE, "ca.crt": self.api.ca_file.read_text()}

    def _url_in_lab(self) -> str:
        if self._host is None:
            self._host = self.lab.machine("kube-apiserver")
            self._lab_url = self.api.listen(self._host.listen(6443))
        return self._lab_url


@pytest.fixture
def kubernetes() -> Iterator[Cluster]:
    """A fake cluster of two nodes; at the end everything in it is gone."""
    require_namespaces()
    require_packages("kubernetes", "kubernetes_validate")
    # The lab is left first when it fails, so that threads of the kubelet see their processes end.
    with tempfile.TemporaryDirectory(prefix="kube-") as folder, Lab() as lab, Cluster(lab, Path(folder)) as cluster:
        yield cluster
