"""The engine for mpiexec, which is used as a launcher only: a request is one `mpiexec -n N`, its ranks are the jobs.

    submit ── mpiexec -n N ──▶ python -m ropewalk.engines.mpi_rank (on each host) ──▶ agent

It is for sites where mpiexec is all there is. It is not elastic: no rank is ever added to an mpiexec, and when a host
dies MPI ends all ranks of that mpiexec. Credentials, output and exit codes pass through a folder that all hosts share,
see `mpi_rank`; only this folder records how a rank ended, and any launcher can read it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropewalk.atomic_files import boot_id, replace_file
from ropewalk.engines.engine import Engine, EngineFinding, JobSpec, JobState, JobStatus, Reach, short_request
from ropewalk.engines.host_addresses import resolve
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.engines.shared_folder import PREFIX, SharedFolder
from ropewalk.errors import EngineError
from ropewalk.interpreters import import_environment, module_command
from ropewalk.process_start import start_ticks
from ropewalk.trusted_files import open_output, open_own, open_to_append
from ropewalk.version import VERSION

_ID = re.compile(r"(?P<run>[\w.-]+)\.(?P<request>[0-9a-f]{12})\.(?P<rank>\d+)")
_CANCEL_S = 2.0
"""Ranks check for cancellation every 0.1 s; after this time mpiexec itself is ended, and ends the ranks it can reach.
"""
_ALLOCATIONS = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE", "COBALT_NODEFILE")
"""Variables of batch systems from whose allocation mpiexec takes its hosts."""
_LAST_WORDS = 600
_CHECK_S = 30.0
"""The timeout for the ranks of a check; after it, mpiexec waits for something that does not come."""
_VERSIONS = (
    "import platform, sys; from ropewalk.version import VERSION; "
    "print('ropewalk-rank', platform.node(), 'Python %d.%d' % sys.version_info[:2], 'with ropewalk', VERSION)"
)


@dataclass(frozen=True)
class MpiOptions:
    """The options of the engine `mpi`."""

    mpiexec: str = "mpiexec"
    """The command: mpiexec or mpirun of MPICH, Open MPI, Intel MPI or MVAPICH."""
    hosts: list[str] = field(default_factory=list[str])
    """Where to start ranks; if empty, the hosts of the allocation that the launcher is in, or this machine."""
    extra: list[str] = field(default_factory=list[str])
    """Further arguments, such as "--oversubscribe"."""
    processes_per_rank: int | None = None
    """The most processes in one rank; None fills the CPUs that this machine has."""
    folder: str = "~/.ropewalk/mpi"
    """A folder that all hosts share, for credentials and the output of ranks."""
    python: str = sys.executable
    """The Python interpreter on the hosts; Ropewalk must be installed for it."""

    def __post_init__(self) -> None:
        if any(not re.fullmatch(r"\w[\w.:%\[\]-]*", host) for host in self.hosts):
            raise ValueError(f"hosts must be names or addresses, not {self.hosts!r}")
        if self.processes_per_rank is not None and self.processes_per_rank < 1:
            raise ValueError("processes_per_rank must be above 0")


class MpiEngine(Engine):
    """Starts ranks with mpiexec; all it knows of them is in its folder."""

    name = "mpi"
    instead_of_time_limit = "the limit of the allocation or batch job in which mpiexec runs ends all of it"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, MpiOptions, options or {})
        self.python = self.options.python
        is_elsewhere = bool(self.options.hosts or self.options.extra) or any(map(os.environ.get, _ALLOCATIONS))
        self.reach = Reach.NETWORK if is_elsewhere else Reach.HERE
        self._folder = SharedFolder(self.options.folder)
        self._started: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        if not re.fullmatch(r"[\w-][\w.-]*", run_id):
            raise EngineError(f"a run is named by letters, digits, dots and dashes, not {run_id!r}")
        request = short_request(request_id)
        ids = [f"{run_id}.{request}.{rank}" for rank in range(count)]
        if not self._folder.has_request(run_id, request):
            folder = self._folder.prepare(run_id, request, count, spec.stdin)
            try:
                self._started[run_id, request] = self._start(spec, count, run_id, folder)
            except BaseException:
                self._folder.remove_request(run_id, request)
                raise
        return ids

    def _start(self, spec: JobSpec, count: int, run_id: str, folder: Path) -> subprocess.Popen[bytes]:
        job = {
            "command": list(spec.command),
            "environment": {**spec.environment, "ROPEWALK_RUN_ID": run_id},
            "stdin": hashlib.sha256(spec.stdin).hexdigest() if spec.stdin else "",
        }
        words = json.dumps(job).encode()
        replace_file(folder / "job.json", [words])
        if self.options.hosts:
            replace_file(folder / "hosts", [("\n".join(self.options.hosts) + "\n").encode()])
        try:
            with open(open_to_append(folder / "mpiexec.log"), "ab") as log:
                process = subprocess.Popen(
                    self._command(count, hashlib.sha256(words).hexdigest(), str(folder)),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=os.environ | import_environment() | {"ROPEWALK_RUN_ID": run_id},
                    start_new_session=True,
                )
        except FileNotFoundError:
            raise EngineError(
                f"there is no {self.options.mpiexec} on the PATH; load the module of an MPI, install one (pip install "
                "mpich, or Debian: apt install mpich), or name it with the option mpiexec"
            ) from None
        except OSError as error:
            raise EngineError(f"cannot start {self.options.mpiexec}: {error}") from error
        facts = {
            "pid": process.pid,
            "born": start_ticks(process.pid),
            "boot": boot_id(),
            "host": platform.node(),
            "ranks": count,
        }
        replace_file(folder / "mpiexec.json", [json.dumps(facts).encode()])
        return process

    def _command(self, count: int, digest: str, folder: str) -> list[str]:
        hosts = ["-machinefile", f"{folder}/hosts"] if self.options.hosts else []
        rank = module_command(self.options.python, "ropewalk.engines.mpi_rank", digest, folder)
        return [self.options.mpiexec, "-n", str(count), *hosts, *self.options.extra, *rank]

    def render(self, spec: JobSpec) -> str:
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(spec.environment.items())]
        command = shlex.join(self._command(1, "DIGEST", str(self._folder.path / f"{PREFIX}RUN" / "REQUEST")))
        return f"{command}\n# each rank: {' '.join([*settings, shlex.join(spec.command)])}\n"

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        return {id: self._status(id) for id in ids}

    def _status(self, id: str) -> JobStatus:
        folder, rank = self._place(id)
        facts = _read_facts(folder) if folder else None
        if folder is None or facts is None or rank >= facts["ranks"]:
            return JobStatus(JobState.LOST, reason="there is no such job in the folder of this engine")
        is_alive = self._is_alive(folder, facts)  # read first: a rank records its end as its last action
        if (end := _tail(folder / f"{rank}.end", _LAST_WORDS)).lstrip("-").isdecimal():
            code = int(end)
            is_ours = (folder / f"{rank}.cancel").exists()
            reason = "cancelled" if is_ours and code else f"ended by signal {-code}" if code < 0 else ""
            return JobStatus(JobState.ENDED, code, reason)
        if is_alive and _is_elsewhere(facts):
            if (folder / f"{rank}.cancel").exists():  # the rank looks for it, if it is still there
                return JobStatus(JobState.ENDED, reason=f"cancelled; its mpiexec was started on {facts['host']}")
            return JobStatus(JobState.RUNNING, reason=f"its mpiexec was started on {facts['host']}")
        if is_alive:
            return JobStatus(JobState.RUNNING)
        words = _tail(folder / "mpiexec.log", _LAST_WORDS).strip() or "it said nothing"
        return JobStatus(
            JobState.ENDED,
            reason=f"mpiexec ended, and with it all of its ranks, as MPI does when it loses one: {words}",
        )

    def _is_alive(self, folder: Path, facts: Mapping[str, Any]) -> bool:
        process = self._started.get((folder.parent.name.removeprefix(PREFIX), folder.name))
        if process is not None:
            return process.poll() is None  # and reaps it, if it has ended
        if _is_elsewhere(facts):  # as far as is known here
            return True
        return facts["boot"] == boot_id() and start_ticks(facts["pid"]) == facts["born"]

    def _place(self, id: str) -> tuple[Path | None, int]:
        match = _ID.fullmatch(id)
        if match is None or match["run"].startswith("."):
            return None, 0
        return self._folder.path / f"{PREFIX}{match['run']}" / match["request"], int(match["rank"])

    def cancel(self, ids: Sequence[str]) -> None:
        alive = [id for id in ids if self._status(id).state is JobState.RUNNING]
        for id in alive:
            folder, rank = self._place(id)
            if folder is not None:
                (folder / f"{rank}.cancel").touch(mode=0o600)
        deadline = time.monotonic() + _CANCEL_S
        while any(self._status(id).state is JobState.RUNNING for id in alive) and time.monotonic() < deadline:
            time.sleep(0.02)
        for folder in {folder for id in alive if (folder := self._place(id)[0]) is not None}:
            self._end_mpiexec(folder)
        # Files of a launcher that is gone are removed here; `close` removes our own.
        foreign = {match["run"] for id in alive if (match := _ID.fullmatch(id))} - {run for run, _ in self._requests}
        for run in foreign - set(self.runs()):
            self._folder.remove_run(run)

    def _end_mpiexec(self, folder: Path) -> None:
        """End an mpiexec all of whose ranks are cancelled: ranks on unreachable hosts may not have noticed."""
        facts = _read_facts(folder)
        if (
            facts is None
            or _is_elsewhere(facts)
            or not all(
                (folder / f"{rank}.cancel").exists() or (folder / f"{rank}.end").exists()
                for rank in range(facts["ranks"])
            )
        ):
            return
        deadline = time.monotonic() + _CANCEL_S
        while self._is_alive(folder, facts) and time.monotonic() < deadline:
            time.sleep(0.02)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._is_alive(folder, facts):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(facts["pid"], number)
                time.sleep(0.2)

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        runs: dict[str, list[str]] = {}
        for folder in sorted(self._folder.path.glob(f"{PREFIX}*/*")):
            run = folder.parent.name.removeprefix(PREFIX)
            ranks = (_read_facts(folder) or {"ranks": 0})["ranks"]
            ids = [f"{run}.{folder.name}.{rank}" for rank in range(ranks)]
            if alive := [id for id in ids if self._status(id).state is JobState.RUNNING]:
                runs.setdefault(run, []).extend(alive)
        return runs

    def remains(self) -> dict[str, list[str]]:
        return self._folder.remains(self.runs())

    def remove_remains(self, run_id: str) -> None:
        if run_id in self.remains():
            self._folder.remove_run(run_id)

    def logs(self, id: str) -> str:
        folder, rank = self._place(id)
        return "" if folder is None else self._folder.log(folder.parent.name.removeprefix(PREFIX), folder.name, rank)

    def per_job(self, process: Resources) -> int | None:
        if self.options.processes_per_rank is not None:
            return self.options.processes_per_rank
        share = int(usable_cpus() / process.cpus)
        if share < 1:
            raise EngineError(
                f"a process of {process.cpus:g} CPUs is more than this machine has ({usable_cpus()}), and mpiexec does "
                "not say how large the others are; say how many fit into one rank with the option processes_per_rank"
            )
        return share

    def hosts(self) -> list[str]:
        return list(dict.fromkeys(address for host in self.options.hosts for address in resolve(_name_in(host))))

    def check(self) -> list[EngineFinding]:
        if shutil.which(self.options.mpiexec) is None:
            advice = "load the module of an MPI, install one (pip install mpich), or set the option mpiexec"
            return [EngineFinding(self.options.mpiexec, False, f"not on the PATH: {advice}"), self._folder.check()]
        return [self._check_ranks(), self._folder.check()]

    def _check_ranks(self) -> EngineFinding:
        """Start a rank for each host, or one if no host is named, and have each report its interpreter."""
        count = len(self.options.hosts) or 1
        with tempfile.NamedTemporaryFile("w", prefix="ropewalk-hosts-") as machines:
            machines.write("\n".join(self.options.hosts) + "\n")
            machines.flush()
            hosts = ["-machinefile", machines.name] if self.options.hosts else []
            rank = [self.options.python, "-P", "-c", _VERSIONS]
            argv = [self.options.mpiexec, "-n", str(count), *hosts, *self.options.extra, *rank]
            try:
                done = subprocess.run(
                    argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_CHECK_S,
                    cwd="/", env=os.environ | import_environment(),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return EngineFinding("ranks", False, f"{shlex.join(argv)} did not end within {_CHECK_S:g} s")
        said = (done.stdout + done.stderr).strip()
        ranks = re.findall(r"^ropewalk-rank (\S+) (.*)$", done.stdout, re.MULTILINE)
        if done.returncode or len(ranks) != count:
            words = said[-_LAST_WORDS:] or "it said nothing"
            return EngineFinding("ranks", False, f"{shlex.join(argv)} ended with exit code {done.returncode}: {words}")
        ours = f"Python {sys.version_info.major}.{sys.version_info.minor} with ropewalk {VERSION}"
        other = [f"{host} has {versions}" for host, versions in ranks if versions != ours]
        where = ", ".join(sorted({host for host, _ in ranks}))
        words = f"and here it is {ours}: both must be the same" if other else f"started on {where}; {ours}, as here"
        return EngineFinding("ranks", not other, "; ".join([*other, words]))

    def close(self) -> None:
        """Remove the files of finished requests, of this launcher and of launchers that are gone."""
        running = self.runs()
        for (run, _), process in self._started.items():
            if run not in running:
                with contextlib.suppress(subprocess.TimeoutExpired):  # mpiexec ends a moment after its last rank
                    process.wait(_CANCEL_S)
        mine = {run for run, _ in self._started}
        for run in (mine | set(self._folder.old_runs())) - set(running):
            self._folder.remove_run(run)


def _is_elsewhere(facts: Mapping[str, Any]) -> bool:
    """Return whether an mpiexec was started on another host that shares the folder: its process cannot be seen here."""
    return facts["host"] != platform.node()


def _read_facts(folder: Path) -> dict[str, Any] | None:
    try:
        with open_own(folder / "mpiexec.json") as file:  # the file says which process to kill
            return json.loads(file.read())
    except (OSError, ValueError, RecursionError):
        return None


def _name_in(entry: str) -> str:
    """Return the host in a line of a machine file: an IPv6 address, or a name perhaps with a number, as in n1:4."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(entry))
    return entry.partition(":")[0]


def _tail(path: Path, size: int) -> str:
    try:
        with open(open_output(path), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
