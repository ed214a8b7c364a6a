"""What goes wrong in a cluster, brought about from outside: the tests of the fake cluster, and of any real one.

| fault           | how a test brings it about                      | rights beyond a launcher's                      |
| --------------- | ----------------------------------------------- | ----------------------------------------------- |
| evicted pod     | the Eviction API, as `kubectl drain` uses it    | create pods/eviction                            |
| quota used up   | a ResourceQuota of a resource of the test's own | create and delete resourcequotas                |
| restricted      | a namespace of the test's own with that label   | create and delete namespaces, and all in it     |
| server down     | a wire to the server that is cut and restored   | none                                            |
| unplugged       | a worker stops the agent of its pod             | none; the image has Ropewalk, pods reach us     |

A missing right skips the test with the words of the server, which name it. Nobody else in the namespace is disturbed:
the quota is of a resource that nobody else asks for. For an unplugged pod a NetworkPolicy would take a right more, many
networks let connections through that stand already, and nothing of ours stands between a pod and its launcher that
could be cut. A stopped agent is as silent as one behind a cut cable: its links stay open, and nothing comes.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines.engine import JobState
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.kubernetes_api import _RAW, ApiError
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from ropewalk.testing.engine_under_test import OVER, EngineUnderTest, new_run
from tests.lab.kubernetes_proxy import ServerProxy
from tests.patience import PATIENCE_S
from tests.scenarios.launchers import Launcher

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
LEAVES = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
print('up', flush=True)
while True:
    time.sleep(0.1)
"""
QUOTA = "ropewalk.test/quota"
"""A resource that no node has: only pods of the test ask for it."""
_NOT_YET = ("status unknown for quota", "error looking up service account")
"""What a real cluster says of a new quota, and in a new namespace, until its controllers have seen them."""
UNPLUG = r"""
import json, platform, sys, time
from functools import partial
import psutil
import ropewalk as rw

def work(number, unplugged):
    if platform.node() == unplugged:
        for each in psutil.Process().parents():
            if each.name() == "rw-agent":
                each.suspend()
        time.sleep(600)
    return number

if __name__ == "__main__":
    options = json.loads(sys.argv[1])
    with rw.Session(engine="kubernetes", hosts=2, engine_options=options) as session, \
            rw.Pool(2, session=session) as pool:
        pool.wait_until_ready()
        host = session.hosts()[0]
        came = pool.map(partial(work, unplugged=host.host), range(20), chunksize=1)
        print(host.job, host.host, came == list(range(20)), flush=True)
        print(*pool.status().events, sep="; ", flush=True)
"""


class KubernetesFaults(EngineUnderTest):
    """Tests of faults; a subclass also is an `EngineConformance` with the options of a cluster."""

    def start(self, argv: list[str]) -> subprocess.Popen[str]:
        """Start a launcher that pods can reach; its last argument is made of `launcher_options`."""
        return self.launch(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def launcher_options(self) -> dict[str, object]:
        """Return the options of the engine for that launcher."""
        return dict(self.engine_options())

    @contextlib.contextmanager
    def _with(self, **options: object) -> Generator[tuple[KubernetesEngine, str]]:
        """Yield an engine with further options, and the id of a run, whose jobs are ended afterwards."""
        engine, run = KubernetesEngine({**self.engine_options(), **options}), new_run()
        with self._cleaned(engine, run):
            yield engine, run

    def _running(self, engine: KubernetesEngine, code: str, run: str, request: str = "a") -> str:
        id = engine.submit(self._spec(code), 1, run, request)[0]
        self._wait_for(lambda: "up" in engine.logs(id), lambda: f"the job to be up; it is {engine.poll([id])[id]}")
        return id

    def test_an_evicted_pod_is_told_and_the_eviction_is_the_reason(self) -> None:
        with self._with() as (engine, run):
            id = self._running(engine, LEAVES, run)
            api = engine._api
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": id}}
            asked(lambda: api._request(lambda c: c.create_namespaced_pod_eviction(id, api.namespace, eviction, **_RAW)))
            self._wait_for(lambda: engine.poll([id])[id].state in OVER, "the pod to leave")
            status = engine.poll([id])[id]
            assert "EvictionByEvictionAPI" in status.reason, status
            assert (status.state, status.exit_code) in ((JobState.ENDED, 7), (JobState.LOST, None)), status

    def test_a_quota_that_is_used_up_refuses_all_or_none(self) -> None:
        with self._with(gpu_resource=QUOTA) as (engine, run):
            api, name = engine._api, run
            quota = {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": name},
                "spec": {"hard": {f"requests.{QUOTA}": "1"}},
            }
            spec = replace(self._spec("pass"), resources=Resources(gpus=1))
            asked(lambda: api._request(lambda c: c.create_namespaced_resource_quota(api.namespace, quota, **_RAW)))
            try:
                said = self._refusal(engine, run, lambda request: engine.submit(spec, 2, run, request))
            finally:
                api._request(lambda c: c.delete_namespaced_resource_quota(name, api.namespace, **_RAW))
            assert "exceeded quota" in said and f"limited: requests.{QUOTA}=1" in said, said
            assert "describe resourcequota" in said and f"1 {QUOTA}" in said
            self._wait_for(lambda: not engine.find(run), "what had been created to be removed")

    def test_a_namespace_for_restricted_pods_takes_ours_when_they_do_not_run_as_root(self) -> None:
        name = new_run()
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
        with self._with() as (engine, _):
            api = engine._api
            asked(lambda: api._request(lambda c: c.create_namespace(namespace, **_RAW)))
            try:
                with self._with(namespace=name) as (rootful, run):
                    said = self._refusal(
                        rootful, run, lambda request: rootful.submit(self._spec("pass"), 1, run, request)
                    )
                    assert "violates PodSecurity" in said and "run_as_non_root=true" in said, said
                user = 65534
                with self._with(namespace=name, run_as_non_root=True, run_as_user=user) as (rootless, run):
                    spec = replace(self._spec(""), command=["/bin/sh", "-c", "cat; echo user $(id -u)"], stdin=b"in ")
                    id = rootless.submit(spec, 1, run, "a")[0]
                    status = self._wait_until_over(rootless, id)
                    assert status.exit_code == 0, (status, rootless.logs(id))
                    self._wait_for(lambda: f"in user {user}" in rootless.logs(id), "its output")
            finally:
                api._request(lambda c: c.delete_namespace(name, **_RAW))

    def test_jobs_go_on_while_the_server_is_down_and_their_states_are_known_again(self, tmp_path: Path) -> None:
        ends = "import sys, time; print('up', flush=True); time.sleep(2); sys.exit(3)"
        with self._proxied(tmp_path) as (engine, run, proxy), self._with() as (direct, _):
            id = self._running(engine, ends, run)
            self._wait_for(lambda: engine.poll([id])[id].state is JobState.RUNNING, "it to run")
            proxy.cut()
            self._wait_for(lambda: direct.poll([id])[id].state is JobState.ENDED, "it to end")
            self._wait_for(lambda: proxy.num_refused > 1, "the watch to notice")
            assert engine.poll([id])[id].state is JobState.RUNNING, "what was known last"
            proxy.restore()
            self._wait_for(lambda: engine.poll([id])[id].exit_code == 3, "its end to be known")

    def test_a_job_that_is_submitted_while_the_server_is_down_comes_once(self, tmp_path: Path) -> None:
        with self._proxied(tmp_path) as (engine, run, proxy), self._with() as (direct, _):
            ids: list[str] = []
            proxy.cut()
            submits = threading.Thread(target=lambda: ids.extend(engine.submit(self._spec(SLEEP), 1, run, "a")))
            submits.start()
            self._wait_for(lambda: proxy.num_refused > 2, "it to try")
            proxy.restore()
            submits.join(PATIENCE_S)
            assert len(ids) == 1 and direct.find(run) == ids

    def test_a_server_that_is_down_for_long_is_told(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("ropewalk.engines.kubernetes._STALE_S", 0.3)
        with self._proxied(tmp_path) as (engine, run, proxy):
            id = self._running(engine, SLEEP, run)
            proxy.cut()

            def problem() -> str:
                try:
                    engine.poll([id])
                except EngineError as error:
                    return str(error)
                return ""

            said = self._wait_for(problem, "poll to say that it does not know")
            assert "cannot be reached" in said and "kubectl version" in said, said
            proxy.restore()
            self._wait_for(
                lambda: not problem() and engine.poll([id])[id].state is JobState.RUNNING, "it to know again"
            )

    def test_an_unplugged_pod_costs_no_task_and_is_removed(self) -> None:
        with self._with() as (engine, run):
            id = engine.submit(self._spec("import ropewalk, psutil"), 1, run, "a")[0]
            if self._wait_until_over(engine, id).exit_code != 0:
                pytest.skip(f"the image has no Ropewalk, which an agent needs: {engine.logs(id)[-200:]}")
            script = Launcher(self.start([sys.executable, "-P", "-c", UNPLUG, json.dumps(self.launcher_options())]))
            try:
                code, out, errors = script.end(PATIENCE_S)
            finally:
                script.process.kill()
                script.process.communicate()
            assert code == 0, errors
            first, events = out.splitlines()[:2]
            job, host, came = first.split()
            assert came == "True", "each task came once, also that of the unplugged pod"
            assert f"the agent on {host}" in events and "nothing was heard of it" in events, events
            assert engine.poll([job])[job].state is JobState.LOST, "its pod was deleted"

    @contextlib.contextmanager
    def _proxied(self, folder: Path) -> Generator[tuple[KubernetesEngine, str, ServerProxy]]:
        with ServerProxy(Path(str(self.engine_options()["kubeconfig"])).expanduser(), folder) as proxy:
            with self._with(kubeconfig=str(proxy.kubeconfig)) as (engine, run):
                try:
                    yield engine, run, proxy
                finally:
                    proxy.restore()

    def _refusal(self, engine: KubernetesEngine, run: str, submit: Callable[[str], Any]) -> str:
        """Return what the cluster says against a job; new rules of a real one take a moment until they hold."""
        requests = iter(range(1000))

        def said() -> str:
            try:
                submit(f"refused-{next(requests)}")
            except EngineError as error:
                return "" if any(words in str(error) for words in _NOT_YET) else str(error)
            engine.cancel(engine.find(run))
            return ""

        return self._wait_for(said, "the refusal")


def asked(request: Callable[[], object]) -> None:
    """Make a request that takes more rights than a launcher has; without them the test is skipped, which names them."""
    try:
        request()
    except ApiError as error:
        if error.status != 403:
            raise
        pytest.skip(f"the kubeconfig has not the rights for this: {error}")
