"""The Kubernetes engine over a cluster: the public suite, the errors a user meets, the failures it goes through."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from ropewalk.engines.engine import Engine
from ropewalk.testing.engine_conformance import EngineConformance
from tests.lab.kubernetes import NAMESPACE, Cluster


class TestKubernetes(EngineConformance):
    engine_name = "kubernetes"
    num_jobs = 20

    @pytest.fixture(autouse=True)
    def _cluster(self, kubernetes: Cluster) -> None:
        self.cluster = kubernetes
        self.engine_options_now = kubernetes.options()

    def engine_options(self) -> Mapping[str, object]:
        return self.engine_options_now

    def lose(self, engine: Engine, id: str) -> None:
        pod = self.cluster.store.get("pods", NAMESPACE, id)
        machine = self.cluster.kubelet.machines[f"{NAMESPACE}/{id}"]
        assert pod
        machine.kill()

    def leftovers(self) -> list[str]:
        return [f"Secret {name}" for name in self.cluster.secrets()]
