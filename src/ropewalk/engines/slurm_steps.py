"""The engine for Slurm inside an allocation: agents are steps of it, on the nodes that the user already has.

    salloc / sbatch ─▶ launcher ── srun (one for each agent, in a session of its own) ──▶ step on a node ─▶ agent
                          │
                          ├─ poll   ─▶ exit code and output of srun; squeue --steps for steps of other launchers
                          └─ cancel ─▶ scancel JOB.STEP: the rest of the allocation is not ours

A step is named `ropewalk-<run>.<request>.<number>`, and the name without the prefix is its id here, so that the steps
of a launcher that is gone can be found. Credentials are in the shared folder, where the step's script takes them, and
the step itself writes its output there: nothing flows through srun, which only waits and reports how its step ended.
The script is there, too; the command of the step knows its digest.

Steps share nothing, so an agent waits while other steps of the user hold the resources that it asks for (`srun
--exact`). Only a launcher that is itself in a step, which may hold all resources, lets its agents overlap with other
steps (`--overlap`).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ropewalk.engines.batch_sizes import describe, describe_request
from ropewalk.engines.cluster_commands import is_passing, words_of
from ropewalk.engines.engine import Engine, EngineFinding, HostSlots, JobSpec, JobState, JobStatus, short_request
from ropewalk.engines.host_addresses import resolve
from ropewalk.engines.job_script import checked_script
from ropewalk.engines.options import read_options
from ropewalk.engines.resources import Resources
from ropewalk.engines.shared_folder import PREFIX, SharedFolder
from ropewalk.engines.slurm import SlurmEngine
from ropewalk.engines.slurm_allocation import (
    STEPS_FORMAT,
    Allocation,
    Step,
    allocation_of,
    choose_nodes,
    last_words,
    read_allocation,
    read_end,
    read_steps,
)
from ropewalk.engines.slurm_check import check_cluster
from ropewalk.engines.slurm_commands import ask, start_command
from ropewalk.engines.slurm_jobs import SlurmJob, status_of
from ropewalk.engines.slurm_nodes import SINFO_FORMAT, SlurmNode, expand_names, read_sinfo
from ropewalk.engines.slurm_script import SlurmOptions, step_flags, step_script
from ropewalk.errors import EngineError
from ropewalk.quantities import counted

_ID = re.compile(r"(?P<run>[\w-][\w.-]*)\.(?P<request>[0-9a-f]{12})\.(?P<number>\d+)")
_JOB_ID = re.compile(r"\d+(_\d+)?")
_IDS_AT_ONCE = 500
_HOSTS_ASKED = 8
_NUM_SHOWN = 8
"""The CPUs of more nodes than this number are not listed one by one."""
_END_S = 5.0
"""How long an srun may take to end with its step, before it is killed."""
_PAUSE_S = 0.05
_BUSY = "as long as other steps of the allocation hold what it asks for"
"""The reason that is shown for a waiting step; srun itself prints nothing in its first minute."""


def slurm_engine(options: Mapping[str, object] | None = None) -> Engine:
    """Make the engine `slurm`: for steps if the launcher is inside an allocation, for jobs otherwise."""
    read = read_options(SlurmEngine.name, SlurmOptions, options or {})
    is_inside = read.inside == "auto" and bool(allocation_of(os.environ))
    return SlurmSteps(options) if is_inside else SlurmEngine(options)


@dataclass(slots=True)
class _Agent:
    """A step that this launcher has started."""

    client: subprocess.Popen[bytes]
    node: str
    resources: Resources
    was_seen: bool = False
    """Whether Slurm has listed the step."""
    is_cancelled: bool = False
    end: JobStatus | None = None

    @property
    def is_alive(self) -> bool:
        """Whether its srun still runs."""
        return self.client.poll() is None


class SlurmSteps(Engine):
    """Speaks to Slurm through its commands; the options of `SlurmOptions` that concern a queue have no effect."""

    name = "slurm"

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self.options = read_options(self.name, SlurmOptions, options or {})
        self.python = self.options.python
        self.allocation = allocation_of(os.environ)
        """The id of the allocation, for instance "8812"."""
        self._jobs = SlurmEngine(options)
        """For jobs that were submitted outside the allocation: `ropewalk ps` and `stop` find them here too."""
        self._is_in_step = "SLURM_STEP_ID" in os.environ
        self._folder = SharedFolder(self.options.folder, prefix="step-")
        self._agents: dict[str, _Agent] = {}
        self._cancelled: set[str] = set()
        """Steps of other launchers that we have ended."""

    # The allocation

    def _look(self) -> Allocation:
        """Return the current state of the allocation.

        Raises:
            EngineError: the allocation is over, or not visible to this user.
        """
        advice = "start the launcher in a new one, or outside of any with the option inside=submit"
        argv = ["scontrol", "--oneliner", "--details", "show", "job", self.allocation]
        try:
            found = read_allocation(ask(argv, timeout_s=self.options.timeout_s), self.options.gpu_type)
        except EngineError as error:
            if "invalid job id" not in words_of(error).lower():
                raise
            found = None
        if found is None:
            raise EngineError(f"Slurm does not know the allocation {self.allocation}, or no longer; {advice}")
        if not found.is_alive:
            what = "has not begun" if found.job.is_pending else "is over"
            where = f" on {found.job.nodes}" if found.job.nodes else ""
            raise EngineError(f"the allocation {self.allocation} {what} ({found.job.state}{where}); {advice}")
        return found

    def _nodes(self) -> list[SlurmNode]:
        """Return the nodes of the allocation that the options allow."""
        nodes = self._look().nodes
        only, without = expand_names(self.options.nodelist), expand_names(self.options.exclude)
        left = [node for node in nodes if (not only or node.name in only) and node.name not in without]
        if not left:
            names = ", ".join(node.name for node in nodes)
            raise EngineError(
                f"the allocation {self.allocation} has the nodes {names}, of which the options nodelist="
                f"{self.options.nodelist} and exclude={self.options.exclude} leave none"
            )
        return left

    def per_job(self, process: Resources) -> int | None:
        nodes = self._nodes()
        most = max(node.room.holds(process) for node in nodes)
        if most == 0:
            raise EngineError(
                f"no node of the allocation {self.allocation} can hold a process of {describe_request(process)}: it "
                f"has at most {describe(nodes)} on a node; ask for less, or for a larger allocation"
            )
        return min(most, self.options.processes_per_job or most)

    def places(self) -> HostSlots:
        nodes = self._nodes()
        advice = "or for a larger allocation; with the option inside=submit, further jobs are submitted instead"
        return HostSlots({node.name: node.room for node in nodes}, self._described(nodes), advice)

    def _described(self, nodes: Sequence[SlurmNode]) -> str:
        """Describe the allocation in words; Slurm may give it more CPUs on one node than on another."""
        cpus = [str(node.cpus) for node in nodes]
        uneven = f", {' + '.join(cpus)} CPUs" if len(set(cpus)) > 1 and len(cpus) <= _NUM_SHOWN else ""
        count = f"{counted(len(nodes), 'node')}"
        return f"the allocation {self.allocation} ({count} with up to {describe(nodes)}{uneven})"

    def hosts(self) -> list[str]:
        names = [node.name for node in self._nodes()][:_HOSTS_ASKED]
        argv = ["sinfo", "--all", "--Node", "--exact", "--noheader", f"--format={SINFO_FORMAT}"]
        known = read_sinfo(ask([*argv, f"--nodes={','.join(names)}"], timeout_s=self.options.timeout_s))
        return list(dict.fromkeys(address for node in known for address in resolve(node.address)))

    # Starting

    def submit_all(self, spec: JobSpec, count: int, run_id: str, request_id: str) -> list[str]:
        request = short_request(request_id)
        ids = [f"{run_id}.{request}.{number}" for number in range(count)]
        if not _ID.fullmatch(ids[0]):
            raise EngineError(f"a run is named by letters, digits, dots and dashes, not {run_id!r}")
        if self._folder.has_request(run_id, request):  # made by an earlier launcher of this run
            if taken := [id for id in self._steps() if id in ids]:
                return sorted(taken, key=_place)
            self._folder.remove_request(run_id, request)
        nodes = self._places(spec, count)
        folder = self._folder.place(run_id, request)
        try:
            script = step_script(self.options, spec, run_id, str(folder))
            commands = [self._command(spec, id, node, str(folder), script) for id, node in zip(ids, nodes, strict=True)]
        except ValueError as error:
            raise EngineError(f"this job cannot be written down for Slurm: {error}") from error
        self._folder.prepare(run_id, request, count, spec.stdin, script)
        try:
            for number, (id, command, node) in enumerate(zip(ids, commands, nodes, strict=True)):
                client = start_command(command, folder / f"{number}.srun")
                self._agents[id] = _Agent(client, node.name, spec.resources)
        except BaseException:
            self._end([id for id in ids if id in self._agents])
            self._folder.remove_request(run_id, request)
            raise
        return ids

    def _places(self, spec: JobSpec, count: int) -> list[SlurmNode]:
        """Choose a node for each agent; raises if the allocation is too small for these and the running agents."""
        nodes = self._nodes()
        by_name = {node.name: node for node in nodes}
        agents = [agent for agent in self._agents.values() if agent.is_alive and not agent.is_cancelled]
        taken = [(agent.node, agent.resources) for agent in agents]
        if spec.place:  # chosen by the session, which knows what is taken; a step waits for agents that are ending
            nodes = [by_name[spec.place]] if spec.place in by_name else []
            taken = []
            if not nodes:
                raise EngineError(f"the allocation {self.allocation} has no node {spec.place}, or no longer")
        chosen = choose_nodes(nodes, taken, spec.resources, count)
        if len(chosen) < count:
            have = f"{len(taken)} run there already, and " if taken else ""
            raise EngineError(
                f"{self._described(nodes)} is too small: "
                f"{have}it has room for {len(chosen)} agents of {describe_request(spec.resources)}, and {count} were "
                "asked for. Ask for fewer processes or less for each, for a larger allocation, or for further jobs "
                "with the option inside=submit"
            )
        return [by_name[name] for name in chosen]

    def _command(self, spec: JobSpec, id: str, node: SlurmNode | None, folder: str, script: str) -> list[str]:
        place, gpus = (node.name, node.gpus) if node else ("NODE", 0)
        flags = step_flags(self.options, spec, self.allocation, place, gpus)
        overlap = ["--overlap"] if self._is_in_step else []
        number = id.rpartition(".")[2]
        shell = checked_script(f"{folder}/job.sh", script, number, is_login=bool(self.options.setup))
        return ["srun", f"--job-name={PREFIX}{id}", *flags, *overlap, *shell]

    def render(self, spec: JobSpec) -> str:
        folder = str(self._folder.place("RUN", "REQUEST"))
        try:
            node = next((node for node in self._nodes() if node.name == spec.place), None) if spec.place else None
            script = step_script(self.options, spec, "RUN", folder)
            command = shlex.join(self._command(spec, "RUN.REQUEST.0", node, folder, script))
            return f"{command}\n# {folder}/job.sh\n{script}"
        except ValueError as error:
            raise EngineError(f"this job cannot be written down for Slurm: {error}") from error

    # Watching

    def poll(self, ids: Sequence[str]) -> dict[str, JobStatus]:
        jobs = self._jobs.poll(others) if (others := [id for id in ids if _JOB_ID.fullmatch(id)]) else {}
        with self._lock:
            ended = {id: agent.end for id in ids if (agent := self._agents.get(id)) and agent.end}
            asked = [id for id in ids if id not in ended and _ID.fullmatch(id)]
            steps = self._steps() if asked else {}
            return {id: jobs.get(id) or ended.get(id) or self._status(id, steps) for id in ids}

    def _status(self, id: str, steps: Mapping[str, Step]) -> JobStatus:
        agent = self._agents.get(id)
        if agent is None:
            if id in steps:
                return JobStatus(JobState.RUNNING)
            if id in self._cancelled:
                return JobStatus(JobState.ENDED, reason="CANCELLED: by its launcher")
            return JobStatus(JobState.LOST, reason="no step of that name runs, and how it ended is not known")
        agent.was_seen |= id in steps
        said = self._said(id)
        code = agent.client.poll()
        if code is None and agent.was_seen:
            return JobStatus(JobState.RUNNING)
        if code is None:
            return JobStatus(JobState.PENDING, reason=f"{last_words(said) or 'srun waits'}: {_BUSY}")
        if code < 0 and id in steps:
            return JobStatus(JobState.RUNNING, reason="its srun was killed, and the step goes on")
        agent.end = self._how_it_ended(id, agent, code, said)
        return agent.end

    def _how_it_ended(self, id: str, agent: _Agent, code: int, said: str) -> JobStatus:
        end = read_end(code, said)
        if agent.is_cancelled and end.exit_code in (None, -9, -15):
            return JobStatus(JobState.ENDED, end.exit_code, "CANCELLED: by its launcher")
        if end.state != "COMPLETED" and end.exit_code in (None, 0, -9, -15):
            try:
                self._look()
            except EngineError as error:
                if not is_passing(error):
                    # While the allocation is being ended, it does not tell why; the step does.
                    why = f"{end.state} on {agent.node}: " if end.state != "FAILED" else ""
                    return JobStatus(JobState.ENDED, end.exit_code or None, f"{why}{error}")
        # The shell of a node that does not see the folder says so on its way to the log, which is in the folder.
        folder = str(self._folder.path)
        unseen = end.state == "FAILED" and f"{folder}/" in said and "No such file or directory" in said
        job = SlurmJob(id, PREFIX + id, "", end.state, "", end.exit_code, agent.node, has_no_files=unseen)
        status = status_of(job, folder)
        words = f": {end.words}" if end.state == "FAILED" and end.words else ""
        return JobStatus(JobState.ENDED, status.exit_code, status.reason + words, status.hopeless)

    def _said(self, id: str) -> str:
        """Return the output of srun itself so far."""
        run, request, number = _place(id)
        return self._folder.log(run, request, number, "srun")

    def _steps(self) -> dict[str, Step]:
        """Return the running steps of all launchers of this user, by our ids."""
        argv = ["squeue", "--steps", "--noheader", f"--user={os.getuid()}", f"--format={STEPS_FORMAT}"]
        found = read_steps(ask(argv, timeout_s=self.options.timeout_s))
        steps = {step.name.removeprefix(PREFIX): step for step in found if step.name.startswith(PREFIX)}
        return {id: step for id, step in steps.items() if _ID.fullmatch(id)}

    def find(self, run_id: str) -> list[str]:
        return self.runs().get(run_id, [])

    def runs(self) -> dict[str, list[str]]:
        with self._lock:
            runs = self._jobs.runs()
            for id in sorted(self._alive(), key=_place):
                runs.setdefault(_place(id)[0], []).append(id)
            return runs

    def remains(self) -> dict[str, list[str]]:
        remains = self._jobs.remains()
        with self._lock:
            for run, those in self._folder.remains({_place(id)[0] for id in self._alive()}).items():
                remains.setdefault(run, []).extend(those)
            return remains

    def remove_remains(self, run_id: str) -> None:
        self._jobs.remove_remains(run_id)
        with self._lock:
            if run_id not in {_place(id)[0] for id in self._alive()}:
                self._folder.remove_run(run_id)

    def _alive(self) -> set[str]:
        """Return the ids of all running steps, and of our waiting ones."""
        return set(self._steps()) | {id for id, agent in self._agents.items() if agent.is_alive}

    def logs(self, id: str) -> str:
        if not _ID.fullmatch(id):
            return self._jobs.logs(id)
        with self._lock:
            output = self._folder.log(*_place(id))
            agent = self._agents.get(id)
            return output if output or agent is None or agent.is_alive else self._said(id)

    # Ending

    def ask_to_end(self, ids: Sequence[str], grace_s: float) -> bool:
        jobs = [id for id in ids if _JOB_ID.fullmatch(id)]
        with self._lock:
            running = [step.id for id, step in self._steps().items() if id in ids]
            self._scancel(running, "TERM")
        return bool(running) | (bool(jobs) and self._jobs.ask_to_end(jobs, grace_s))

    def cancel(self, ids: Sequence[str]) -> None:
        if any(_JOB_ID.fullmatch(id) for id in ids):
            jobs = {id for found in self._jobs.runs().values() for id in found}  # not the allocation, nor others
            self._jobs.cancel([id for id in ids if id in jobs])
        with self._lock:
            self._cancel([id for id in ids if _ID.fullmatch(id)])

    def _cancel(self, ids: Sequence[str]) -> None:
        alive = [id for id in ids if (agent := self._agents.get(id)) and agent.is_alive]
        others = [id for id in ids if id not in self._agents]
        if not alive and not others:
            return
        for id in alive:
            self._agents[id].is_cancelled = True
        ended = {*alive, *self._end([*alive, *others])}
        for id in ended:
            self._folder.remove_credentials(*_place(id))
        foreign = ended - set(self._agents)
        self._cancelled |= foreign
        # Files of a launcher that is gone are removed here; `close` removes our own.
        runs = {_place(id)[0] for id in foreign} - {run for run, _ in self._requests}
        if runs:
            for run in runs - {_place(id)[0] for id in set(self._steps()) - ended}:
                self._folder.remove_run(run)

    def _end(self, ids: Sequence[str]) -> set[str]:
        """End steps, and the srun of our own; returns the steps that Slurm knew."""
        clients = [agent.client for id in ids if (agent := self._agents.get(id)) and agent.is_alive]
        # 1. A waiting srun gives up, and one with a running step kills the step without the controller.
        for client in clients:
            client.terminate()
        # 2. Steps of other launchers, and steps that srun could not reach.
        steps = self._steps()
        known = set(ids) & set(steps)
        self._scancel([steps[id].id for id in known])
        deadline = time.monotonic() + _END_S
        while any(client.poll() is None for client in clients) and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)
        for client in clients:
            client.kill()
            client.wait()
        # 3. Steps that were created while srun was being ended, or whose node was too busy to end them.
        while clients and (left := [step.id for id, step in self._steps().items() if id in ids]):
            self._scancel(left)
            if time.monotonic() >= deadline:
                break
            time.sleep(_PAUSE_S)
        return known

    def _scancel(self, steps: Sequence[str], signal: str = "KILL") -> None:
        for start in range(0, len(steps), _IDS_AT_ONCE):
            try:
                argv = ["scancel", f"--signal={signal}", *steps[start : start + _IDS_AT_ONCE]]
                ask(argv, timeout_s=self.options.timeout_s)
            except EngineError as error:
                if is_passing(error):  # any other error means that the step has ended in the meantime
                    raise

    def close(self) -> None:
        """Remove the files of runs whose steps are all over, and old files of launchers that are gone."""
        self._jobs.close()
        with self._lock:
            runs = {run for run, _ in self._requests} | set(self._folder.old_runs())
            if not runs:
                return
            with contextlib.suppress(EngineError):  # Slurm does not answer; a later launcher cleans up
                for run in runs - {_place(id)[0] for id in self._alive()}:
                    self._folder.remove_run(run)

    def check(self) -> list[EngineFinding]:
        has_srun = shutil.which("srun") is not None
        findings = [EngineFinding("srun", has_srun, shutil.which("srun") or "not on the PATH: load Slurm's module")]
        try:
            found = self._look()
            words = f"{self.allocation}: agents are steps on {found.job.nodes}; its time ends: {found.ends.lower()}"
            findings.append(EngineFinding("allocation", True, words))
        except EngineError as error:
            findings.append(EngineFinding("allocation", False, str(error)))
        return [*findings, *check_cluster(self.options, self._folder, self._nodes)]


def _place(id: str) -> tuple[str, str, int]:
    """Return run, request and number of a step, which say where its files are."""
    run, request, number = id.rsplit(".", 2)
    return run, request, int(number)
