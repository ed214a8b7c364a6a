"""What `--dry-run` shows: the jobs that a script would ask its engine for, as they would be sent; nothing secret."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec, Reach
from ropewalk.engines.resources import Resources, usable_cpus
from ropewalk.errors import EngineError
from ropewalk.processes.fleet import default_resources
from ropewalk.processes.project_files import find_project, list_files
from ropewalk.processes.sizing import Share, shares
from ropewalk.settings import Settings

_NUM_SHOWN = 5


def describe_jobs(chosen: Settings, num_processes: int | None, script: Path | None) -> Iterator[str]:
    """The lines of a dry run: remarks as comments, then the first job as the engine would be told of it.

    Args:
        chosen: the settings of the script.
        num_processes: what its pools ask for; None if they ask for what this machine has.
        script: the file that would run.

    Raises:
        EngineError: the engine cannot be asked, or no host of it can hold such a process; then, after all lines, which
            show jobs of one process each.
        CodeRefused: the project has too many files, or some that cannot be read.
    """
    engine = make_engine(chosen.engine, chosen.engine_options)
    try:
        resources = default_resources(chosen)
        count = num_processes or usable_cpus()
        problem: EngineError | None = None
        try:
            largest = engine.per_job(resources)
        except EngineError as error:  # what one process needs is worth seeing all the same
            problem, largest = error, 1
        most = chosen.hosts or engine.most_jobs()
        wanted = shares([resources] * count, {resources: largest}, [], hosts=chosen.hosts, most=most, now=0)
        spec = JobSpec(
            command=[engine.python, "-m", "ropewalk.processes.agent"],
            resources=wanted[0].resources,
            time_limit_s=chosen.time_limit_s,
        )
        yield f"# engine {chosen.engine} ({chosen.origin('engine')})"
        yield f"# {_counted(count, 'process', 'es')} of {_shown(resources)}"
        yield f"# {_counted(len(wanted), 'job')}, the first with {_room(wanted[0])}"
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
    more = f" and {len(listing.left_out) - _NUM_SHOWN} more" if len(listing.left_out) > _NUM_SHOWN else ""
    left_out = f"; left out: {', '.join(listing.left_out[:_NUM_SHOWN])}{more}" if listing.left_out else ""
    too_much = ", MORE than" if size_bytes > chosen.code_limit else " of at most"
    return (
        f"# code: {project.root} is sent to every host, {_counted(num_files, 'file')}, {size_bytes:,} "
        f"bytes{too_much} {chosen.code_limit:,}{left_out}"
    )


def _room(share: Share) -> str:
    return "all of them" if share.slots is None else f"room for {share.slots}"


def _shown(resources: Resources) -> str:
    parts = [f"{resources.cpus:g} CPU{'s' * (resources.cpus != 1)}"]
    parts += [f"{resources.gpus} GPU{'s' * (resources.gpus != 1)}"] * bool(resources.gpus)
    parts += [f"{resources.memory_bytes:,} bytes of memory"] if resources.memory_bytes else []
    return ", ".join(parts)


def _counted(count: int, what: str, plural: str = "s") -> str:
    return f"{count} {what}{plural * (count != 1)}"
