"""What is sent to Kubernetes: every manifest is valid, says what was asked for, and holds no secret."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.engines import kubernetes_manifests as manifests
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.kubernetes import KubernetesEngine
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError, SettingsError
from tests.lab.kubernetes_kubelet import expand
from tests.lab.kubernetes_store import validate
from tests.lab.plugin import require_packages
from tests.lab.pod_security import violations

SECRET = "a-secret-7d31"
LABELS = manifests.labels("0123456789abcdef", "agent-1", "ada")


def pod(spec: JobSpec | None = None, **options: Any) -> dict[str, Any]:
    require_packages("kubernetes_validate")
    spec = spec or JobSpec(["python3", "-m", "ropewalk.processes.agent"], stdin=SECRET.encode())
    name = manifests.job_name("0123456789abcdef", "agent-1", 0)
    options.setdefault("image", "i")
    made = manifests.pod(KubernetesOptions(**options), spec, name, LABELS, "0123456789abcdef")
    validate(made)
    return made


def container(made: dict[str, Any]) -> dict[str, Any]:
    return made["spec"]["containers"][0]


def test_a_pod_with_every_option_is_valid() -> None:
    spec = JobSpec(["a"], stdin=b"x", time_limit_s=1.5, resources=Resources(2.5, 1, "4Gi"), environment={"A": "b"})
    made = pod(
        spec, namespace="n", service_account="s", automount_service_account_token=True, image_pull_policy="Always",
        image_pull_secrets=["r"], node_selector={"disk": "ssd"}, tolerations=["a", "b:NoSchedule", "c=d:NoExecute:60"],
        priority_class="p", runtime_class="nvidia", labels={"team": "x"}, annotations={"who": "cares a lot"},
        volumes=["pvc:data:/data:ro", "host:/scratch:/scratch", "configmap:c:/c", "secret:s:/s", "empty:10Gi:/e"],
        shm_size="2Gi", run_as_non_root=True, run_as_user=1000, capabilities=["IPC_LOCK"], grace_s=5,
    )  # fmt: skip
    assert made["spec"]["activeDeadlineSeconds"] == 2, "rounded up"
    assert made["spec"]["restartPolicy"] == "Never"
    assert container(made)["resources"] == {
        "requests": {"cpu": "2500m", "memory": "4294967296", "nvidia.com/gpu": "1"},
        "limits": {"memory": "4294967296", "nvidia.com/gpu": "1"},
    }
    assert made["metadata"]["labels"] == {"team": "x", **LABELS}
    assert {"name": "volume-0", "mountPath": "/data", "readOnly": True} in container(made)["volumeMounts"]


def test_nodes_are_avoided_by_a_preference_and_not_by_a_requirement() -> None:
    require_packages("kubernetes_validate")
    made = manifests.pod(KubernetesOptions(image="i"), JobSpec(["a"]), "p", LABELS, "run", ["node-b", "node-a"])
    validate(made)
    affinity = made["spec"]["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    [term] = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["preference"]["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["node-a", "node-b"]}
    ]
    assert "affinity" not in pod()["spec"]


def test_a_pod_is_careful_by_default() -> None:
    spec = pod()["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert container(pod())["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, ["runAsNonRoot != true"]),
        ({"run_as_non_root": True}, []),
        ({"run_as_non_root": True, "run_as_user": 1000, "shm_size": "1Gi", "volumes": ["pvc:data:/data"]}, []),
        ({"run_as_non_root": True, "volumes": ["host:/data:/data"]}, ["restricted volume types"]),
        ({"run_as_non_root": True, "capabilities": ["IPC_LOCK"]}, ["unrestricted capabilities"]),
        ({"run_as_user": 0}, ["runAsNonRoot != true", "runAsUser=0"]),
    ],
)
def test_a_namespace_for_restricted_pods_takes_ours_but_for_what_the_user_asks_for(
    options: dict[str, Any], wrong: list[str]
) -> None:
    found = violations(pod(**options)["spec"])
    assert len(found) == len(wrong) and all(map(str.startswith, found, wrong)), found


def test_lost_nodes_are_tolerated_for_seconds_unless_the_user_says_otherwise() -> None:
    def seconds(made: dict[str, Any]) -> dict[str, int]:
        return {each["key"]: each.get("tolerationSeconds") for each in made["spec"]["tolerations"]}

    assert seconds(pod()) == {"node.kubernetes.io/not-ready": 5, "node.kubernetes.io/unreachable": 5}
    other = pod(tolerations=["node.kubernetes.io/unreachable:NoExecute:60"], lost_node_s=1)
    assert seconds(other) == {"node.kubernetes.io/not-ready": 1, "node.kubernetes.io/unreachable": 60}


def test_pods_with_gpus_may_go_to_nodes_that_are_kept_for_gpus() -> None:
    spec = JobSpec(["a"], resources=Resources(gpus=2))
    made = pod(spec, gpu_resource="amd.com/gpu")
    assert {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in made["spec"]["tolerations"]
    assert container(made)["resources"]["limits"] == {"amd.com/gpu": "2"}


def test_shared_memory_is_not_the_64_mib_of_containers() -> None:
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in pod()["spec"]["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container(pod())["volumeMounts"]


def test_stdin_is_in_the_secret_and_nowhere_in_the_pod() -> None:
    made = pod()
    encoded = base64.b64encode(SECRET.encode()).decode()
    assert SECRET not in json.dumps(made) and encoded not in json.dumps(made)
    (secret,) = manifests.secrets(made["metadata"]["name"], LABELS, SECRET.encode(), "uid-1")
    validate(secret)
    assert secret["data"] == {"stdin": encoded}
    assert secret["metadata"]["ownerReferences"][0]["uid"] == "uid-1"


@pytest.mark.parametrize(("size", "count"), [(2**20, 1), (2**20 + 1, 2), (3 * 2**20, 3), (32 * 2**20, 32)])
def test_a_large_stdin_is_in_as_many_secrets_as_it_takes(size: int, count: int) -> None:
    require_packages("kubernetes_validate")
    stdin = random.Random(size).randbytes(size)
    made = pod(JobSpec(["python3"], stdin=stdin))
    validate(made)
    secrets = manifests.secrets("p", LABELS, stdin, "uid-1")
    data = [base64.b64decode(secret["data"]["stdin"]) for secret in secrets]
    assert b"".join(data) == stdin and len(data) == count and max(map(len, data)) <= 2**20
    names = [secret["metadata"]["name"] for secret in secrets]
    assert names == manifests.secret_names("p", size) == sorted(names), "they are joined by name"
    (volume,) = (volume for volume in made["spec"]["volumes"] if volume["name"] == "stdin")
    sources = volume["projected"]["sources"] if count > 1 else [{"secret": {"name": volume["secret"]["secretName"]}}]
    assert [source["secret"]["name"] for source in sources] == manifests.secret_names(made["metadata"]["name"], size)


def test_a_job_without_stdin_needs_no_shell_and_no_secret() -> None:
    made = pod(JobSpec(["python3", "-c", "pass"]))
    assert container(made)["command"] == ["python3", "-c", "pass"]
    assert not any("secret" in volume for volume in made["spec"]["volumes"])


@given(st.text(st.sampled_from("$()A a'\"\\\n{}"), max_size=12))
def test_nothing_in_a_command_or_a_variable_is_replaced_by_the_cluster(text: str) -> None:
    assert expand(manifests.literal(text), {"A": "replaced"}) == text


@given(st.text(max_size=80), st.text(max_size=80))
def test_names_and_labels_are_valid_whatever_the_ids_are(run: str, request: str) -> None:
    name, labels = manifests.job_name(run, request, 199), manifests.labels(run, request, "Ada Lovelace")
    assert len(name) <= 63 and name == name.lower() and name.replace("-", "").isalnum()
    assert all(
        len(value) <= 63 and value.replace("-", "").isalnum() for value in labels.values() if value != "ropewalk"
    )


def test_names_differ_by_run_request_and_number_and_are_the_same_each_time() -> None:
    ids = [(run, request, index) for run in ("a", "b") for request in ("a", "b") for index in (0, 1)]
    assert len({manifests.job_name(*id) for id in ids}) == len(ids)
    assert manifests.job_name("a", "b", 0) == manifests.job_name("a", "b", 0)


def test_an_image_is_needed_and_the_message_says_how_to_give_one() -> None:
    with pytest.raises(EngineError, match=r"--option image="):
        KubernetesEngine().render(JobSpec(["a"]))


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("image_pull_policy", "Sometimes", "'Always', 'IfNotPresent', 'Never', not"),
        ("image", "a b", "no spaces"),
        ("namespace", "Training", "small letters"),
        ("service_account", "a;rm -rf", "small letters"),
        ("tolerations", "a:Never", "NoSchedule, PreferNoSchedule, NoExecute"),
        ("tolerations", "a:NoSchedule:5", "NoExecute:SECONDS"),
        ("volumes", "data:/data", "pvc:NAME:/at"),
        ("volumes", "pvc:data:data", "pvc:NAME:/at"),
        ("volumes", "host:data:/data", "must begin with /"),
        ("labels", "a=b c", "not a label"),
        ("labels", "ropewalk/run=mine", "set by ropewalk itself"),
        ("node_selector", "a b=c", "not a label"),
        ("grace_s", -1, "at least 0, not -1"),
        ("per_pod", 0, "at least 1, not 0"),
        ("shm_size", "2 apples", "memory must be"),
        ("imge", "a", "did you mean image"),
    ],
)
def test_an_option_that_cannot_be_is_refused_before_anything_is_sent(option: str, value: object, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        KubernetesEngine({option: value})


def test_root_is_refused_where_it_was_excluded() -> None:
    with pytest.raises(SettingsError, match="which is root"):
        KubernetesEngine({"run_as_non_root": True, "run_as_user": 0})
