"""The request of a process, and the capacity of this machine: CPUs, GPUs and bytes of memory.

`Resources` is a request, `HostCapacity` the free part of a host. `usable_cpus` says how many CPUs this process may
use: a container or a batch job often sees all cores of the host but may use only two of them. `usable_memory` does the
same for memory. `blas_threads_environment` keeps the numerical libraries of a process inside its share.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from ropewalk.argument_kinds import check_kind, check_number
from ropewalk.quantities import parse_memory

_Reader = Callable[[Path], float | None]
"""A function that reads a limit of a control group from its folder."""
_MIB = 2**20


@dataclasses.dataclass(frozen=True, slots=True)
class Resources:
    """The resources that one process asks its engine for.

    Raises:
        ValueError: a value is out of range, or `memory` is not a size.
        TypeError: a value has the wrong type.

    Example:
        >>> from ropewalk import Resources
        >>> Resources(cpus=2, memory="4Gi").memory_bytes
        4294967296
    """

    cpus: float = 1
    """CPUs, above 0; also the number of BLAS and OpenMP threads, rounded down but at least 1."""
    gpus: int = 0
    """Whole GPUs."""
    memory: str | int | None = None
    """Bytes, or a text such as "4Gi" or "500M"; None makes no request. Stored as bytes."""

    def __post_init__(self) -> None:
        check_number("resources.cpus", self.cpus, int | float, "a number", above=0, finite=True, required=True)
        check_number("resources.gpus", self.gpus, int, "a whole number", least=0, required=True)
        if self.memory is not None:
            object.__setattr__(self, "memory", parse_memory(self.memory))

    @property
    def memory_bytes(self) -> int | None:
        """The memory asked for in bytes, or None."""
        return None if self.memory is None else parse_memory(self.memory)


def check_resources(resources: object) -> None:
    """Check what a caller, who may not use a type checker, gives as `resources`.

    Raises:
        TypeError: it is neither `Resources` nor None.
    """
    check_kind("resources", resources, Resources, "ropewalk.Resources(cpus=2, gpus=1)")


@dataclasses.dataclass(frozen=True, slots=True)
class HostCapacity:
    """The CPUs, GPUs and memory of a host, or those that are left of it."""

    cpus: float
    gpus: int = 0
    memory_bytes: int | None = None
    """Bytes; None if memory is unlimited or its limit unknown."""

    def holds(self, each: Resources) -> int:
        """Return how many processes with this request the host has room for."""
        most = [math.floor(self.cpus / each.cpus)]
        if each.gpus:
            most.append(self.gpus // each.gpus)
        if each.memory_bytes and self.memory_bytes is not None:
            most.append(self.memory_bytes // _whole_mib(each.memory_bytes))
        return max(0, min(most))

    def without(self, job: Resources) -> HostCapacity:
        """Return the capacity that a job leaves; clusters give jobs whole CPUs and whole MiB."""
        memory = None if self.memory_bytes is None else self.memory_bytes - _whole_mib(job.memory_bytes or 0)
        return HostCapacity(self.cpus - math.ceil(job.cpus), self.gpus - job.gpus, memory)


def usable_cpus(
    environ: Mapping[str, str] | None = None,
    *,
    cgroup_file: Path = Path("/proc/self/cgroup"),
    cgroup_root: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return how many CPUs this process may keep busy: the minimum of affinity, cgroup quota and allocation.

    A quota of 2.5 CPUs counts as 2: a third busy process would make all three wait for the next period.

    Args:
        environ: the environment with the allocation of a batch job; the process's own if None.
        cgroup_file: the file that lists the control groups of the process.
        cgroup_root: the folder where their file systems are mounted.

    Returns:
        At least 1.
    """
    limits = [float(len(os.sched_getaffinity(0)))]
    limits += _limits("cpu", cgroup_file, cgroup_root, _quota_v2, _quota_v1)
    limits += _allocation(os.environ if environ is None else environ)
    return max(1, math.floor(min(limits)))


def usable_memory(*, cgroup_file: Path = Path("/proc/self/cgroup"), cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many bytes of memory this process may use: the minimum of the machine's and its cgroups' limits."""
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min([float(has), *_limits("memory", cgroup_file, cgroup_root, _memory_v2, _memory_v1)]))


def _whole_mib(size_bytes: int) -> int:
    return math.ceil(size_bytes / _MIB) * _MIB


def _allocation(environ: Mapping[str, str]) -> Iterator[float]:
    # Slurm's share of the task is narrower; without --cpus-per-task only the share of the node is known.
    for variable in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        value = environ.get(variable, "")
        if value.isdecimal() and int(value) > 0:
            yield float(value)
            return


def _limits(
    controller: str, cgroup_file: Path, cgroup_root: Path, read_v2: _Reader, read_v1: _Reader
) -> Iterator[float]:
    """Return the limit of each control group above this process, in versions 1 and 2."""
    try:
        lines = cgroup_file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for mount in (cgroup_root, cgroup_root / "unified"):
                yield from _each(mount, path, read_v2)
        elif controller in controllers.split(","):
            for mount in {cgroup_root / controllers, cgroup_root / controller}:
                yield from _each(mount, path, read_v1)


def _each(mount: Path, path: str, read: _Reader) -> Iterator[float]:
    """Read a limit from the process's group and from every group above it; the tightest one binds."""
    # Inside a container the path may be the host's: then only the mount itself exists, and is our own group.
    folder = PurePosixPath(path.lstrip("/"))
    for group in [folder, *folder.parents]:
        if ".." in group.parts:
            continue
        try:
            quota = read(mount / group)
        except (OSError, ValueError):
            continue
        if quota is not None:
            yield quota


def _quota_v2(group: Path) -> float | None:
    quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
    return None if quota == "max" else _ratio(int(quota), int(period))


def _quota_v1(group: Path) -> float | None:
    quota = int((group / "cpu.cfs_quota_us").read_text(encoding="ascii"))
    period = int((group / "cpu.cfs_period_us").read_text(encoding="ascii"))
    return _ratio(quota, period)


def _memory_v2(group: Path) -> float | None:
    limit = (group / "memory.max").read_text(encoding="ascii").strip()
    return None if limit == "max" else int(limit)


def _memory_v1(group: Path) -> float | None:
    return int((group / "memory.limit_in_bytes").read_text(encoding="ascii"))  # no limit is a number above all memory


def _ratio(quota_us: int, period_us: int) -> float | None:
    return quota_us / period_us if quota_us > 0 and period_us > 0 else None


_THREADS = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "NUMEXPR_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMBA_NUM_THREADS"),
)
"""Variables that numerical libraries read at import; the libraries of the first line fall back to its first variable.
"""
_NUM_THAT_FALL_BACK = 5


def blas_threads_environment(cpus: float, environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that give a process one numerical thread for each of its CPUs.

    They are read when numpy or torch is imported, so they must be set before.

    Args:
        cpus: the number of CPUs of the process, rounded down; at least one thread is given.
        environ: the variables that the user has set, which win. If `OMP_NUM_THREADS` is set, the variables that fall
            back to it are left out as well, because their own value would win over it.

    Returns:
        The variables to set, by name.
    """
    environ = environ or {}
    names = _THREADS[_NUM_THAT_FALL_BACK:] if _THREADS[0] in environ else _THREADS
    return dict.fromkeys([name for name in names if name not in environ], str(max(1, math.floor(cpus))))
