"""The state behind the fake API server: objects by name, their versions, every change, quotas and owners.

It does what the real one does to the objects that the engine uses, and refuses in the same words. No HTTP here.
"""

from __future__ import annotations

import base64
import copy
import datetime
import re
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.lab import pod_security

VERSION = "1.36"
Object = dict[str, Any]
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_KEY = re.compile(r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_QUANTITY = re.compile(r"([0-9.]+)(m|k|M|G|T|Ki|Mi|Gi|Ti)?")
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_MOST_SECRET_BYTES = 1 << 20
OVER = ("Succeeded", "Failed")


class Refused(Exception):
    """An answer that is no success: HTTP status, the API's reason, the message."""

    def __init__(self, code: int, reason: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.retry_after_s = retry_after_s

    def status(self) -> Object:
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }


@dataclass(frozen=True)
class Change:
    """One event, as watches tell it."""

    version: int
    kind: str
    namespace: str
    type: str
    object: Object


@dataclass
class Store:
    """Objects by (kind, namespace, name). All methods lock."""

    namespaces: set[str] = field(default_factory=lambda: {"default", "kube-system"})
    restricted: set[str] = field(default_factory=set)
    """Namespaces that enforce the pod security standard `restricted`."""
    service_accounts: set[str] = field(default_factory=lambda: {"default"})
    priority_classes: set[str] = field(default_factory=lambda: {"system-node-critical"})
    quota: Mapping[str, float] | None = None
    """For each namespace: pods, requests.cpu, requests.memory."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    oldest: int = 0
    """Changes up to this version are forgotten."""
    version: int = 1000
    seen_pods: list[Object] = field(default_factory=list)
    """Every pod that was ever created, for a look at what was in it."""

    def create(self, kind: str, namespace: str, body: Object, dry_run: bool = False) -> Object:
        with self.changed:
            made = copy.deepcopy(body)
            self._admit(kind, namespace, made)
            key = kind, namespace, made["metadata"]["name"]
            if key in self.objects:
                being = "object is being deleted: " if "deletionTimestamp" in self.objects[key]["metadata"] else ""
                raise Refused(409, "AlreadyExists", f'{being}{kind} "{key[2]}" already exists')
            made["metadata"] |= {"namespace": namespace, "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if kind == "pods":
                made["spec"].setdefault("serviceAccountName", "default")
                made["status"] = {"phase": "Pending"}
                self.seen_pods.append(copy.deepcopy(made))
            if not dry_run:
                self._put(key, made, "ADDED")
            return copy.deepcopy(made)

    def get(self, kind: str, namespace: str, name: str) -> Object:
        with self.changed:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise Refused(404, "NotFound", f'{kind} "{name}" not found')
            return copy.deepcopy(found)

    def list(self, kind: str, namespace: str, selector: str) -> tuple[list[Object], int]:
        matches = matcher(selector)
        with self.changed:
            found = [
                copy.deepcopy(each)
                for (its_kind, its_namespace, _), each in sorted(self.objects.items())
                if its_kind == kind and its_namespace == namespace and matches(each)
            ]
            return found, self.version

    def update(self, kind: str, namespace: str, name: str, change: Callable[[Object], None]) -> bool:
        """Change an object in place; whether it was still there."""
        with self.changed:
            key = kind, namespace, name
            found = self.objects.get(key)
            if found is None:
                return False
            changed = copy.deepcopy(found)
            change(changed)
            if changed != found:
                self._put(key, changed, "MODIFIED")
            return True

    def delete_pod(self, namespace: str, name: str, grace_s: int | None) -> Object:
        """As the API does it: at once if nobody has to be asked, else by telling its node first."""
        with self.changed:
            pod = self.get("pods", namespace, name)
            if grace_s is None:
                grace_s = int(pod["spec"].get("terminationGracePeriodSeconds", 30))
            placed = pod["spec"].get("nodeName")
            if grace_s == 0 or not placed or pod["status"]["phase"] in OVER:
                return self.remove("pods", namespace, name)
            earlier = pod["metadata"].get("deletionGracePeriodSeconds", grace_s)

            def stamp(changed: Object) -> None:
                changed["metadata"]["deletionTimestamp"] = now(grace_s)
                changed["metadata"]["deletionGracePeriodSeconds"] = min(grace_s, earlier)

            self.update("pods", namespace, name, stamp)
            return self.get("pods", namespace, name)

    def evict_pod(self, namespace: str, name: str, grace_s: int | None) -> Object:
        """As the Eviction API: like a deletion, with the reason in the pod's conditions; no budget forbids it here."""
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        }

        def told(changed: Object) -> None:
            changed["status"]["conditions"] = [*changed["status"].get("conditions", []), condition]

        with self.changed:
            self.update("pods", namespace, name, told)
            self.delete_pod(namespace, name, grace_s)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}

    def create_namespace(self, body: Object) -> Object:
        with self.changed:
            name = body["metadata"]["name"]
            self.namespaces.add(name)
            if body["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce") == "restricted":
                self.restricted.add(name)
            return body

    def delete_namespace(self, name: str) -> Object:
        with self.changed:
            self.namespaces.discard(name)
            self.restricted.discard(name)
            for kind, namespace, each in list(self.objects):
                if namespace == name and (kind, namespace, each) in self.objects:
                    self.remove(kind, namespace, each)
            return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def remove(self, kind: str, namespace: str, name: str) -> Object:
        with self.changed:
            removed = self.get(kind, namespace, name)
            del self.objects[kind, namespace, name]
            self._note(kind, namespace, "DELETED", removed)
            # The garbage collector, which in a real cluster comes a moment later.
            uid = removed["metadata"]["uid"]
            for its_kind, its_namespace, its_name in list(self.objects):
                owners = self.objects[its_kind, its_namespace, its_name]["metadata"].get("ownerReferences", [])
                if owners and all(owner["uid"] == uid for owner in owners):
                    self.remove(its_kind, its_namespace, its_name)
            return removed

    def compact(self) -> None:
        """Forget all changes: who watches from an older version is told 410."""
        with self.changed:
            self.version += 1
            self.oldest = self.version
            self.changes.clear()
            self.changed.notify_all()

    def _put(self, key: tuple[str, str, str], made: Object, type: str) -> None:
        self.objects[key] = made
        self._note(key[0], key[1], type, made)

    def _note(self, kind: str, namespace: str, type: str, changed: Object) -> None:
        self.version += 1
        changed["metadata"]["resourceVersion"] = str(self.version)
        self.changes.append(Change(self.version, kind, namespace, type, copy.deepcopy(changed)))
        self.changed.notify_all()

    # --- what is refused ----------------------------------------------------------------------------------------------

    def _admit(self, kind: str, namespace: str, body: Object) -> None:
        if namespace not in self.namespaces:
            raise Refused(404, "NotFound", f'namespaces "{namespace}" not found')
        validate(body)
        name = body["metadata"].get("name", "")
        labels = body["metadata"].get("labels", {})
        wrong = [key for key, value in labels.items() if not _KEY.fullmatch(key) or not _LABEL.fullmatch(value)]
        if not _NAME.fullmatch(name) or wrong:
            raise Refused(422, "Invalid", f'{kind} "{name}" is invalid: name or labels {wrong}')
        if kind == "secrets":
            size = sum(len(base64.b64decode(value, validate=True)) for value in body.get("data", {}).values())
            if size > _MOST_SECRET_BYTES:
                raise Refused(
                    422, "Invalid", f'Secret "{name}" is invalid: data: Too long: may not be more than 1048576'
                )
        if kind == "pods":
            self._admit_pod(namespace, name, body["spec"])

    def _admit_pod(self, namespace: str, name: str, spec: Object) -> None:
        forbidden = f'pods "{name}" is forbidden: '
        account = spec.get("serviceAccountName", "default")
        if account not in self.service_accounts:
            raise Refused(
                403,
                "Forbidden",
                f"{forbidden}error looking up service account {namespace}/{account}: "
                f'serviceaccount "{account}" not found',
            )
        priority = spec.get("priorityClassName")
        if priority and priority not in self.priority_classes:
            raise Refused(403, "Forbidden", f"{forbidden}no PriorityClass with name {priority} was found")
        mounted = {mount["name"] for container in spec["containers"] for mount in container.get("volumeMounts", [])}
        unknown = mounted - {volume["name"] for volume in spec.get("volumes", [])}
        if unknown:
            raise Refused(422, "Invalid", f'Pod "{name}" is invalid: volumeMounts[0].name: Not found: {unknown}')
        for container in spec["containers"]:
            for resource, limit in container.get("resources", {}).get("limits", {}).items():
                if quantity(container["resources"].get("requests", {}).get(resource, limit)) > quantity(limit):
                    raise Refused(422, "Invalid", f'Pod "{name}" is invalid: requests: must be <= {resource} limit')
        if namespace in self.restricted and (wrong := pod_security.violations(spec)):
            raise Refused(403, "Forbidden", f'{forbidden}violates PodSecurity "restricted:latest": {", ".join(wrong)}')
        if self.quota is not None:
            self._admit_by_quota(namespace, forbidden, spec, self.quota)
        for (kind, its_namespace, _), each in self.objects.items():
            if kind == "resourcequotas" and its_namespace == namespace:
                hard = {resource: quantity(most) for resource, most in each["spec"]["hard"].items()}
                self._admit_by_quota(namespace, forbidden, spec, hard)

    def _admit_by_quota(self, namespace: str, forbidden: str, spec: Object, quota: Mapping[str, float]) -> None:
        pods = [
            each["spec"]
            for (kind, its_namespace, _), each in self.objects.items()
            if kind == "pods" and its_namespace == namespace and each["status"]["phase"] not in OVER
        ]
        for resource, most in quota.items():
            asked = requests(spec).get(resource.removeprefix("requests."), 0) if resource != "pods" else 1
            used = sum(requests(each).get(resource.removeprefix("requests."), 0) for each in pods)
            used = len(pods) if resource == "pods" else used
            if not asked and "/" in resource:  # who asks for none of an extended resource is not concerned
                continue
            if not asked:
                raise Refused(403, "Forbidden", f"{forbidden}failed quota: compute: must specify {resource}")
            if used + asked > most:
                raise Refused(
                    403,
                    "Forbidden",
                    f"{forbidden}exceeded quota: compute, requested: {resource}={asked:g}, "
                    f"used: {resource}={used:g}, limited: {resource}={most:g}",
                )


def validate(body: Object) -> None:
    """Check an object against the published schema, where unknown fields are errors."""
    import kubernetes_validate  # an extra; the fixture says so where it is missing

    try:
        kubernetes_validate.validate(body, VERSION, strict=True)
    except kubernetes_validate.ValidationError as error:
        where = ".".join(str(part) for part in error.path)
        raise Refused(422, "Invalid", f"{body.get('kind')} is invalid: {where}: {error.message[:500]}") from error


def requests(spec: Object) -> dict[str, float]:
    """What all containers of a pod ask for together."""
    total: dict[str, float] = {}
    for container in spec["containers"]:
        for resource, amount in container.get("resources", {}).get("requests", {}).items():
            total[resource] = total.get(resource, 0) + quantity(amount)
    return total


def quantity(text: str) -> float:
    match = _QUANTITY.fullmatch(str(text))
    if match is None:
        raise Refused(400, "BadRequest", f"quantities must match the regular expression: {text!r}")
    return float(match[1]) * _UNITS.get(match[2] or "", 1)


def matcher(selector: str) -> Callable[[Object], bool]:
    """The equality-based part of label selectors."""
    pairs = [part.partition("=") for part in selector.split(",") if part]
    for key, equals, value in pairs:
        if not equals or not _KEY.fullmatch(key) or not _LABEL.fullmatch(value):
            raise Refused(400, "BadRequest", f"unable to parse requirement: {selector!r}")
    return lambda each: all(each["metadata"].get("labels", {}).get(key) == value for key, _, value in pairs)


def now(plus_s: float = 0) -> str:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=plus_s)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
