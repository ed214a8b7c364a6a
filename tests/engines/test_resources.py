"""Resources: sizes, CPUs that may be used, and threads of numerical libraries."""

from __future__ import annotations

import doctest
import os
import pickle
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.engines import resources
from ropewalk.engines.resources import (
    Resources,
    blas_threads_environment,
    parse_memory,
    usable_cpus,
    usable_memory,
)

HERE = len(os.sched_getaffinity(0))
MEMORY = psutil.virtual_memory().total


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4Gi", 4 * 2**30),
        ("500M", 500 * 10**6),
        ("1.5G", 1_500_000_000),
        ("64k", 64_000),
        ("64Ki", 65_536),
        (" 2 Ti ", 2 * 2**40),
        ("1024", 1024),
        (1024, 1024),
        ("9007199254740993", 9007199254740993),
        ("16GB", 16 * 10**9),
        ("16 GiB", 16 * 2**30),
        ("7B", 7),
    ],
)
def test_a_size_is_read_as_bytes(text: str | int, size_bytes: int) -> None:
    assert parse_memory(text) == size_bytes
    assert Resources(memory=text) == Resources(memory=size_bytes)
    assert Resources(memory=text).memory_bytes == size_bytes


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("4gi", 'did you mean "4Gi"?'),
        ("500m", 'did you mean "500M"?'),
        ("4gb", 'did you mean "4G"?'),
        ("4gib", 'did you mean "4Gi"?'),
        ("4X", "Ki, Mi, Gi, Ti, not '4X'"),
        ("", "not ''"),
        ("-1G", "not '-1G'"),
        ("1e3", "not '1e3'"),
        ("٤Gi", "not '٤Gi'"),
        ("0", "at least 1 byte"),
        (0, "at least 1 byte, not 0"),
        (-5, "at least 1 byte, not -5"),
        ("0.2", "at least 1 byte"),
    ],
)
def test_what_is_not_a_size_is_refused_with_the_near_one(text: str | int, hint: str) -> None:
    with pytest.raises(ValueError, match="memory must be") as caught:
        Resources(memory=text)
    assert hint in str(caught.value)


@given(st.integers(1, 2**62), st.sampled_from(["", "k", "M", "Ki", "Gi"]))
def test_whole_sizes_are_exact(number: int, unit: str) -> None:
    assert parse_memory(f"{number}{unit}") == number * parse_memory(f"1{unit}")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"cpus": 0}, ValueError),
        ({"cpus": -1}, ValueError),
        ({"cpus": float("nan")}, ValueError),
        ({"cpus": float("inf")}, ValueError),
        ({"cpus": "2"}, TypeError),
        ({"cpus": True}, TypeError),
        ({"gpus": -1}, ValueError),
        ({"gpus": 0.5}, TypeError),
        ({"memory": 1.5}, TypeError),
        ({"memory": True}, TypeError),
    ],
)
def test_a_wrong_request_names_rule_and_value(values: dict[str, Any], error: type[Exception]) -> None:
    (value,) = values.values()
    with pytest.raises(error, match=r"must be|is of type") as caught:
        Resources(**values)
    assert repr(value) in str(caught.value) or f"is of type {type(value).__name__}" in str(caught.value)


def test_resources_are_a_frozen_value_that_travels() -> None:
    asked = Resources(cpus=2, gpus=1, memory="1Gi")
    assert pickle.loads(pickle.dumps(asked)) == asked
    assert hash(asked) == hash(Resources(2, 1, 2**30))
    assert Resources() == Resources(cpus=1, gpus=0, memory=None)


def test_the_example_of_the_docstring_is_true() -> None:
    assert doctest.testmod(resources) == (0, 2)


# --- usable CPUs ------------------------------------------------------------------------------------------------------


class Groups:
    """A pretend /sys/fs/cgroup and /proc/self/cgroup."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "cgroup"
        self.file = folder / "self"
        self.file.write_text("")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def cpus(self, environ: dict[str, str] | None = None) -> int:
        return usable_cpus(environ or {}, cgroup_file=self.file, cgroup_root=self.root)


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Groups:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(16)), raising=False)
    return Groups(tmp_path)


def test_without_limits_the_affinity_counts(groups: Groups, tmp_path: Path) -> None:
    assert groups.cpus() == 16
    assert usable_cpus({}, cgroup_file=tmp_path / "missing", cgroup_root=tmp_path) == 16


def test_here_it_is_at_least_one_and_no_more_than_the_affinity() -> None:
    assert 1 <= usable_cpus() <= HERE


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 16), ("200000 100000", 2), ("250000 100000", 2), ("5000 100000", 1), ("x", 16)]
)
def test_a_quota_of_version_2_counts(groups: Groups, quota: str, cpus: int) -> None:
    groups.file.write_text("0::/user.slice/job\n")
    groups.write("user.slice/job/cpu.max", quota)
    assert groups.cpus() == cpus


def test_the_tightest_group_above_counts(groups: Groups) -> None:
    groups.file.write_text("0::/a/b/c\n")
    groups.write("a/cpu.max", "300000 100000")
    groups.write("a/b/cpu.max", "max 100000")
    groups.write("a/b/c/cpu.max", "800000 100000")
    assert groups.cpus() == 3


def test_a_container_that_sees_the_path_of_its_host_reads_its_own_mount(groups: Groups) -> None:
    groups.file.write_text("0::/../../kubepods/pod1\n")
    groups.write("cpu.max", "400000 100000")
    assert groups.cpus() == 4


@pytest.mark.parametrize("mount", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "cpus"), [("-1", 16), ("150000", 1), ("500000", 5)])
def test_a_quota_of_version_1_counts(groups: Groups, mount: str, quota: str, cpus: int) -> None:
    groups.file.write_text("5:memory:/x\n4:cpu,cpuacct:/docker/1\n0::/\n")
    groups.write(f"{mount}/docker/1/cpu.cfs_quota_us", quota)
    groups.write(f"{mount}/docker/1/cpu.cfs_period_us", "100000")
    assert groups.cpus() == cpus


@pytest.mark.parametrize(
    ("group", "path", "text", "size_bytes"),
    [
        ("0::/a/job\n", "a/job/memory.max", "1048576\n", 1 << 20),
        ("0::/a/job\n", "a/memory.max", "2097152\n", 2 << 20),
        ("0::/a/job\n", "a/memory.max", "max\n", MEMORY),
        ("5:memory:/a\n0::/\n", "memory/a/memory.limit_in_bytes", "1048576\n", 1 << 20),
        ("5:memory:/a\n0::/\n", "memory/a/memory.limit_in_bytes", "9223372036854771712\n", MEMORY),
        ("5:cpu:/a\n", "cpu/a/memory.limit_in_bytes", "1048576\n", MEMORY),
        ("", "memory.max", "1048576", MEMORY),
    ],
)
def test_the_memory_that_may_be_used_is_the_machines_or_what_a_group_above_allows(
    groups: Groups, group: str, path: str, text: str, size_bytes: int
) -> None:
    groups.file.write_text(group)
    groups.write(path, text)
    assert usable_memory(cgroup_file=groups.file, cgroup_root=groups.root) == size_bytes


@pytest.mark.parametrize(
    ("environ", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4),
        ({"SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_PER_TASK": "64"}, 16),
        ({"SLURM_CPUS_PER_TASK": "0"}, 16),
        ({"SLURM_CPUS_PER_TASK": "many", "SLURM_CPUS_ON_NODE": "3"}, 3),
    ],
)
def test_the_allocation_of_a_batch_job_counts(groups: Groups, environ: dict[str, str], cpus: int) -> None:
    assert groups.cpus(environ) == cpus


@pytest.mark.parametrize(("cpus", "threads"), [(0.25, "1"), (1, "1"), (2.9, "2"), (8, "8")])
def test_numerical_libraries_get_as_many_threads_as_there_are_cpus(cpus: float, threads: str) -> None:
    environment = blas_threads_environment(cpus)
    assert set(environment.values()) == {threads}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"} <= set(environment)
