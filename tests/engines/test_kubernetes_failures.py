"""What goes wrong: refusals that a user must understand, failures that nobody should notice, nodes that are lost."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from ropewalk.engines import kubernetes_manifests as manifests
from ropewalk.engines.engine import JobSpec, JobState, JobStatus
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.kubernetes_manifests import MOST_STDIN_BYTES
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError
from tests.lab.kubernetes import NAMESPACE, Cluster
from tests.lab.kubernetes_store import Refused
from tests.lab.plugin import require_packages
from tests.other_users import MALLORY, as_user, needs_root
from tests.patience import wait_until

SLEEP = JobSpec([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"])
SECRET = "a-secret-91b7"


@contextlib.contextmanager
def engine_of(cluster: Cluster, **options: object) -> Generator[KubernetesEngine]:
    engine = KubernetesEngine(cluster.options(**options))
    try:
        yield engine
    finally:
        engine.close()


@pytest.fixture
def engine(kubernetes: Cluster) -> Iterator[KubernetesEngine]:
    with engine_of(kubernetes) as engine:
        yield engine


def status_when(engine: KubernetesEngine, id: str, words: str) -> JobStatus:
    """The state of a job once its reason contains these words."""
    wait_until(lambda: words in engine.poll([id])[id].reason, f"{words!r}; it is {engine.poll([id])[id]}")
    return engine.poll([id])[id]


def is_running(engine: KubernetesEngine, *ids: str) -> bool:
    return all(status.state is JobState.RUNNING for status in engine.poll(ids).values())


# --- refusals: each says what to do next ------------------------------------------------------------------------------


def refusal(engine: KubernetesEngine, spec: JobSpec = SLEEP, count: int = 1) -> str:
    with pytest.raises(EngineError) as caught:
        engine.submit(spec, count, "run", "request")
    return str(caught.value)


def test_a_quota_that_is_used_up(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    kubernetes.store.quota = {"pods": 2}
    said = refusal(engine, count=3)
    assert "exceeded quota" in said and "limited: pods=2" in said
    assert "describe resourcequota" in said and "end something" in said
    assert "create 3 pods like" in said and "which asks for 1 CPUs" in said
    wait_until(lambda: not kubernetes.pods(), "what had been created to be removed: all or none")
    kubernetes.store.quota = {"requests.memory": 2**30}
    assert "memory=4G" in refusal(engine)


def test_missing_rights(kubernetes: Cluster) -> None:
    config = kubernetes.kubeconfig(kubernetes.add_user("system:serviceaccount:training:mouse", []))
    with engine_of(kubernetes, kubeconfig=str(config)) as engine:
        said = refusal(engine)
        assert 'User "system:serviceaccount:training:mouse" cannot create resource "pods"' in said
        assert "deploy/kubernetes/rbac.yaml" in said and f"-n {NAMESPACE} auth can-i --list" in said
        with pytest.raises(EngineError, match="cannot list resource"):
            engine.find("run")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ('admission webhook "labels.example" denied the request: label team is missing', "admission policy"),
        ("pods is forbidden: maximum cpu usage per container is 2, but limit is 4", "describe limitrange"),
    ],
)
def test_a_pod_that_admission_refuses(
    kubernetes: Cluster, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch, message: str, words: str
) -> None:
    def refuse(kind: str, namespace: str, body: dict[str, object]) -> None:
        raise Refused(403, "Forbidden", message)

    monkeypatch.setattr(kubernetes.store, "_admit", refuse)
    said = refusal(engine)
    assert message in said and words in said and "asks for 1 CPUs" in said


def test_a_namespace_that_does_not_exist(kubernetes: Cluster) -> None:
    with engine_of(kubernetes, namespace="tranining") as engine:
        assert "kubectl create namespace tranining" in refusal(engine)


def test_a_token_that_has_expired(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    engine.submit(SLEEP, 1, "run", "before")
    kubernetes.api.users[kubernetes.token].expired = True
    assert "have expired" in refusal(engine) and "kubectl get pods" in refusal(engine)
    kubernetes.api.users[kubernetes.token].expired = False


def test_a_token_that_was_renewed_in_its_file_is_read_again(kubernetes: Cluster) -> None:
    config = kubernetes.kubeconfig()
    with engine_of(kubernetes, kubeconfig=str(config)) as engine:
        assert engine.find("run") == []
        renewed = json.loads(config.read_text())
        renewed["users"][0]["user"]["token"] = kubernetes.add_user("admin")
        config.write_text(json.dumps(renewed))
        del kubernetes.api.users[kubernetes.token]
        assert engine.find("run") == []


def test_a_configuration_that_is_being_written_when_a_token_expires_is_read_again_later(kubernetes: Cluster) -> None:
    """The thread that follows the pods ended with the error, and no end of a job was noticed any more."""
    config = kubernetes.kubeconfig()
    with engine_of(kubernetes, kubeconfig=str(config)) as engine:
        [id] = engine.submit(SLEEP, 1, "run", "request")
        wait_until(lambda: is_running(engine, id), "the job to run")
        whole = config.read_text()
        config.write_text(whole[: len(whole) // 2])
        del kubernetes.api.users[kubernetes.token]
        kubernetes.api.drop_streams()
        watch = engine._watches["run"]
        wait_until(lambda: watch.error and watch.error.status == 401, "the watch to be refused")
        kubernetes.kubelet.evict(NAMESPACE, id, "The node was low on resource: memory.")
        renewed = json.loads(whole)
        renewed["users"][0]["user"]["token"] = kubernetes.add_user("admin")
        config.write_text(json.dumps(renewed))
        wait_until(lambda: engine.poll([id])[id].state is JobState.ENDED, "the end of the job to be noticed")


def test_no_configuration_at_all(kubernetes: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    said = refusal(KubernetesEngine({"image": "i"}))
    assert "no Kubernetes configuration" in said and "KUBECONFIG" in said and "not in a pod" in said
    assert not KubernetesEngine({"image": "i"}).check()[0].ok


@pytest.mark.parametrize(
    ("text", "words"), [(None, "config-here"), ("{not yaml", "config-here"), ("{}", "cannot be used")]
)
def test_a_kubeconfig_that_cannot_be_used(text: str | None, words: str, tmp_path: Path) -> None:
    require_packages("kubernetes")
    file = tmp_path / "config-here"
    if text is not None:
        file.write_text(text)
    said = refusal(KubernetesEngine({"image": "i", "kubeconfig": str(file)}))
    assert words in said and "kubectl config get-contexts" in said


@needs_root
@pytest.mark.parametrize("how", ["option", "second of KUBECONFIG", "home of another user"])
def test_a_kubeconfig_of_another_user_runs_no_command(
    how: str, everybodys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may name a command that gets credentials, and `sudo -E` keeps the HOME of somebody else."""
    require_packages("kubernetes")
    ran = tmp_path / "ran"
    command = {"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": [str(ran)]}
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": command | {"interactiveMode": "Never"}}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "c",
    }
    planted, own = everybodys / ".kube/config", tmp_path / "config"
    own.write_text("{}")
    as_user(MALLORY, lambda: (planted.parent.mkdir(), planted.write_text(json.dumps(config)))[1])
    monkeypatch.setenv("HOME", str(everybodys if how == "home of another user" else tmp_path))
    monkeypatch.setenv("KUBECONFIG", f"{own}{os.pathsep}{planted}" if how == "second of KUBECONFIG" else "")
    given = {"kubeconfig": str(planted)} if how == "option" else {}
    said = refusal(KubernetesEngine({"image": "i", **given}))
    assert f"{planted} is not used" in said and f"user {MALLORY}" in said, said
    assert not ran.exists()


def test_a_context_that_the_kubeconfig_does_not_have(kubernetes: Cluster) -> None:
    said = refusal(KubernetesEngine(kubernetes.options(context="production")))
    assert "production" in said and "get-contexts" in said


def test_kubeconfig_may_be_named_by_the_environment(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig()))
    with engine_of(kubernetes, kubeconfig="") as engine:
        assert engine.find("run") == []


def test_a_server_that_is_not_there(kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    config = kubernetes.kubeconfig(url="https://127.0.0.1:1")
    with engine_of(kubernetes, kubeconfig=str(config)) as engine:
        finding = engine.check()[0]
        assert not finding.ok and "cannot be reached" in finding.detail and "127.0.0.1:1" in finding.detail


def test_a_server_with_a_certificate_of_somebody_else(kubernetes: Cluster, tmp_path: Path) -> None:
    config = json.loads(kubernetes.kubeconfig().read_text())
    del config["clusters"][0]["cluster"]["certificate-authority"]
    (tmp_path / "config").write_text(json.dumps(config))
    with engine_of(kubernetes, kubeconfig=str(tmp_path / "config")) as engine:
        finding = engine.check()[0]
        assert not finding.ok and "check its certificate-authority" in finding.detail


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"service_account": "nobody-knows"}, "set the option service_account"),
        ({"priority_class": "urgent"}, "kubectl get priorityclasses"),
    ],
)
def test_names_that_the_cluster_does_not_know(kubernetes: Cluster, options: dict[str, object], words: str) -> None:
    with engine_of(kubernetes, **options) as engine:
        assert words in refusal(engine)


def test_a_standard_input_that_no_secret_can_hold(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    said = refusal(engine, JobSpec(["a"], stdin=bytes(MOST_STDIN_BYTES + 1)))
    assert str(MOST_STDIN_BYTES) in said and str(MOST_STDIN_BYTES + 1) in said
    assert not kubernetes.pods()


def test_a_standard_input_of_several_secrets_arrives_whole_and_they_go_with_the_job(
    kubernetes: Cluster, engine: KubernetesEngine
) -> None:
    # As the code of a submitted script; more than one Secret holds was refused.
    stdin = random.Random(0).randbytes(5 * 2**19)
    code = "import hashlib, sys, time; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest(), flush=True); "
    job = JobSpec([sys.executable, "-c", code + "time.sleep(600)"], stdin=stdin)
    (id,) = engine.submit(job, 1, "large", "a")
    wait_until(lambda: hashlib.sha256(stdin).hexdigest() in engine.logs(id), "the digest of the input")
    assert sorted(kubernetes.secrets()) == [f"{id}-00", f"{id}-01", f"{id}-02"]
    engine.cancel([id])
    assert engine.poll([id])[id].state is JobState.ENDED
    assert not kubernetes.secrets()


def test_an_image_that_is_not_there_is_told_by_the_state(kubernetes: Cluster) -> None:
    with engine_of(kubernetes, image="registry.example/typo:1") as engine:
        id = engine.submit(SLEEP, 1, "run", "a")[0]
        status = status_when(engine, id, "ErrImagePull")
        assert status.state is JobState.PENDING
        assert "registry.example/typo:1: not found" in status.reason and "image_pull_secrets" in status.reason
        engine.cancel([id])
        assert engine.find("run") == []


def test_a_pod_that_fits_nowhere_is_told_by_the_state(engine: KubernetesEngine) -> None:
    spec = JobSpec(["a"], resources=Resources(gpus=4))
    id = engine.submit(spec, 1, "run", "a")[0]
    status = status_when(engine, id, "Unschedulable")
    assert status.state is JobState.PENDING
    assert "0/2 nodes are available: 2 Insufficient nvidia.com/gpu" in status.reason
    assert status.hopeless and "can ever hold it: it asks for 1 CPUs, 4 nvidia.com/gpu; 2 nodes" in status.reason
    engine.cancel([id])


def test_a_pod_that_waits_for_room_is_no_pod_that_fits_nowhere(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    spec = JobSpec(SLEEP.command, resources=Resources(cpus=60))
    ids = engine.submit(spec, 3, "run", "a")
    wait_until(lambda: any("no room now" in each.reason for each in engine.poll(ids).values()), "one to wait")
    [waits] = [each for each in engine.poll(ids).values() if "no room now" in each.reason]
    assert waits.state is JobState.PENDING and not waits.hopeless
    engine.cancel(ids)


def test_a_pod_that_fits_nowhere_is_given_up_later_without_the_right_to_list_nodes(kubernetes: Cluster) -> None:
    rules = [{"verbs": ["create", "list", "watch", "get", "delete"], "resources": ["pods", "pods/log", "secrets"]}]
    config = kubernetes.kubeconfig(kubernetes.add_user("mouse", rules))
    with engine_of(kubernetes, kubeconfig=str(config), unschedulable_s=1) as engine:
        id = engine.submit(JobSpec(["a"], resources=Resources(gpus=4)), 1, "run", "a")[0]
        wait_until(lambda: engine.poll([id])[id].hopeless, "it to be given up")
        assert "for 1 s is given up" in engine.poll([id])[id].reason
        engine.cancel([id])


# --- failures that nobody should notice -------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_fails_for_a_moment_is_asked_again(
    kubernetes: Cluster, engine: KubernetesEngine, code: int
) -> None:
    for verb, resource in (("create", "pods"), ("create", "secrets"), ("list", "pods"), ("watch", "pods")):
        kubernetes.api.fail(code, times=2, verb=verb, resource=resource)
    spec = JobSpec([sys.executable, "-c", "import sys; print(sys.stdin.read())"], stdin=b"hello")
    id = engine.submit(spec, 1, "run", "a")[0]
    wait_until(lambda: engine.poll([id])[id].exit_code == 0, "the job to end")
    assert engine.logs(id).strip() == "hello"


def test_a_server_that_says_when_to_come_back_is_not_asked_earlier(
    kubernetes: Cluster, engine: KubernetesEngine
) -> None:
    kubernetes.api.fail(429, times=1, verb="create", resource="pods", retry_after_s=1)
    began = time.monotonic()
    id = engine.submit(SLEEP, 1, "run", "a")[0]
    assert time.monotonic() - began >= 1.0
    engine.cancel([id])


@pytest.mark.parametrize("code", [0, 500])
def test_a_creation_whose_answer_got_lost_is_not_done_twice(
    kubernetes: Cluster, engine: KubernetesEngine, code: int
) -> None:
    kubernetes.api.fail(code, verb="create", resource="pods", after_doing=True)
    kubernetes.api.fail(code, verb="create", resource="secrets", after_doing=True)
    spec = JobSpec(SLEEP.command, stdin=b"x")
    ids = engine.submit(spec, 2, "run", "a")
    assert sorted(pod["metadata"]["name"] for pod in kubernetes.pods()) == sorted(ids)
    assert len(kubernetes.store.seen_pods) == 2
    wait_until(lambda: is_running(engine, *ids), "both to run")
    engine.cancel(ids)


def test_a_second_launcher_that_asks_for_the_same_gets_the_same(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    ids = engine.submit(SLEEP, 2, "run", "a")
    with engine_of(kubernetes) as other:
        assert other.submit(SLEEP, 2, "run", "a") == ids
        assert len(kubernetes.store.seen_pods) == 2
        wait_until(lambda: is_running(other, *ids), "both to run, as seen by the other")
    engine.cancel(ids)


def test_states_go_on_when_streams_break_and_versions_are_forgotten(
    kubernetes: Cluster, engine: KubernetesEngine
) -> None:
    watch = engine._watch("run")
    for round, trouble in enumerate(
        [kubernetes.api.drop_streams, kubernetes.api.forget, kubernetes.api.forget, kubernetes.api.drop_streams]
    ):
        kubernetes.api.gone_by_status = round == 2
        id = engine.submit(JobSpec(["sh", "-c", f"exit {round}"]), 1, "run", str(round))[0]
        trouble()
        wait_until(lambda id=id, round=round: engine.poll([id])[id].exit_code == round, f"exit code {round}")
    # One list at the start, and one more for a 410, of which a stream that is just being taken up meets only one.
    assert 2 <= watch.num_lists <= 3, "a broken stream is taken up again without a list"
    assert kubernetes.api.num_watches >= 5


def test_what_happens_while_nobody_watches_is_found_by_the_next_list(
    kubernetes: Cluster, engine: KubernetesEngine
) -> None:
    ends, goes = engine.submit(SLEEP, 2, "run", "a")
    wait_until(lambda: is_running(engine, ends, goes), "both to run")
    kubernetes.api.fail(500, times=3, verb="watch")
    kubernetes.api.drop_streams()
    kubernetes.store.remove("pods", NAMESPACE, goes)
    kubernetes.kubelet.evict(NAMESPACE, ends, "The node was low on resource: memory.")
    kubernetes.api.forget()
    assert status_when(engine, ends, "low on resource").state is JobState.ENDED
    assert status_when(engine, goes, "was deleted").state is JobState.LOST


def test_polling_asks_the_server_nothing_while_the_watch_stands(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    ids = engine.submit(SLEEP, 2, "run", "a")
    wait_until(lambda: is_running(engine, *ids), "both to run")
    before = len(kubernetes.api.requests)
    for _ in range(200):
        engine.poll(ids)
    assert len(kubernetes.api.requests) == before
    engine.cancel(ids)


def test_knowledge_that_is_too_old_is_none(
    kubernetes: Cluster, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.engines.kubernetes._STALE_S", 0.3)
    id = engine.submit(SLEEP, 1, "run", "a")[0]
    wait_until(lambda: is_running(engine, id), "it to run")
    kubernetes.api.fail(500, times=1000, verb="watch")
    kubernetes.api.drop_streams()

    def is_refused() -> bool:
        try:
            engine.poll([id])
        except EngineError as error:
            return "on demand: 500" in str(error)
        return False

    wait_until(is_refused, "poll to say that it does not know")
    kubernetes.api.faults.clear()
    wait_until(lambda: not is_refused() and is_running(engine, id), "poll to know again")
    engine.cancel([id])


def test_a_launcher_that_does_not_close_its_engine_ends_as_it_wants(kubernetes: Cluster) -> None:
    """Seen: exit code -6, as the end of the interpreter stopped the thread of the watch inside of compiled code."""
    kubernetes.api.fail(200, verb="list", resource="pods", delay_s=1.0)
    code = f"""
import time
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(2)  # while the interpreter ends, other threads get a turn
slow = Slow()
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.engine import JobSpec
KubernetesEngine({kubernetes.options(keep_pods=True)!r}).submit(JobSpec(["true"]), 1, "run", "a")
raise SystemExit(3)
"""
    launcher = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert launcher.returncode == 3, launcher.stderr


def test_jobs_can_be_ended_when_the_interpreter_ends(kubernetes: Cluster) -> None:
    """As sessions do; there are no more threads to be had then."""
    code = f"""
import atexit
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.engine import JobSpec
def end():
    engine.cancel(ids)
    print({{engine.poll(ids)[id].state.value for id in ids}})
    engine.close()
engine = KubernetesEngine({kubernetes.options()!r})
ids = engine.submit(JobSpec(["sleep", "600"], stdin=b"x"), 3, "run", "a")
atexit.register(end)
"""
    launcher = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert (launcher.stdout, launcher.stderr) == ("{'ended'}\n", "")
    assert not kubernetes.pods() and not kubernetes.secrets()


# --- lost nodes, ended pods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [False, True], ids=["plug", "cable"])
def test_a_lost_node_is_told_and_its_pods_can_be_ended(
    kubernetes: Cluster, engine: KubernetesEngine, cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ropewalk.engines.kubernetes._CANCEL_WAIT_S", 1.5)
    id = engine.submit(SLEEP, 1, "run", "a")[0]
    wait_until(lambda: is_running(engine, id), "it to run")
    node = kubernetes.store.get("pods", NAMESPACE, id)["spec"]["nodeName"]
    kubernetes.kubelet.lose_node(node, cut=cut, noticed_after_s=0.1)
    assert node in status_when(engine, id, "nothing is heard on node").reason
    assert status_when(engine, id, "DeletionByTaintManager").state is JobState.RUNNING
    began = time.monotonic()
    engine.cancel([id])
    assert time.monotonic() - began > 1, "the node was given the time to end it politely"
    assert not kubernetes.pods(), "a node that is gone never says that its pod has ended"
    wait_until(lambda: engine.poll([id])[id] == JobStatus(JobState.ENDED, -9, "cancelled"), "the watch to tell of it")


def node_of(cluster: Cluster, id: str) -> str:
    return str(cluster.store.get("pods", NAMESPACE, id)["spec"]["nodeName"])


def test_a_replacement_avoids_the_node_that_was_lost(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    id = engine.submit(SLEEP, 1, "run", "a")[0]
    wait_until(lambda: is_running(engine, id), "it to run")
    lost = node_of(kubernetes, id)
    kubernetes.kubelet.lose_node(lost, noticed_after_s=3.0)  # the launcher notices earlier than the cluster
    new = engine.submit(JobSpec(SLEEP.command, away_from=[id]), 1, "run", "b")[0]
    wait_until(lambda: is_running(engine, new), "its replacement to run")
    assert node_of(kubernetes, new) != lost
    engine.cancel([new])


def test_a_node_is_not_avoided_if_there_is_no_other_or_a_job_has_ended_on_it(
    kubernetes: Cluster, engine: KubernetesEngine
) -> None:
    ended = engine.submit(JobSpec(["true"]), 1, "run", "a")[0]
    wait_until(lambda: engine.poll([ended])[ended].exit_code == 0, "it to end")
    large = JobSpec(SLEEP.command, resources=Resources(cpus=99))
    ids = engine.submit(large, 2, "run", "b")
    wait_until(lambda: is_running(engine, *ids), "one to run on each node")
    new = engine.submit(JobSpec(SLEEP.command, away_from=[ended, *ids]), 1, "run", "c")[0]
    wait_until(lambda: is_running(engine, new), "a job with no node that it likes to run")
    assert engine._nodes_of([ended, "unknown"]) == []
    assert engine._nodes_of(ids) == ["node-a", "node-b"]
    engine.cancel([*ids, new])


def test_an_evicted_job(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    id = engine.submit(SLEEP, 1, "run", "a")[0]
    wait_until(lambda: is_running(engine, id), "it to run")
    kubernetes.kubelet.evict(NAMESPACE, id, "The node was low on resource: ephemeral-storage.")
    status = status_when(engine, id, "Evicted")
    assert status.state is JobState.ENDED and "ephemeral-storage" in status.reason


def test_a_job_ends_with_its_time(engine: KubernetesEngine) -> None:
    id = engine.submit(JobSpec(SLEEP.command, time_limit_s=1), 1, "run", "a")[0]
    status = status_when(engine, id, "DeadlineExceeded")
    assert (status.state, status.exit_code) == (JobState.ENDED, -15)


# --- secrets, and what is left ----------------------------------------------------------------------------------------


def test_secrets_are_in_no_pod_and_go_with_it(kubernetes: Cluster) -> None:
    code = "import sys, time; print(len(sys.stdin.read()), flush=True); time.sleep(600)"
    with engine_of(kubernetes) as engine:
        id, gone = engine.submit(JobSpec([sys.executable, "-c", code], stdin=SECRET.encode()), 2, "run", "a")
        wait_until(lambda: engine.logs(id).strip() == str(len(SECRET)), "it to read its stdin")
        everything = json.dumps([kubernetes.store.seen_pods, kubernetes.pods()])
        assert SECRET not in everything and base64.b64encode(SECRET.encode()).decode() not in everything
        assert sorted(kubernetes.secrets()) == [id, gone]
        kubernetes.store.remove("pods", NAMESPACE, gone)  # by somebody else
        assert kubernetes.secrets() == [id], "the cluster's garbage collector knows the owner"
        engine.cancel([id])
        assert kubernetes.secrets() == []


@pytest.mark.parametrize("size", [20, 2**20 + 1])
def test_a_pod_reads_no_secret_that_somebody_else_has_made_with_its_name(kubernetes: Cluster, size: int) -> None:
    """Who may make Secrets, but no pods, would let the pod join a launcher of their own, with the rights of the pod."""
    with engine_of(kubernetes) as engine:
        read = JobSpec([sys.executable, "-c", "import sys; print('it read', sys.stdin.read(9))"], stdin=b"a" * size)
        name = manifests.job_name("run", "a", 0)
        for each in manifests.secret_names(name, size):
            theirs = {"type": "Opaque", "metadata": {"name": each}, "data": {"stdin": base64.b64encode(b"b").decode()}}
            kubernetes.store.create("secrets", NAMESPACE, {"apiVersion": "v1", "kind": "Secret"} | theirs)
        (id,) = engine.submit(read, 1, "run", "a")
        assert id == name
        ended = status_when(engine, id, "a Secret that its launcher did not write")
        assert ended.state is JobState.ENDED and ended.hopeless
        assert "it read" not in engine.logs(id)


@pytest.mark.parametrize("keep", [False, True])
def test_ended_pods_go_when_the_engine_is_closed_unless_they_are_wanted(kubernetes: Cluster, keep: bool) -> None:
    with engine_of(kubernetes, keep_pods=keep) as engine:
        id = engine.submit(JobSpec(["sh", "-c", "exit 3"], stdin=b"x"), 1, "run", "a")[0]
        wait_until(lambda: engine.poll([id])[id].exit_code == 3, "it to end")
        assert len(kubernetes.pods()) == 1
        engine.close()
        assert (len(kubernetes.pods()), len(kubernetes.secrets())) == (1 if keep else 0, 0), "no credentials are kept"
        assert engine.poll([id])[id].exit_code == 3


def test_what_launchers_left_that_were_killed_is_removed_by_the_next_one(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = KubernetesEngine(kubernetes.options())  # keeps its watch, and never closes
    ended, alive = killed.submit(SLEEP, 2, "run", "a")
    wait_until(lambda: is_running(killed, ended, alive), "both to run")
    kubernetes.kubelet.evict(NAMESPACE, ended, "The node was low on resource: memory.")
    names = {"now": [ended, alive], "in an hour": [alive]}
    for age_s, when in ((3600.0, "now"), (0.0, "in an hour")):
        monkeypatch.setattr("ropewalk.engines.kubernetes._FORGOTTEN_S", age_s)
        with engine_of(kubernetes) as engine:
            new = engine.submit(SLEEP, 1, f"run-{when[:3].strip()}", "a")
            assert sorted(pod["metadata"]["name"] for pod in kubernetes.pods()) == sorted([*names[when], *new])
            engine.cancel(new)
    killed.cancel([alive])
    killed.close()


def test_pods_are_deleted_although_the_server_does_not_list_them(
    kubernetes: Cluster, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server limits lists before it limits deletions, and all pods of a run were left when it ended."""
    [id] = engine.submit(SLEEP, 1, "run", "a")
    wait_until(lambda: is_running(engine, id), "the job to run")
    monkeypatch.setattr("ropewalk.engines.kubernetes._STALE_S", 0.0)
    for verb in ("list", "watch"):
        kubernetes.api.fail(429, times=1000, verb=verb, resource="pods")
    kubernetes.api.drop_streams()
    watch = engine._watches["run"]
    wait_until(lambda: watch.error and watch.error.status == 429, "the watch to be refused")
    with pytest.raises(EngineError, match="it is overloaded"):
        engine.cancel([id])
    wait_until(lambda: not kubernetes.pods(), "the pod to be deleted")
    kubernetes.api.faults.clear()


def test_an_interrupted_submission_leaves_no_pods(
    kubernetes: Cluster, engine: KubernetesEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knew of them, and those without a Secret waited for it for ever."""

    def interrupted(manifest: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(engine._api, "create_secret", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.submit(JobSpec(SLEEP.command, stdin=SECRET.encode()), 1, "run", "a")
    wait_until(lambda: not kubernetes.pods(), "what had been created to be removed")


def test_a_pod_whose_launcher_died_before_it_made_the_secret_is_removed_by_the_next_one(
    kubernetes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for its Secret for ever, with its share of a node."""
    killed = KubernetesEngine(kubernetes.options())
    left = manifests.job_name("run", "a", 0)
    monkeypatch.setattr(killed._api, "create_secret", lambda manifest: sys.exit("killed"))
    with pytest.raises(SystemExit):
        killed._create(JobSpec(SLEEP.command, stdin=SECRET.encode()), left, "run", "a")
    wait_until(lambda: kubernetes.pods()[0]["status"].get("startTime"), "a node to begin with the pod")
    for age_s, is_left in ((3600.0, True), (0.0, False)):
        monkeypatch.setattr("ropewalk.engines.kubernetes._FORGOTTEN_S", age_s)
        with engine_of(kubernetes) as engine:
            new = engine.submit(SLEEP, 1, f"run-{age_s:g}", "a")
            names = [pod["metadata"]["name"] for pod in kubernetes.pods()]
            assert (left in names) is is_left
            engine.cancel(new)
    killed.close()


def test_an_ended_pod_and_its_credentials_are_left_until_they_are_removed(kubernetes: Cluster) -> None:
    killed = KubernetesEngine(kubernetes.options())  # keeps its watch, and never closes
    spec = JobSpec(SLEEP.command, stdin=SECRET.encode())
    ended, alive = killed.submit(spec, 2, "run", "a")
    wait_until(lambda: is_running(killed, ended, alive), "both to run")
    kubernetes.kubelet.evict(NAMESPACE, ended, "The node was low on resource: memory.")
    with engine_of(kubernetes) as engine, engine_of(kubernetes, user="somebody-else") as other:
        assert engine.remains() == {"run": [f"pod {ended} (Failed) with its Secret"]} and not other.remains()
        engine.remove_remains("run")
        assert not engine.remains() and engine.runs() == {"run": [alive]}
        assert kubernetes.secrets() == [alive]
        engine.cancel([alive])
    assert not kubernetes.secrets()
    killed.close()


def test_runs_of_others_in_the_same_namespace_are_not_ours(kubernetes: Cluster) -> None:
    with engine_of(kubernetes, user="ada") as ada, engine_of(kubernetes, user="bob") as bob:
        ids = ada.submit(SLEEP, 1, "run-of-ada", "a")
        assert ada.runs() == {"run-of-ada": ids}
        assert bob.runs() == {}
        ada.cancel(ids)
        assert ada.runs() == {}


def test_a_pod_of_others_that_is_labelled_like_ours_without_a_run_hides_none_of_ours(kubernetes: Cluster) -> None:
    """Whoever may make pods in the namespace ended `ropewalk ps`, `stop` and `doctor` of its other users with it."""
    spec = {"containers": [{"name": "agent", "image": "other", "command": ["serve"]}]}
    with engine_of(kubernetes, user="ada") as ada:
        [id] = ada.submit(SLEEP, 1, "run-of-ada", "a")
        for name, phase in (("trap-1", "Running"), ("trap-2", "Failed")):
            labels = {manifests.MANAGED_BY: "ropewalk", manifests.USER: "ada"}
            trap = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
            kubernetes.store.create("pods", NAMESPACE, trap)
            kubernetes.store.update("pods", NAMESPACE, name, lambda pod, phase=phase: pod["status"].update(phase=phase))
        assert ada.runs() == {"run-of-ada": [id]} and not ada.remains()
        ada.cancel([id])


def test_ids_are_names_of_our_pods_only(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    spec = {"containers": [{"name": "agent", "image": "other", "command": ["serve"]}]}
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "database"}, "spec": spec}
    kubernetes.store.create("pods", NAMESPACE, foreign)
    assert engine.poll(["database"])["database"].state is JobState.LOST
    engine.cancel(["database", "../secrets/x", "no such pod"])
    assert len(kubernetes.pods()) == 1


# --- check ------------------------------------------------------------------------------------------------------------


def test_check_finds_nothing_wrong_and_leaves_nothing(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    findings = engine.check()
    assert all(finding.ok for finding in findings), findings
    words = " ".join(f"{finding.what}: {finding.detail}" for finding in findings)
    for expected in ("v1.36.0-fake", NAMESPACE, "2 ready", "ropewalk:test", "clock"):
        assert expected in words
    assert not kubernetes.pods()


def test_check_names_what_is_wrong_and_how_to_mend_it(kubernetes: Cluster) -> None:
    rules = [{"verbs": ["create", "list", "watch"], "resources": ["pods"]}]
    config = kubernetes.kubeconfig(kubernetes.add_user("mouse", rules))
    kubernetes.api.clock_skew_s = 3600
    kubernetes.store.quota = {"pods": 0}
    with engine_of(kubernetes, kubeconfig=str(config)) as engine:
        wrong = {finding.what: finding.detail for finding in engine.check() if not finding.ok}
    assert re.search(r"3[56]\d\d s behind.*NTP", wrong["clock"])
    rights = wrong[f"rights in namespace {NAMESPACE}"]
    assert "delete pods, get pods/log, create secrets, delete secrets" in rights and "rbac.yaml" in rights
    assert "exceeded quota" in wrong["a pod like those of agents is accepted"]


def test_check_and_hosts_speak_of_nodes(kubernetes: Cluster, engine: KubernetesEngine) -> None:
    assert engine.hosts() == ["10.77.0.251", "10.77.0.252"]
    assert engine.per_job(Resources(cpus=9)) == 10
    with engine_of(kubernetes, node_selector={"disk": "ssd"}) as picky:
        wrong = [finding.detail for finding in picky.check() if not finding.ok]
        assert wrong and "node_selector" in wrong[0]
    config = kubernetes.kubeconfig(kubernetes.add_user("mouse", []))
    with engine_of(kubernetes, kubeconfig=str(config)) as blind:
        assert blind.per_job(Resources()) == 1
        assert blind.hosts() == [], "loopback leads to nobody"
    with engine_of(kubernetes, kubeconfig=str(config), per_pod=6) as told:
        assert told.per_job(Resources()) == 6
