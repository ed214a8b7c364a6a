"""The checks of `ropewalk doctor`: one function per subject, each yielding findings.

Where it can, a probe performs the real operation (it makes a memory file, it sends a task through a pool) instead of
reading a version number. "failed" means that Ropewalk cannot be used here; "warning" that a problem is likely later;
"absent" that something is missing or does not answer, and is not needed; "ok" that it was tried and works. The report
has no variables of the environment except the settings, which hold no secrets.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.metadata
import os
import platform
import re
import resource
import shlex
import shutil
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil

import ropewalk
from ropewalk import settings
from ropewalk.engines import make_engine
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import EngineError, SettingsError
from ropewalk.quantities import shown_duration, shown_size
from ropewalk.setting_values import refused_files
from ropewalk.transport import kernel

MIB = 2**20
POOL_TIMEOUT_S = 30.0
# A unix socket's path has at most 107 bytes; after the run folder come "ropewalk-<random>/" and the socket's name.
LONGEST_RUN_FOLDER = 60


class Severity(enum.Enum):
    """The severity of a finding."""

    OK = "ok"
    ABSENT = "absent"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One row of the report."""

    subject: str
    what: str
    state: Severity
    value: str
    advice: str = ""
    """What to do; empty if nothing needs to be done."""


Probe = Callable[[], Iterator[Finding]]


def examine(probes: dict[str, Probe]) -> Iterator[Finding]:
    """Run each probe; a probe that raises gives a failed finding, and the others still run."""
    for subject, probe in probes.items():
        try:
            yield from probe()
        except SettingsError:
            advice = "correct them first; the rows on settings say how"
            yield Finding(subject, "this check", Severity.WARNING, "skipped: the settings are wrong", advice)
        except Exception as error:  # the report has to appear whatever is broken; this row says so
            yield Finding(
                subject, "this check", Severity.FAILED, f"{type(error).__name__}: {error}", "please report this"
            )


def _ok(subject: str, what: str, value: str) -> Finding:
    return Finding(subject, what, Severity.OK, value)


def _absent(subject: str, what: str, value: str) -> Finding:
    return Finding(subject, what, Severity.ABSENT, value)


def _judge(
    subject: str, what: str, good: bool, value: str, advice: str, otherwise: Severity = Severity.WARNING
) -> Finding:
    return Finding(subject, what, Severity.OK if good else otherwise, value, "" if good else advice)


# --- software ---------------------------------------------------------------------------------------------------------


def versions() -> Iterator[Finding]:
    """Check the versions of Python, Ropewalk, its dependencies and optional packages."""
    python = f"{platform.python_version()} ({platform.python_implementation()}, {sys.executable})"
    yield _judge("versions", "python", sys.version_info >= (3, 11), python, "use Python 3.11 or newer", Severity.FAILED)
    for package in ("ropewalk", "cloudpickle", "msgspec", "psutil", "cryptography", "rich", "click"):
        version = _version(package)
        yield _judge(
            "versions", package, version is not None, version or "missing", f"pip install {package}", Severity.FAILED
        )
    for package in ("numpy", "torch", "gymnasium"):
        version = _version(package)
        yield _ok("versions", package, version) if version else _absent("versions", package, "optional")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine() -> Iterator[Finding]:
    """Check the platform, its CPUs, its memory and its GPUs."""
    yield _ok("machine", "platform", platform.platform())
    affinity = len(os.sched_getaffinity(0))
    yield _ok("machine", "usable CPUs", f"{usable_cpus()} (of {os.cpu_count()}; affinity {affinity})")
    memory = psutil.virtual_memory()
    yield _judge(
        "machine",
        "memory",
        memory.available >= 512 * MIB,
        f"{shown_size(memory.available)} of {shown_size(memory.total)} available",
        "less than 512 MiB are left: workers may be ended by the system; stop other programs or use fewer workers",
    )
    yield _gpus()


def _gpus() -> Finding:
    """List GPUs as nvidia-smi names them; torch is not used, because importing it takes seconds."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    if shutil.which(command[0]) is None:
        return _absent("machine", "GPUs", "none seen (no nvidia-smi)")
    output = _output(command)
    names = "; ".join(output.splitlines()) if output else "nvidia-smi is here but does not answer"
    return _judge("machine", "GPUs", bool(output), names, "nvidia-smi says why: is the driver loaded?")


def _output(command: Sequence[str], timeout_s: float = 10.0) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


# --- limits and the kernel --------------------------------------------------------------------------------------------


def limits() -> Iterator[Finding]:
    """Check the limits of file descriptors and processes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _judge(
        "limits",
        "open files",
        hard == resource.RLIM_INFINITY or hard >= 4096,
        f"{_limit(soft)}, raised to up to {_limit(hard)} where workers run",
        "hundreds of workers of a host need more: ulimit -Hn 65536, or LimitNOFILE= in a systemd unit",
    )
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    # The limit applies to the threads of this user.
    used = sum(
        process.info["num_threads"] or 0
        for process in psutil.process_iter(["uids", "num_threads"])
        if process.info["uids"] and process.info["uids"].real == os.getuid()
    )
    yield _judge(
        "limits",
        "processes",
        soft == resource.RLIM_INFINITY or soft - used >= 256,
        f"{_limit(soft)} (hard limit {_limit(hard)}; {used} threads of this user run)",
        "fewer than 256 are left: end other programs, or raise ulimit -u",
    )


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def features() -> Iterator[Finding]:
    """Try each feature that Ropewalk needs of the kernel."""
    for feature in kernel.FEATURES:
        refused = kernel.refusal(feature)
        if refused is None:
            yield _ok("kernel", feature.name, "available")
        elif feature.without:
            advice = f"without it {feature.without}; {_since(feature)}"
            yield Finding("kernel", feature.name, Severity.WARNING, f"refused: {refused.why}", advice)
        else:
            advice = f"nothing can run without it; {_since(feature)}"
            yield Finding("kernel", feature.name, Severity.FAILED, f"refused: {refused.why}", advice)


def _since(feature: kernel.Feature) -> str:
    return f"Linux {feature.since} and newer have it: {kernel.ADVICE}"


# --- folders ----------------------------------------------------------------------------------------------------------


def folders() -> Iterator[Finding]:
    """Check the folders of runs and of keys, and shared memory."""
    here = settings.current()
    yield from _run_folder(here.run_folder)
    if here.key_folder.exists():
        mode = stat.S_IMODE(here.key_folder.stat().st_mode)
        private = mode & 0o077 == 0
        yield _judge(
            "folders", "key folder", private, f"{here.key_folder}, mode {mode:04o}", f"chmod 700 {here.key_folder}"
        )
    else:
        yield _absent("folders", "key folder", f"{here.key_folder}, made when needed")
    shm = Path("/dev/shm")
    if shm.is_dir():
        usage = shutil.disk_usage(shm)
        yield _judge(
            "folders",
            str(shm),
            usage.free >= 256 * MIB,
            f"{shown_size(usage.free)} of {shown_size(usage.total)} free",
            "Ropewalk does not need it, but a DataLoader of PyTorch does: docker run --shm-size=2g",
        )
    else:
        yield _absent("folders", str(shm), "not needed")


def _run_folder(folder: Path) -> Iterator[Finding]:
    change = "choose another with ROPEWALK_RUN_FOLDER"
    if not folder.is_dir():
        yield Finding("folders", "run folder", Severity.FAILED, f"{folder} is not a folder", f"make it, or {change}")
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Finding("folders", "run folder", Severity.FAILED, f"{folder} cannot be written to", change)
        return
    mode = folder.stat().st_mode
    shared = bool(mode & 0o022) and not mode & stat.S_ISVTX
    yield _judge(
        "folders",
        "run folder",
        not shared,
        f"{folder}, mode {stat.S_IMODE(mode):04o}",
        f"others may rename its contents: chmod +t {folder}, or {change}",
        Severity.FAILED,
    )
    free = shutil.disk_usage(folder).free
    yield Finding(
        "folders",
        "run folder: space",
        Severity.FAILED if free < 16 * MIB else Severity.WARNING if free < 1024 * MIB else Severity.OK,
        f"{shown_size(free)} free",
        "" if free >= 1024 * MIB else f"the output of processes lies there: make room, or {change}",
    )
    length = len(os.fsencode(folder))
    yield _judge(
        "folders",
        "run folder: path",
        length <= LONGEST_RUN_FOLDER,
        f"{length} bytes",
        f"paths of unix sockets end at 107 bytes; use at most {LONGEST_RUN_FOLDER}: {change}",
        Severity.FAILED if length > 90 else Severity.WARNING,
    )


# --- network and cluster ----------------------------------------------------------------------------------------------


def network() -> Iterator[Finding]:
    """Check whether this host can resolve its own name."""
    name = platform.node()
    # In a process of its own, because a lookup cannot have a timeout otherwise.
    program = "import socket, sys; print(*sorted({a[4][0] for a in socket.getaddrinfo(sys.argv[1], None)}))"
    addresses = _output([sys.executable, "-I", "-c", program, name], timeout_s=10.0)
    yield _judge(
        "network",
        "own host name",
        bool(addresses),
        f"{name} is {addresses}" if addresses else f"{name} is not known to the resolver",
        "one machine works without it; for several, add the name to DNS or to /etc/hosts",
    )


_CLUSTERS = {
    "Slurm": ("scontrol", "ping"),
    "PBS": ("qstat", "-B"),
    "LSF": ("lsid",),
    "Kubernetes": ("kubectl", "version", "--request-timeout=5s"),
    "Docker": ("docker", "version", "--format", "version {{.Server.Version}}"),
    "Ray": ("ray", "status"),
}
"""Cluster managers: the command, and the arguments with which it reports whether its server answers."""
_ANSWER_S = 10.0


def cluster() -> Iterator[Finding]:
    """Find the cluster managers that answer here; `--engine` checks whether they can be used."""
    with ThreadPoolExecutor(len(_CLUSTERS)) as threads:
        yield from threads.map(_manager, _CLUSTERS, _CLUSTERS.values())


def _manager(name: str, question: Sequence[str]) -> Finding:
    command = shutil.which(question[0])
    if command is None:
        return _absent("cluster", name, f"no {question[0]} on the path")
    try:
        asked = subprocess.run(question, capture_output=True, text=True, timeout=_ANSWER_S, stdin=subprocess.DEVNULL)
        code, said = asked.returncode, (asked.stdout if asked.returncode == 0 else asked.stderr or asked.stdout)
    except (OSError, subprocess.SubprocessError) as error:
        code, said = 1, str(error)
    lines = [without_credentials(line.strip())[:200] for line in said.splitlines() if line.strip()] or ["nothing"]
    if code or (name == "Slurm" and "DOWN" in said):
        return _absent("cluster", name, f"{command} is installed, but gets no answer: {lines[-1]}")
    return _ok("cluster", name, f"answers {shlex.join(question[:2])}: {lines[0]}")


# --- Ropewalk itself --------------------------------------------------------------------------------------------------


def configuration() -> Iterator[Finding]:
    """List each setting with its origin, and the findings of the chosen engine."""
    for refused in refused_files(os.environ):
        words, _, advice = str(refused).rpartition("; ")
        yield Finding("settings", "file not read", Severity.WARNING, words, advice)
    try:
        here = settings.current()
    except SettingsError as error:
        yield Finding("settings", "settings", Severity.FAILED, without_credentials(str(error)), "correct or remove it")
        return
    for field in dataclasses.fields(here):
        if field.name != "origins":
            value = without_credentials(str(getattr(here, field.name)))
            yield _ok("settings", field.name, f"{value} ({here.origin(field.name)})")
    yield from engine_findings(here)


def engine_findings(here: settings.Settings) -> Iterator[Finding]:
    """Yield the findings of the chosen engine; its messages also say how to fix a problem."""
    try:
        engine = make_engine(here.engine, here.engine_options)
    except (EngineError, SettingsError) as error:
        advice = f"correct it in {here.origin('engine')}"
        yield Finding("engine", here.engine, Severity.FAILED, str(error), advice)
        return
    try:
        for finding in engine.check():
            advice = f"needed by engine {here.engine}"
            value = without_credentials(finding.detail)
            yield _judge("engine", finding.what, finding.ok, value, advice, Severity.FAILED)
    finally:
        engine.close()


def without_credentials(text: str) -> str:
    """Hide the user and password of an address, as in "https://user:password@registry/image"."""
    return re.sub(r"(://)[^/@\s]+@", r"\1***@", text)


def round_trip() -> Iterator[Finding]:
    """Run a real task in a real worker under a real agent."""
    advice = (
        "the rows above may say why; for the full traceback: python -c 'import ropewalk; ropewalk.Pool(1).apply(int)'"
    )
    try:
        started = time.perf_counter()
        with ropewalk.Pool(1, engine="local", name="doctor") as pool:
            pool.apply_async(int).get(timeout=POOL_TIMEOUT_S)
            first_s = time.perf_counter() - started
            trips_s: list[float] = []
            for _ in range(50):
                begun = time.perf_counter()
                pool.apply_async(int).get(timeout=POOL_TIMEOUT_S)
                trips_s.append(time.perf_counter() - begun)
    except Exception as error:  # any failure is the finding
        message = str(error).strip() or "no message"
        yield Finding("pool", "local agent", Severity.FAILED, f"{type(error).__name__}: {message}", advice)
        return
    yield _judge(
        "pool",
        "local agent",
        first_s < 5.0,
        f"agent, worker and first result in {shown_duration(first_s)}",
        "slow: is the machine busy, or Python on a network file system?",
    )
    yield _ok("pool", "round trip", f"one task out and back in {shown_duration(statistics.median(trips_s))} (median)")


PROBES: dict[str, Probe] = {
    "versions": versions,
    "machine": machine,
    "limits": limits,
    "kernel": features,
    "folders": folders,
    "network": network,
    "cluster": cluster,
    "settings": configuration,
    "pool": round_trip,
}
"""A new subject is one function and one line here; the report keeps this order."""
