"""What the pod security standard `restricted` finds wrong with a pod, in the words of the real admission controller.

The rules are those of https://kubernetes.io/docs/concepts/security/pod-security-standards, both of `baseline` and of
`restricted`, as far as they are about what a pod can say.
"""

from __future__ import annotations

from typing import Any

_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
}  # fmt: skip
_PROFILES = ("RuntimeDefault", "Localhost")


def violations(spec: dict[str, Any]) -> list[str]:
    """Return what is wrong with the spec of a pod; nothing if it may run in a namespace that enforces `restricted`."""
    found = [f"{key} is not allowed" for key in ("hostNetwork", "hostPID", "hostIPC") if spec.get(key)]
    for volume in spec.get("volumes", []):
        kinds = set(volume) - {"name"}
        if not kinds <= _VOLUMES:
            found.append(f'restricted volume types (volume "{volume["name"]}" uses {", ".join(sorted(kinds))})')
    pod = spec.get("securityContext", {})
    if pod.get("sysctls"):
        found.append("forbidden sysctls")
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        found += _of_container(container, pod)
    return found


def _of_container(container: dict[str, Any], pod: dict[str, Any]) -> list[str]:
    name, own = container["name"], container.get("securityContext", {})
    both = pod | own
    capabilities = own.get("capabilities", {})
    wrong = {
        f'privileged (container "{name}" must not set securityContext.privileged=true)': own.get("privileged"),
        f'hostPort (container "{name}" uses a hostPort)': any(
            "hostPort" in port for port in container.get("ports", [])
        ),
        f'procMount (container "{name}")': own.get("procMount", "Default") != "Default",
        f'allowPrivilegeEscalation != false (container "{name}" must set '
        "securityContext.allowPrivilegeEscalation=false)": own.get("allowPrivilegeEscalation") is not False,
        f'unrestricted capabilities (container "{name}" must set securityContext.capabilities.drop=["ALL"])': (
            "ALL" not in capabilities.get("drop", []) or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"}
        ),
        f'runAsNonRoot != true (pod or container "{name}" must set securityContext.runAsNonRoot=true)': (
            both.get("runAsNonRoot") is not True
        ),
        f'runAsUser=0 (container "{name}" must not set runAsUser=0)': both.get("runAsUser") == 0,
        f'seccompProfile (pod or container "{name}" must set securityContext.seccompProfile.type to "RuntimeDefault" '
        'or "Localhost")': both.get("seccompProfile", {}).get("type") not in _PROFILES,
    }
    return [words for words, is_wrong in wrong.items() if is_wrong]
