"""From what processes ask for to what jobs ask a cluster for."""

from __future__ import annotations

import pytest

from ropewalk.compat.meta import meta, resources_of
from ropewalk.engines import kubernetes_manifests
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.resources import Resources
from ropewalk.engines.slurm_script import SlurmOptions, job_flags
from ropewalk.processes.sizing import Share, fits, shares


@meta(cpus=2, gpus=1, memory="8Gi")
def simulate() -> None:
    """Nothing."""


NEEDS = resources_of(simulate) or Resources()


def jobs(count: int, largest: int) -> list[JobSpec]:
    """The jobs for so many processes of which so many fit into one."""
    wanted = shares([NEEDS] * count, {NEEDS: largest}, [], hosts=None, most=None, now=0)
    return [JobSpec(["python"], resources=share.resources) for share in wanted]


def test_what_a_function_needs_reaches_the_script_of_slurm() -> None:
    (three, two) = jobs(5, largest=3)
    assert {"--cpus-per-task=6", "--gres=gpu:3", "--mem=24576M"} <= set(job_flags(SlurmOptions(), three))
    assert {"--cpus-per-task=4", "--gres=gpu:2", "--mem=16384M"} <= set(job_flags(SlurmOptions(), two))


def test_what_a_function_needs_reaches_the_pod_of_kubernetes() -> None:
    (one,) = jobs(1, largest=3)
    made = kubernetes_manifests.pod(KubernetesOptions(image="i"), one, "name", {}, "run")
    assert made["spec"]["containers"][0]["resources"] == {
        "requests": {"cpu": "2000m", "memory": str(8 << 30), "nvidia.com/gpu": "1"},
        "limits": {"memory": str(8 << 30), "nvidia.com/gpu": "1"},
    }


def test_processes_of_two_kinds_get_jobs_of_two_kinds() -> None:
    small = Resources()
    wanted = shares([NEEDS, small, small], {NEEDS: 2, small: 8}, [], hosts=None, most=None, now=0)
    assert wanted == [Share(1, NEEDS), Share(2, small)]


def test_processes_are_spread_evenly_over_the_jobs_that_they_need() -> None:
    assert [job.resources.gpus for job in jobs(9, largest=4)] == [3, 3, 3]


@pytest.mark.parametrize(("hosted", "room"), [([], True), ([NEEDS], True), ([NEEDS, Resources()], False)])
def test_a_process_of_another_kind_takes_its_part_of_a_job(hosted: list[Resources], room: bool) -> None:
    assert fits(Share(2, NEEDS), hosted, NEEDS, {NEEDS: 2, Resources(): 4}) is room


def test_jobs_that_are_under_way_count() -> None:
    assert shares([NEEDS] * 3, {NEEDS: 2}, [Share(2, NEEDS)], hosts=None, most=None, now=1) == [Share(1, NEEDS)]
    assert shares([NEEDS] * 3, {NEEDS: 2}, [], hosts=None, most=1, now=0) == [Share(2, NEEDS)]
    assert shares([NEEDS] * 3, {NEEDS: 2}, [], hosts=3, most=None, now=1) == [Share(2, NEEDS)] * 2
