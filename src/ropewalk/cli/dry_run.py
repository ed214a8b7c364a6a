"""The output of `--dry-run`: the jobs that a script would submit to its engine, without secrets."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from ropewalk.engines import make_engine
from ropewalk.engines.engine import HostSlots, JobSpec, Reach
from ropewalk.engines.resources import usable_cpus
from ropewalk.errors import EngineError
from ropewalk.interpreters import module_command
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.project_files import find_project, list_files
from ropewalk.processes.sizing import Share, described, shares, shares_of_places, too_many
from ropewalk.quantities import counted, listed
from ropewalk.settings import Settings

_NUM_SHOWN = 5


def describe_jobs(chosen: Settings, num_processes: int | None, script: Path | None) -> Iterator[str]:
    """Yield the lines of a dry run: remarks as comments, then the first job as it would be submitted.

    Args:
        chosen: the settings of the script.
        num_processes: the processes that its pools ask for; None for as many as this machine has CPUs.
        script: the file that would run.

    Yields:
        Lines of text.

    Raises:
        EngineError: the engine cannot be asked, or none of its hosts can hold such a process; in the latter case it is
            raised after all lines, which show jobs of one process each.
        CodeRefused: the project has too many files, or files that cannot be read.
    """
    engine = make_engine(chosen.engine, chosen.engine_options)
    try:
        resources = default_resources(chosen)
        count = num_processes or usable_cpus()
        problem: EngineError | None = None
        places: HostSlots | None = None
        try:
            largest, places = engine.per_job(resources), engine.places()
        except EngineError as error:  # the request of one process is still worth showing
            problem, largest = error, 1
        waiting, per_job = [resources] * count, {resources: largest}
        if places:
            refusal = too_many(waiting, places, chosen.hosts)
            problem = EngineError(refusal) if refusal else None
            wanted = shares_of_places(waiting, per_job, [], hosts=chosen.hosts, free=places.rooms, now=0)
        else:
            most = chosen.hosts or engine.most_jobs()
            wanted = shares(waiting, per_job, [], hosts=chosen.hosts, most=most, now=0)
        spec = JobSpec(
            command=module_command(engine.python, "ropewalk.processes.agent_main"),
            resources=wanted[0].resources,
            time_limit_s=chosen.time_limit_s,
            place=wanted[0].place,
        )
        yield f"# engine {chosen.engine} ({chosen.origin('engine')})"
        yield f"# {counted(count, 'process', 'es')} of {described(resources)}"
        yield f"# {counted(len(wanted), 'job')} {_rooms(wanted)}"
        if engine.reach is not Reach.HERE:
            yield _code(chosen, script)
        yield "# the first job, without the facts and secrets that it reads on its standard input:"
        yield engine.render(spec)
        if problem:
            raise problem
    finally:
        engine.close()


def _code(chosen: Settings, script: Path | None) -> str:
    project = find_project(script, Path.cwd())
    if chosen.code == "shared":
        return f"# code: found on every host at {project.root}"
    listing = list_files(project)
    num_files = sum(not stat.S_ISDIR(entry.mode) for entry in listing.entries)
    size_bytes = sum(entry.size_bytes for entry in listing.entries)
    left_out = f"; left out: {listed(listing.left_out, _NUM_SHOWN)}" if listing.left_out else ""
    too_much = ", MORE than" if size_bytes > chosen.code_limit else " of at most"
    return (
        f"# code: {project.root} is sent to every host, {counted(num_files, 'file')}, {size_bytes:,} "
        f"bytes{too_much} {chosen.code_limit:,}{left_out}"
    )


def _rooms(wanted: Sequence[Share]) -> str:
    """Describe how many processes each job has room for, and on which host if that is known."""
    slots = [share.slots for share in wanted]
    if slots[0] is None:
        return "with room for all of them"
    if len(slots) > 1 and len(set(slots)) == 1 and not wanted[0].place:
        return f"with room for {slots[0]} each"
    shown = [f"{share.slots} on {share.place}" if share.place else f"{share.slots}" for share in wanted]
    more = [f"{len(shown) - _NUM_SHOWN} more jobs"] if len(shown) > _NUM_SHOWN else []
    return f"with room for {', '.join([*shown[:_NUM_SHOWN], *more])}"
