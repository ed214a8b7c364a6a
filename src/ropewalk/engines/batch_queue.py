"""What the engines of PBS and LSF share beyond `batch`: their options, the sizes of jobs, and their checks.

Neither cluster manager says before a job is submitted which hosts a queue leads to. So jobs are sized by all hosts of
the cluster, unless the option `processes_per_job` gives the size.
"""

from __future__ import annotations

import abc
import contextlib
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ropewalk.engines.batch import BatchEngine, BatchJob
from ropewalk.engines.batch_sizes import BatchHost, describe, describe_request, usable_share
from ropewalk.engines.cluster_commands import words_of
from ropewalk.engines.engine import EngineFinding, JobSpec, JobStatus
from ropewalk.engines.host_addresses import resolve
from ropewalk.engines.job_script import NO_CREDENTIALS, NOT_OURS, job_script, not_ours, not_shared
from ropewalk.engines.options import refuse_control_characters
from ropewalk.engines.resources import Resources
from ropewalk.errors import EngineError

_HOSTS_ASKED = 8
"""The number of hosts that are looked up to find out which of our addresses they can reach."""


@dataclass(frozen=True)
class QueueOptions:
    """The options that the engines `pbs` and `lsf` have in common."""

    queue: str = ""
    """Where jobs are queued; the cluster's default queue if empty."""
    project: str = ""
    """The project that the jobs are charged to."""
    time: str = ""
    """Time limit of a job when the run sets none, as the submit command takes it; the queue's default if empty."""
    processes_per_job: int | None = None
    """The most processes in one job; None fills hosts, by the sizes of all hosts of the cluster."""
    python: str = sys.executable
    """The Python interpreter on the hosts."""
    setup: list[str] = field(default_factory=list[str])
    """Lines of shell before the agent starts, such as "module load python"; the script is then a login shell.

    The first line that fails ends the job, and the run with the reason if no other job is up.
    """
    extra: list[str] = field(default_factory=list[str])
    """Further words for the submit command, one list item for each word."""
    timeout_s: float = 20.0
    """The timeout of a command of the cluster manager, in seconds."""

    def __post_init__(self) -> None:
        refuse_control_characters(vars(self))
        if self.timeout_s <= 0 or (self.processes_per_job is not None and self.processes_per_job < 1):
            raise ValueError("timeout_s and processes_per_job must be above 0")


def refuse_own_flags(extra: Sequence[str], own: str, command: str) -> None:
    """Refuse words of the option `extra` that are flags which the engine itself sets.

    Args:
        extra: the words.
        own: a regular expression for the flags of the engine.
        command: the submit command, for messages.

    Raises:
        ValueError: a word is such a flag.
    """
    for word in extra:
        if re.match(own, word):
            raise ValueError(f"extra must not hold {word}: the engine sets this flag of {command} itself")


def given_flags(values: Mapping[str, str]) -> list[str]:
    """Return the flags of a submit command that have a value, each followed by it."""
    return [word for flag, value in values.items() if value for word in (flag, value)]


class QueueEngine(BatchEngine):
    """The engine of a batch system with queues, of which only the commands are known."""

    queue_options: QueueOptions
    needed: ClassVar[Sequence[str]]
    """The commands that must be on the PATH."""
    probes: ClassVar[Sequence[tuple[str, Sequence[str]]]]
    """What `check` asks: the title of each finding, and the command."""
    size_advice: ClassVar[str]
    """What to do if a job is too large for the hosts that are known; follows "ask for less, "."""
    task_number: ClassVar[str]
    """The shell expression for the number of a job in its request."""

    def __init__(self, options: QueueOptions, folder: str) -> None:
        super().__init__(folder, options.timeout_s)
        self.queue_options = options
        self.python = options.python

    @abc.abstractmethod
    def _cluster_hosts(self) -> list[BatchHost]:
        """Return all hosts on which jobs may run."""

    def _script(self, spec: JobSpec, run_id: str, folder: str) -> str:
        # The job writes its output itself: PBS and LSF copy it to its place only when the job has ended.
        setup = self.queue_options.setup
        return job_script(self.name, spec, run_id, folder, self.task_number, setup=setup, writes_log=True)

    def _status(self, id: str, job: BatchJob | None) -> JobStatus:
        status = super()._status(id, job)
        if status.exit_code == NOT_OURS:
            words = not_ours("its node", str(self._folder.path), self.name)
            return JobStatus(status.state, status.exit_code, words, hopeless=True)
        if status.exit_code != NO_CREDENTIALS:
            return status
        # Its own words were for its log, which is in the folder; so are those of one that was started a second time.
        words = not_shared("its node", str(self._folder.path), self.name)
        return JobStatus(status.state, status.exit_code, "; ".join(filter(None, [words, status.reason])))

    def _refuse_impossible(self, spec: JobSpec, count: int) -> None:
        if self.queue_options.processes_per_job is None:
            with contextlib.suppress(_HostsUnknown):
                self._share(spec.resources, "job")

    def per_job(self, process: Resources) -> int | None:
        return self.queue_options.processes_per_job or self._share(process, "process")

    def _share(self, process: Resources, what: str) -> int:
        try:
            hosts = self._cluster_hosts()
        except EngineError as error:
            raise _HostsUnknown(
                f"{error}; without the sizes of hosts, say how many processes fit into one job with the option "
                "processes_per_job"
            ) from error
        share = usable_share(hosts, process)
        if share == 0:
            raise EngineError(
                f"no host of this {self.system} cluster can hold a {what} of {describe_request(process)}: the largest "
                f"have {describe(hosts)}; ask for less, {self.size_advice}"
            )
        return share

    def hosts(self) -> list[str]:
        found: list[BatchHost] = []
        with contextlib.suppress(EngineError):  # the cluster does not tell; the user can advertise an address
            found = sorted(self._cluster_hosts(), key=lambda host: not host.is_usable)
        return list(dict.fromkeys(address for host in found[:_HOSTS_ASKED] for address in resolve(host.name)))

    def check(self) -> list[EngineFinding]:
        title = f"commands of {self.system}"
        missing = [command for command in self.needed if shutil.which(command) is None]
        if missing:
            return [
                EngineFinding(title, False, f"not on the PATH: {', '.join(missing)}; {self.commands.missing}"),
                self._folder.check(),
            ]
        findings = [EngineFinding(title, True, os.path.dirname(shutil.which(self.submit_command) or ""))]
        findings += [self._probe(what, argv) for what, argv in self.probes]
        try:
            hosts = self._cluster_hosts()
            usable = sum(host.is_usable for host in hosts)
            words = f"{usable} of {len(hosts)} can be used, with up to {describe(hosts)}"
            findings.append(EngineFinding("hosts", bool(usable), words))
        except EngineError as error:
            findings.append(EngineFinding("hosts", False, str(error)))
        return [*findings, self._folder.check()]

    def _probe(self, what: str, argv: Sequence[str]) -> EngineFinding:
        queue = self.queue_options.queue
        try:
            said = self._ask(*argv, *([queue] if what == "queue" and queue else []))
        except EngineError as error:
            return EngineFinding(what, False, words_of(error) or str(error))
        lines = said.strip().splitlines()
        return EngineFinding(what, True, lines[-1].strip() if lines else "answers")


class _HostsUnknown(EngineError):
    """The cluster does not tell of its hosts."""
