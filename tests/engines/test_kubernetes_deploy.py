"""deploy/kubernetes: valid manifests, and rights that are exactly those that the engine uses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from ropewalk.engines import kubernetes_api
from ropewalk.engines.engine import JobSpec, JobState
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from tests.lab.kubernetes import IMAGE, Cluster
from tests.lab.kubernetes_server import EVERYBODY
from tests.lab.kubernetes_store import validate
from tests.lab.plugin import require_packages
from tests.patience import wait_until

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"


def objects(file: str) -> list[dict[str, Any]]:
    require_packages("yaml")
    import yaml

    return [each for each in yaml.safe_load_all((FOLDER / file).read_text()) if each]


def rules() -> list[dict[str, Any]]:
    manifests = objects("rbac.yaml") + objects("nodes.yaml")
    return [rule for each in manifests if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]


def granted() -> set[tuple[str, str]]:
    return {(verb, resource) for rule in rules() for verb in rule["verbs"] for resource in rule["resources"]}


@pytest.mark.parametrize("file", sorted(path.name for path in FOLDER.glob("*.yaml")))
def test_manifests_are_valid(file: str) -> None:
    require_packages("kubernetes_validate")
    made = objects(file)
    assert made
    for each in made:
        validate(each)


def test_bindings_bind_what_is_there() -> None:
    manifests = objects("rbac.yaml") + objects("nodes.yaml")
    names = {(each["kind"], each["metadata"]["name"]) for each in manifests}
    for binding in (each for each in manifests if each["kind"].endswith("Binding")):
        assert (binding["roleRef"]["kind"], binding["roleRef"]["name"]) in names
        assert all((subject["kind"], subject["name"]) in names for subject in binding["subjects"])
    launcher = objects("launcher.yaml")[0]["spec"]["template"]["spec"]
    assert ("ServiceAccount", launcher["serviceAccountName"]) in names


def test_the_role_grants_what_the_engine_asks_for_and_the_doctor_looks_at() -> None:
    assert granted() == {*kubernetes_api.RIGHTS, *kubernetes_api.NICE_RIGHTS}


def test_the_engine_uses_every_right_of_the_role_and_no_other(kubernetes: Cluster) -> None:
    """The server enforces the role; were a right missing, this life of a job would fail."""
    token = kubernetes.add_user("system:serviceaccount:training:ropewalk", rules())
    engine = KubernetesEngine(kubernetes.options(kubeconfig=str(kubernetes.kubeconfig(token))))
    assert all(finding.ok for finding in engine.check())
    assert engine.hosts() and engine.per_job(Resources())
    spec = JobSpec([sys.executable, "-c", "print(input()); import time; time.sleep(600)"], stdin=b"hello\n")
    ids = engine.submit(spec, 2, "run", "a")
    wait_until(lambda: engine.poll(ids)[ids[0]].state is JobState.RUNNING, "the job to run")
    engine.logs(ids[0])
    assert sorted(engine.find("run")) == ids and list(engine.runs()) == ["run"]
    engine.cancel(ids)
    engine.close()
    used = {(verb, resource) for verb, resource, user in kubernetes.api.requests if user.endswith("ropewalk")}
    assert used == granted() | (used & set(EVERYBODY))


@pytest.mark.parametrize("missing", [("create", "pods"), ("list", "pods"), ("watch", "pods"), ("create", "secrets")])
def test_without_one_right_there_is_an_error_that_names_it(
    kubernetes: Cluster, missing: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.engines.kubernetes._STALE_S", 0.2)
    verb, resource = missing
    fewer = [rule | {"verbs": [each for each in rule["verbs"] if (each, resource) != missing]}
             if resource in rule["resources"] else rule for rule in rules()]  # fmt: skip
    config = kubernetes.kubeconfig(kubernetes.add_user("mouse", fewer))
    engine = KubernetesEngine(kubernetes.options(kubeconfig=str(config)))

    def is_refused() -> bool:
        try:
            ids = engine.submit(JobSpec(["sleep", "600"], stdin=b"x"), 1, "run", "a")
            engine.poll(ids)
        except EngineError as error:
            return f'cannot {verb} resource "{resource}"' in str(error) and "rbac.yaml" in str(error)
        return False

    try:
        wait_until(is_refused, f"the missing right to {verb} {resource} to be named")
    finally:
        engine.close()


def test_pods_reach_a_launcher_in_a_machine_of_the_lab(kubernetes: Cluster) -> None:
    """As agents do: at the address of the interface that leads to `hosts()`; their own addresses differ."""
    launcher = kubernetes.machine("launcher")
    job = (
        "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).sendall(sys.stdin.buffer.read())"
    )
    code = f"""
import socket, sys
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec
engine = make_engine("kubernetes", {{"image": {IMAGE!r}, "kubeconfig": "/tmp/kubeconfig"}})
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
    way.connect((engine.hosts()[0], 9))
    listener = socket.create_server((way.getsockname()[0], 0))
ip, port = listener.getsockname()
engine.submit(JobSpec([sys.executable, "-c", {job!r}, ip, str(port)], stdin=b"hello"), 2, "run", "a")
callers = set()
for _ in range(2):
    link, (caller, _) = listener.accept()
    callers.add(caller)
    assert link.makefile("rb").read() == b"hello"
print(ip, *callers)
engine.close()
"""
    ip, *callers = launcher.run([sys.executable, "-c", code]).stdout.split()
    assert ip == launcher.ip
    assert len(set(callers)) == 2 and ip not in callers


def test_a_launcher_in_a_pod_starts_its_jobs_with_the_account_of_its_pod(kubernetes: Cluster) -> None:
    """No kubeconfig: the token, the authority and the namespace are those that the cluster mounted."""
    kubernetes.allow_pods_to_ask(rules())
    code = f"""
import sys, time
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec, JobState
engine = make_engine("kubernetes", {{"image": {IMAGE!r}, "python": sys.executable}})
ids = engine.submit(JobSpec([sys.executable, "-c", "print(input())"], stdin=b"from inside\\n"), 1, "inner", "a")
while engine.poll(ids)[ids[0]].state is not JobState.ENDED:
    time.sleep(0.05)
print(engine.poll(ids)[ids[0]], engine.logs(ids[0]), engine.hosts(), flush=True)
engine.close()
"""
    options = kubernetes.options(service_account="ropewalk", automount_service_account_token=True)
    engine = KubernetesEngine(options)
    id = engine.submit(JobSpec([sys.executable, "-c", code]), 1, "outer", "a")[0]
    wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED, "the launcher to end")
    assert engine.poll([id])[id].exit_code == 0, engine.logs(id)
    assert "from inside" in engine.logs(id)
    engine.close()
    assert not kubernetes.pods() and not kubernetes.secrets()


def test_a_launcher_in_a_pod_needs_an_account_and_leaves_the_files_of_this_machine(kubernetes: Cluster) -> None:
    given = kubernetes.options(labels={"team": "vision"})
    with pytest.raises(EngineError, match="service_account=ropewalk automount_service_account_token=true"):
        KubernetesEngine(given).launcher_options(given)
    given |= {"service_account": "ropewalk", "automount_service_account_token": True}
    inner = KubernetesEngine(given).launcher_options(given)
    assert inner == {**given, "kubeconfig": "", "context": "", "namespace": "training"}
