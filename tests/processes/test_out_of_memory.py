"""Evidence of memory kills, read from a pretended /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.processes.out_of_memory import MemoryKills, RecentKills, count_kills, evidence


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_kills_are_counted_in_both_versions_of_control_groups_and_on_the_host(tmp_path: Path) -> None:
    write(tmp_path, "proc/vmstat", "nr_free_pages 5\noom_kill 7\n")
    write(tmp_path, "proc/self/cgroup", "9:cpu,memory:/job/1\n4:cpuset:/\n0::/slice/scope\n")
    write(tmp_path, "sys/fs/cgroup/memory/job/1/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    write(tmp_path, "sys/fs/cgroup/slice/scope/memory.events", "low 0\nhigh 3\nmax 9\noom 4\noom_kill 3\n")
    assert count_kills(tmp_path) == MemoryKills(cgroup=5, host=7)


@pytest.mark.parametrize("vmstat", ["", "oom_kill\n", "oom_kill many\n"])
def test_what_cannot_be_read_counts_nothing(tmp_path: Path, vmstat: str) -> None:
    write(tmp_path, "proc/vmstat", vmstat)
    assert count_kills(tmp_path) == MemoryKills(0, 0)
    assert count_kills(tmp_path / "nothing") == MemoryKills(0, 0)


def test_evidence_names_the_narrower_limit_and_is_empty_without_a_kill() -> None:
    before = MemoryKills(cgroup=1, host=4)
    assert evidence(before, before) == ""
    assert "cgroup" in evidence(before, MemoryKills(2, 5))
    assert evidence(before, MemoryKills(1, 5)).startswith("perhaps: the host's kernel killed a process")


def test_a_kill_of_long_ago_is_no_evidence() -> None:
    """Another program was out of memory in the morning, and a process that a user killed in the evening was blamed."""
    recent = RecentKills(MemoryKills(0, 4))
    recent.note(MemoryKills(0, 5))
    recent.note(MemoryKills(0, 5))
    assert recent.take(MemoryKills(0, 5)) == ""


def test_a_kill_that_is_noticed_after_the_next_reading_is_evidence_once() -> None:
    recent = RecentKills(MemoryKills(0, 4))
    recent.note(MemoryKills(0, 5))
    assert recent.take(MemoryKills(0, 5)).startswith("perhaps")
    assert recent.take(MemoryKills(0, 5)) == ""
    recent.note(MemoryKills(0, 5))
    assert recent.take(MemoryKills(1, 6)) == "the memory limit of the job's cgroup was reached (oom_kill rose)"


def test_the_counters_of_this_machine_can_be_read() -> None:
    assert count_kills().host >= 0
