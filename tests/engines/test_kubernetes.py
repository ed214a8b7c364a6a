"""The Kubernetes engine through the public suite: over the fake cluster, and over a real one if there is one.

ROPEWALK_TEST_KUBECONFIG names the kubeconfig of a real cluster: a namespace where pods may be created, by a user with
the rights of deploy/kubernetes/rbac.yaml. Jobs of the suite need only a Python: ROPEWALK_TEST_IMAGE is the image.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.kubernetes_api import KubernetesApi
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.kubernetes import NAMESPACE, Cluster

REAL = "ROPEWALK_TEST_KUBECONFIG"


class TestKubernetes(EngineConformance):
    engine_name = "kubernetes"
    time_limit_s = 0.5
    num_jobs = 20

    @pytest.fixture(autouse=True)
    def _cluster(self, kubernetes: Cluster) -> None:
        self.cluster = kubernetes
        self.options = kubernetes.options()

    def engine_options(self) -> Mapping[str, object]:
        return self.options

    def lose(self, engine: Engine, id: str) -> None:
        self.cluster.kubelet.machines[f"{NAMESPACE}/{id}"].kill()

    def leftovers(self) -> list[str]:
        return [f"Secret {name}" for name in self.cluster.secrets()]


@pytest.fixture(scope="module")
def real_cluster() -> None:
    """There is one; and its certificates are in the client's temporary files, which stay until this process ends."""
    if REAL not in os.environ:
        pytest.skip(f"{REAL} names no kubeconfig of a real cluster")
    KubernetesApi(os.environ[REAL]).close()


@pytest.mark.usefixtures("real_cluster")
class TestRealKubernetes(EngineConformance):
    engine_name = "kubernetes"
    python = "python3"
    patience_s = 50.0
    time_limit_s = 5.0
    num_jobs = 20

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    def launch(self, argv: Sequence[str], **popen_arguments: Any) -> subprocess.Popen[str]:
        """A launcher that is killed leaves the client's temporary files."""
        return super().launch(argv, env={**os.environ, "XDG_RUNTIME_DIR": str(self.folder)}, **popen_arguments)

    def engine_options(self) -> Mapping[str, object]:
        image = os.environ.get("ROPEWALK_TEST_IMAGE", "python:3.12-slim")
        return {"image": image, "kubeconfig": os.environ[REAL], "python": self.python}

    def lose(self, engine: Engine, id: str) -> None:
        assert isinstance(engine, KubernetesEngine)
        engine._api.delete_pod(id, grace_s=0)
