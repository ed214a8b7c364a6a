"""Evidence of memory kills: read from a pretended /proc and /sys, and the deaths that are blamed on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.processes.out_of_memory import WINDOW_S, MemoryEvidence, MemoryKills, count_kills

V2 = MemoryKills(cgroup=1, host=4, limit=2)
HOST_ONLY = MemoryKills(host=4)


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_kills_are_counted_in_both_versions_of_control_groups_and_on_the_host(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "nr_free_pages 5\noom_kill 7\n")
    write(tmp_path, "proc/self/cgroup", "9:cpu,memory:/job/1\n4:cpuset:/\n0::/slice/scope\n")
    write(tmp_path, "sys/fs/cgroup/memory/job/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    write(tmp_path, "sys/fs/cgroup/slice/scope/memory.events", "low 0\nhigh 3\nmax 9\noom 4\noom_kill 3\n")
    assert count_kills(tmp_path) == MemoryKills(cgroup=5, host=7, limit=4)


@pytest.mark.parametrize("path", ["job/1", "kubepods-pod7.slice:cri-containerd:4f"], ids=["plain", "with colons"])
def test_on_a_host_with_the_first_version_alone_it_is_not_known_whose_limit_was_met(tmp_path: Path, path: str) -> None:
    write(tmp_path, "proc/self/cgroup", f"4:memory:/{path}\n")
    write(tmp_path, f"sys/fs/cgroup/memory/{path}/memory.oom_control", "oom_kill 2\n")
    assert count_kills(tmp_path) == MemoryKills(cgroup=2)


@pytest.mark.parametrize("vmstat", ["", "oom_kill\n", "oom_kill many\n"])
def test_what_cannot_be_read_is_not_known(tmp_path: Path, vmstat: str) -> None:
    write(tmp_path, "proc/vmstat", vmstat)
    assert count_kills(tmp_path) == MemoryKills()
    assert count_kills(tmp_path / "nothing") == MemoryKills()


def test_without_a_kill_memory_is_not_blamed() -> None:
    for kills in (V2, HOST_ONLY, MemoryKills()):
        assert MemoryEvidence(kills, 0.0).explain(1, kills, 1.0) == ""


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (V2, MemoryKills(2, 5, 3), "out of memory (the memory limit of the job's cgroup was reached)"),
        (V2, MemoryKills(2, 5, 2), "out of memory (of the host, or of a cgroup around that of the job)"),
        (MemoryKills(1), MemoryKills(2), "out of memory (the kernel killed a process of the job's cgroup for it)"),
        (V2, MemoryKills(2, 5), "out of memory (the kernel killed a process of the job's cgroup for it)"),
        (
            V2,
            MemoryKills(host=5),
            "perhaps out of memory (the kernel killed a process of this host for it, and does not say which)",
        ),
        (
            HOST_ONLY,
            MemoryKills(host=5),
            "perhaps out of memory (the kernel killed a process of this host for it, and does not say which)",
        ),
    ],
)
def test_whose_memory_it_was_is_said(before: MemoryKills, after: MemoryKills, words: str) -> None:
    assert MemoryEvidence(before, 0.0).explain(1, after, 1.0) == words


def test_a_kill_in_another_container_of_the_host_is_not_the_cause() -> None:
    # A worker that a person killed was "out of memory (the host ran out of memory)" after a browser had been.
    assert MemoryEvidence(V2, 0.0).explain(1, MemoryKills(cgroup=1, host=9, limit=2), 1.0) == ""


def test_a_counter_that_could_not_be_read_before_says_nothing() -> None:
    assert MemoryEvidence(MemoryKills(), 0.0).explain(1, HOST_ONLY, 1.0) == ""
    assert MemoryEvidence(HOST_ONLY, 0.0).explain(1, MemoryKills(), 1.0) == ""


def test_only_the_readings_of_the_last_seconds_are_kept() -> None:
    memory = MemoryEvidence(V2, 0.0)
    for second in range(100):
        memory.look(V2, float(second))
    assert len(vars(memory)["_readings"]) <= WINDOW_S + 1


def test_a_kill_of_long_ago_is_not_the_cause() -> None:
    memory = MemoryEvidence(V2, 0.0)
    later = MemoryKills(2, 5, 2)
    memory.look(later, 1.0)
    assert memory.explain(1, later, WINDOW_S) != "", "a large process takes a while to end"
    memory = MemoryEvidence(V2, 0.0)
    memory.look(later, 1.0)
    assert memory.explain(1, later, WINDOW_S + 1.0) == ""


def test_one_kill_explains_one_death() -> None:
    memory = MemoryEvidence(V2, 0.0)
    once = MemoryKills(2, 5, 2)
    assert memory.explain(1, once, 1.0) != ""
    assert memory.explain(1, once, 2.0) == "", "the next one was killed by something else"
    assert memory.explain(1, MemoryKills(3, 6, 2), 3.0) != "", "and the next one by the kernel again"
    memory.look(MemoryKills(3, 6, 2), 3.0 + WINDOW_S)
    assert memory.explain(1, MemoryKills(4, 7, 2), 4.0 + WINDOW_S) != "", "what was explained is in the past"


def test_of_two_kills_the_second_explains_the_death_that_is_seen_later() -> None:
    memory = MemoryEvidence(V2, 0.0)
    twice = MemoryKills(3, 6, 2)
    assert [memory.explain(1, twice, now) != "" for now in (1.0, 2.0, 3.0)] == [True, True, False]


def test_a_kill_that_came_with_another_death_is_forgotten_as_soon_without_a_look_in_between() -> None:
    memory = MemoryEvidence(V2, 0.0)
    twice = MemoryKills(3, 6, 2)
    assert memory.explain(1, twice, 1.0) != ""
    assert memory.explain(1, twice, 1.0 + WINDOW_S) == ""


def test_of_more_deaths_than_kills_none_is_certain() -> None:
    words = MemoryEvidence(V2, 0.0).explain(3, MemoryKills(2, 5, 3), 1.0)
    assert words == "perhaps out of memory (the kernel killed 1 of 3 processes that died at once)"


def test_the_counters_of_this_machine_can_be_read() -> None:
    assert (count_kills().host or 0) >= 0
