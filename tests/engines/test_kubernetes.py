"""The Kubernetes engine through the public suite: over the fake cluster, and over a real one if there is one.

ROPEWALK_TEST_KUBECONFIG names the kubeconfig of a real cluster: a namespace where pods may be created, by a user with
the rights of deploy/kubernetes/rbac.yaml. Jobs of the suite need only a Python: ROPEWALK_TEST_IMAGE is the image.

    ROPEWALK_TEST_KUBECONFIG=~/.kube/config python -m pytest tests/engines/test_kubernetes.py -k Real

What takes more rights (evictions, quotas, unplugged nodes, a server that is down) is shown on the fake alone, in
`test_kubernetes_failures.py`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import Engine, JobState
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.kubernetes_api import KubernetesApi
from ropewalk.engines.resources import Resources
from ropewalk.testing.engine_conformance import EngineConformance
from ropewalk.testing.engine_under_test import EngineUnderTest, new_run
from tests.lab.kubernetes import NAMESPACE, Cluster

REAL = "ROPEWALK_TEST_KUBECONFIG"


class KubernetesEnds(EngineUnderTest):
    """Ends of pods that need no more than the rights of a launcher, so that a real cluster shows them too."""

    def test_a_job_that_uses_more_memory_than_it_asked_for_is_told_so(self) -> None:
        with self._engine() as (engine, run):
            spec = self._spec("x = bytearray(300 << 20); import time; time.sleep(600)")
            id = engine.submit(replace(spec, resources=Resources(memory="100Mi")), 1, run, "a")[0]
            status = self._wait_until_over(engine, id)
            assert (status.state, status.exit_code) == (JobState.ENDED, -9)
            assert "OOMKilled" in status.reason and "ask for more" in status.reason

    def test_a_request_for_gpus_that_no_node_has_never_runs(self) -> None:
        with self._engine() as (engine, run):
            id = engine.submit(replace(self._spec("pass"), resources=Resources(gpus=1000)), 1, run, "a")[0]
            self._wait_for(lambda: engine.poll([id])[id].hopeless, "the pod to be given up")
            status = engine.poll([id])[id]
            assert status.state is JobState.PENDING and "1000 nvidia.com/gpu" in status.reason

    def test_an_image_that_is_not_there_is_named(self) -> None:
        image = "registry.invalid/typo:1"
        engine, run = KubernetesEngine({**self.engine_options(), "image": image}), new_run()
        with self._cleaned(engine, run):
            id = engine.submit(self._spec("pass"), 1, run, "a")[0]
            self._wait_for(lambda: image in engine.poll([id])[id].reason, "the reason")
            assert engine.poll([id])[id].state is JobState.PENDING

    def test_a_pod_that_is_deleted_is_told_before(self) -> None:
        code = (
            "import signal, time; signal.signal(signal.SIGTERM, lambda *_: print('told', flush=True)); "
            "print('up', flush=True)\nwhile True: time.sleep(0.1)"
        )
        with self._engine() as (engine, run):
            assert isinstance(engine, KubernetesEngine)
            id = engine.submit(self._spec(code), 1, run, "a")[0]
            self._wait_for(lambda: "up" in engine.logs(id), "the job to be up")
            engine._api.delete_pod(id, grace_s=30)
            self._wait_for(lambda: "told" in engine.logs(id), "the notice")


class TestKubernetes(KubernetesEnds, EngineConformance):
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
class TestRealKubernetes(KubernetesEnds, EngineConformance):
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
