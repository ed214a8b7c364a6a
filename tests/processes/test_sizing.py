"""From what processes ask for to what jobs ask a cluster for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from ropewalk.compat.requires import requires, resources_of
from ropewalk.engines import kubernetes_manifests
from ropewalk.engines.engine import HostSlots, JobSpec
from ropewalk.engines.kubernetes_options import KubernetesOptions
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.engines.slurm_script import SlurmOptions, job_flags
from ropewalk.processes.sizing import Share, described, fits, shares, shares_of_places, suits, too_many


@requires(cpus=2, gpus=1, memory="8Gi")
def simulate() -> None:
    """Nothing."""


NEEDS = resources_of(simulate) or Resources()


def jobs(count: int, largest: int) -> list[JobSpec]:
    """The jobs for `count` processes, of which `largest` fit into one."""
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


CPU = Resources()
LARGE = Resources(memory="20Gi")


@pytest.mark.parametrize(
    ("share", "hosted", "another", "room"),
    [
        (Share(2, NEEDS), [], NEEDS, True),
        (Share(2, NEEDS), [NEEDS], NEEDS, True),
        (Share(2, NEEDS), [NEEDS, NEEDS], NEEDS, False),
        (Share(2, NEEDS), [NEEDS, CPU], NEEDS, False),  # of four CPUs, three are taken
        (Share(2, NEEDS), [NEEDS, CPU], CPU, True),
        (Share(2, NEEDS), [], Resources(gpus=3), False),
        (Share(2, NEEDS), [], LARGE, False),  # it has 16 GiB
        (Share(8, CPU), [], NEEDS, False),  # no GPU, however many CPUs there are
        (Share(8, CPU), [], LARGE, True),  # a job that names no memory
        (Share(2, Resources(memory="8Gi")), [Resources(memory="16Gi")], CPU, True),  # which asks for no memory
        (Share(2, Resources(memory="8Gi")), [CPU], Resources(memory=(16 << 30) + 1), False),
        (Share(3, Resources(cpus=0.1)), [Resources(cpus=0.1)] * 2, Resources(cpus=0.1), True),
        (Share(None, CPU), [CPU] * 99, NEEDS, True),
    ],
)
def test_a_job_has_room_for_what_it_asked_its_engine_for(
    share: Share, hosted: list[Resources], another: Resources, room: bool
) -> None:
    assert fits(share, hosted, another) is room


@pytest.mark.parametrize(
    ("share", "hosted", "leaving", "another", "room"),
    [
        (Share(2, CPU), [CPU], [CPU], CPU, True),
        (Share(2, CPU), [CPU, CPU], [CPU], CPU, False),
        (Share(1, Resources(gpus=1)), [], [Resources(gpus=1)], Resources(gpus=1), False),
        (Share(1, Resources(gpus=1)), [], [CPU], Resources(gpus=1), True),
        (Share(1, LARGE), [], [LARGE], LARGE, False),
    ],
)
def test_what_leaves_shares_its_cpus_but_neither_its_gpus_nor_its_memory(
    share: Share, hosted: list[Resources], leaving: list[Resources], another: Resources, room: bool
) -> None:
    assert fits(share, hosted, another, leaving) is room


@pytest.mark.parametrize(
    ("share", "process", "may"),
    [
        (Share(2, NEEDS), CPU, False),
        (Share(2, NEEDS), Resources(gpus=1), True),
        (Share(2, CPU), NEEDS, False),
        (Share(2, CPU), Resources(cpus=2), True),
        (Share(None, CPU), NEEDS, True),
    ],
)
def test_gpus_are_left_to_those_who_need_them(share: Share, process: Resources, may: bool) -> None:
    assert suits(share, process) is may


def test_jobs_that_are_under_way_count() -> None:
    assert shares([NEEDS] * 3, {NEEDS: 2}, [Share(2, NEEDS)], hosts=None, most=None, now=1) == [Share(1, NEEDS)]
    assert shares([NEEDS] * 3, {NEEDS: 2}, [], hosts=None, most=1, now=0) == [Share(2, NEEDS)]
    assert shares([NEEDS] * 3, {NEEDS: 2}, [], hosts=3, most=None, now=1) == [Share(2, NEEDS)] * 2


def test_hosts_that_are_asked_for_are_made_for_the_first_that_waits() -> None:
    for now, num in ((1, 2), (3, 0), (4, 0)):
        wanted = shares([NEEDS, CPU, LARGE], {NEEDS: 2, CPU: 4, LARGE: 1}, [], hosts=3, most=None, now=now)
        assert wanted == [Share(2, NEEDS)] * num
    assert dealt([ONE, Resources(cpus=3)], UNEVEN, hosts=2) == [("n1", 3), ("n2", 1)]


def test_a_job_without_a_limit_asks_its_engine_for_what_one_process_needs() -> None:
    assert Share(None, NEEDS).resources == NEEDS


def test_what_a_process_asks_for_is_told_in_words() -> None:
    assert described(NEEDS) == "2 CPUs, 1 GPU, 8,589,934,592 bytes of memory"
    assert described(Resources(gpus=2)) == "1 CPU, 2 GPUs"


def test_there_are_no_more_jobs_than_there_may_be_though_some_are_there_already() -> None:
    for now in (1, 2):
        assert shares([NEEDS] * 6, {NEEDS: 2}, [], hosts=None, most=1, now=now) == []
    assert shares([NEEDS] * 6, {NEEDS: 2}, [], hosts=None, most=4, now=2) == [Share(2, NEEDS)] * 2


def test_a_job_without_a_limit_takes_all_processes_and_is_asked_for_once() -> None:
    def asked(waiting: list[Resources], coming: Sequence[Share] = (), now: int = 0) -> list[Share]:
        return shares(waiting, {CPU: None, LARGE: None, NEEDS: 2}, coming, hosts=None, most=None, now=now)

    assert asked([CPU]) == [Share(None, CPU)]
    assert asked([CPU, CPU, LARGE]) == [Share(None, CPU)]
    assert asked([CPU], now=1) == asked([CPU], [Share(None, CPU)]) == []
    assert asked([CPU, NEEDS]) == [Share(None, CPU), Share(1, NEEDS)]


# --- hosts that are few and of different sizes ------------------------------------------------------------------------

ONE = Resources()
#: What Slurm makes of `-N 2 -n 4`.
UNEVEN = {"n1": HostCapacity(3), "n2": HostCapacity(1)}


def dealt(
    waiting: list[Resources], free: dict[str, HostCapacity], limit: int = 99, coming: Sequence[Share] = (), **facts: Any
) -> list[tuple[str, int | None]]:
    """Places with the number of processes that their agents have room for."""
    per_job = dict.fromkeys(waiting, limit)
    facts = {"hosts": None, "now": 0, **facts}
    return [(share.place, share.slots) for share in shares_of_places(waiting, per_job, coming, free=free, **facts)]


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [("n1", 1)]),
        (3, [("n1", 3)]),
        (4, [("n1", 3), ("n2", 1)]),
        (6, [("n1", 3), ("n2", 1)]),
    ],
)
def test_each_host_gets_a_share_that_it_holds(count: int, expected: list[tuple[str, int]]) -> None:
    assert dealt([ONE] * count, UNEVEN) == expected


def test_few_hosts_are_used_and_these_evenly() -> None:
    three = {"a": HostCapacity(4), "b": HostCapacity(16), "c": HostCapacity(16)}
    assert dealt([ONE] * 10, three) == [("b", 10)]
    assert dealt([ONE] * 20, three) == [("b", 10), ("c", 10)]
    assert dealt([ONE] * 35, three) == [("b", 15), ("c", 16), ("a", 4)]
    assert dealt([ONE] * 8, three, limit=3) == [("b", 3), ("b", 3), ("b", 2)]


def test_a_host_holds_what_its_scarcest_thing_allows() -> None:
    two = {"a": HostCapacity(16, 1, 64 << 30), "b": HostCapacity(4, 4, 16 << 30)}
    assert dealt([Resources(gpus=1)] * 5, two) == [("b", 4), ("a", 1)]
    assert dealt([Resources(memory="16Gi")] * 5, two) == [("a", 4), ("b", 1)]
    assert dealt([Resources(cpus=0.5)] * 40, two) == [("a", 32), ("b", 8)]
    assert dealt([Resources(cpus=17)], two) == []


def test_small_processes_fit_in_beside_large_ones() -> None:
    assert dealt([ONE, Resources(cpus=3)], UNEVEN) == [("n1", 1), ("n2", 1)]
    assert dealt([ONE, Resources(cpus=2)] * 2, {"a": HostCapacity(4), "b": HostCapacity(2)}) == [("a", 2), ("b", 2)]
    rooms = {"a": HostCapacity(4, 0, 16 << 30), "b": HostCapacity(4, 0, 8 << 30)}
    assert dealt([Resources(memory="8Gi"), Resources(memory="16Gi")], rooms) == [("a", 1), ("b", 1)]


def test_agents_under_way_take_theirs_and_the_rest_goes_where_room_is_left() -> None:
    coming = [Share(2, ONE, "n1")]
    assert dealt([ONE] * 2, {"n1": HostCapacity(1), "n2": HostCapacity(1)}, coming=coming) == []
    assert dealt([ONE] * 4, {"n1": HostCapacity(1), "n2": HostCapacity(1)}, coming=coming) == [("n1", 1), ("n2", 1)]


def test_hosts_that_are_asked_for_are_whole_ones() -> None:
    assert dealt([ONE], UNEVEN, hosts=2) == [("n1", 3), ("n2", 1)]
    assert dealt([ONE], {"n2": HostCapacity(1)}, hosts=2, now=1) == [("n2", 1)]
    assert dealt([ONE], UNEVEN, hosts=2, now=2) == dealt([ONE], UNEVEN, hosts=2, now=3) == []


_OF_8, _OF_4 = Resources(memory="8Gi"), Resources(memory="4Gi")


@pytest.mark.parametrize(
    ("processes", "words"),
    [
        ([ONE] * 4, ""),
        ([ONE] * 5, "the two is too small for 5 processes of 1 CPU: it has room for 4. Ask"),
        ([Resources(cpus=2)], ""),
        ([Resources(cpus=2)] * 2, "for 2 processes of 2 CPUs: it has room for 1"),
        ([Resources(cpus=0.5)] * 8, ""),
        ([Resources(cpus=3), ONE], ""),
        ([Resources(cpus=3), ONE, ONE], "1 process of 3 CPUs and 2 processes of 1 CPU: together .* 5 CPUs, of 4"),
        ([Resources(gpus=1)] * 3, "it has room for 0"),
        ([Resources(memory="6Gi")] * 2, "room for 1"),
        ([Resources(cpus=2)] * 2 + [ONE], "2 CPUs and 1 process of 1 CPU: it has room for 1 of 2 CPUs. Ask"),
        ([_OF_8, _OF_4, ONE, ONE], ""),
        ([_OF_8, _OF_4, _OF_4], r"together they ask for 1.71799e\+10 bytes of memory, of 1.28849e\+10. Ask"),
        ([_OF_8, _OF_4, Resources(memory=1), ONE], "bytes of memory, of"),
    ],
)
def test_more_than_there_is_room_for_is_refused_in_words(processes: list[Resources], words: str) -> None:
    places = HostSlots({"n1": HostCapacity(3, 0, 8 << 30), "n2": HostCapacity(1, 0, 4 << 30)}, "the two", "or for more")
    said = too_many(processes, places)
    assert re.search(words, said) if words else not said
    assert not said or said.endswith("or for more"), "what to do about it"


def test_memory_is_not_counted_where_a_host_names_none() -> None:
    places = HostSlots({"n1": HostCapacity(3), "n2": HostCapacity(1, 0, 4 << 30)}, "the two", "or for more")
    assert too_many([Resources(memory="100Gi")], places) == ""


def test_more_hosts_than_there_are_are_refused() -> None:
    assert "the two has fewer than the 3 hosts" in too_many([ONE], HostSlots(UNEVEN, "the two", "or for more"), 3)
    assert too_many([ONE], HostSlots(UNEVEN, "the two", "or for more"), 2) == ""
