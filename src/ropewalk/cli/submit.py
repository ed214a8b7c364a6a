"""`ropewalk submit`: run a script without this terminal; its launcher itself becomes a job.

On this machine that is a process in a session of its own, whose output is kept in the state folder; on a cluster it is
a job of the engine like any other, with the project's code on its standard input, or on the shared file system.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from ropewalk.cli import placing
from ropewalk.cli.command_line import failure
from ropewalk.cli.run import RunCommand, bounds_or_refuse, show_dry_run
from ropewalk.cli.submissions import RunProcess, RunSpec, Submission, forget_old, make_folder, write
from ropewalk.engines import make_engine
from ropewalk.engines.engine import JobSpec
from ropewalk.errors import EngineError, RopewalkError
from ropewalk.interpreters import import_environment, module_command
from ropewalk.processes.code_bundle import find_project, make_bundle
from ropewalk.program.script_code import NotAProgram, load_file
from ropewalk.setting_values import PREFIX
from ropewalk.settings import Settings
from ropewalk.trusted_files import open_to_append

_HERE_ONLY = ("key_folder", "run_folder", "store", "logs", "advertise")
"""Settings that apply to this machine only, or may hold a secret, as the URL of a store."""


@click.command(cls=RunCommand)
@placing.script_options
@click.option(
    "--launcher-restarts",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="How many times the launcher restarts after it was killed; see docs/engines.md.",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was submitted as JSON.")
def submit(
    file: str | None,
    arguments: tuple[str, ...],
    module: str | None,
    ranks: str | None,
    max_restarts: int | None,
    dry_run: bool,
    launcher_restarts: int,
    as_json: bool,
    **where: Any,
) -> None:
    """Run a script without this terminal; on a cluster, the script itself becomes a job.

    Prints the id of the run, for `ropewalk ps`, `logs -f`, `attach` and `stop`:

        ropewalk submit train.py --engine slurm --workers 64 -- --seed 7
    """
    given = list(arguments)
    if module is not None and file is not None:
        given.insert(0, file)
        file = None
    placed = placing.place_or_refuse(**where)
    os.environ.update(placed.variables)
    bounds = bounds_or_refuse(ranks, max_restarts)
    if dry_run:
        show_dry_run(placed.settings, file, bounds and bounds[1])
        return
    try:
        errand = msgspec.structs.replace(
            _errand(file, module, given),
            ranks=ranks,
            max_restarts=max_restarts or 0,
            launcher_restarts=launcher_restarts,
        )
        submission = _submit(errand, placed.settings)
    except (NotAProgram, RopewalkError, OSError) as error:
        raise failure(str(error)) from None
    if as_json:
        facts = msgspec.structs.asdict(submission)
        del facts["options"]
        click.echo(json.dumps(facts, indent=2))
    else:
        click.echo(submission.id)
    click.echo(f"ropewalk attach {submission.id} follows it, ropewalk stop {submission.id} ends it", err=True)


def _errand(file: str | None, module: str | None, arguments: list[str]) -> RunSpec:
    path = None
    if file is not None:
        path = os.path.realpath(load_file(file).path)  # compiled: a syntax error shows before the job is queued
    elif module is None:
        raise NotAProgram("name a file to run, or a module with -m; see ropewalk submit --help")
    folder = os.path.realpath(os.getcwd())
    return RunSpec(file=path, module=module, arguments=arguments, working_folder=folder, state_folder="")


def _submit(errand: RunSpec, chosen: Settings) -> Submission:
    forget_old(time.time())
    name = Path(errand.file).stem if errand.file else str(errand.module)
    folder = make_folder(name)
    try:
        submission = Submission(
            id=folder.name,
            engine=chosen.engine,
            options=dict(chosen.engine_options),
            job="",
            run_id=os.urandom(8).hex(),
            command=[errand.file or f"-m {errand.module}", *errand.arguments],
            working_folder=errand.working_folder,
            submitted=time.time(),
            host=platform.node(),
        )
        if chosen.engine == "local":
            write(folder, "run.json", submission)
            _start(msgspec.structs.replace(errand, state_folder=str(folder)), folder)
        else:
            submission = _submit_job(errand, submission, folder, chosen)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return submission


def _start(errand: RunSpec, folder: Path) -> None:
    """Start the run on this machine, detached from this terminal, with its output in a file."""
    with open(open_to_append(folder / "output"), "ab") as output:
        process = subprocess.Popen(
            module_command(sys.executable, "ropewalk.cli.submitted"),
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **import_environment(), "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    write(folder, "process.json", RunProcess.of(process.pid))
    assert process.stdin
    with process.stdin:
        process.stdin.write(msgspec.json.encode(errand) + b"\n")
    process.returncode = 0  # it outlives this process, which does not wait for it


def _submit_job(errand: RunSpec, submission: Submission, folder: Path, chosen: Settings) -> Submission:
    """Submit the launcher as a job, and write the record by which it is found again."""
    engine = make_engine(chosen.engine, chosen.engine_options)
    try:
        options = engine.launcher_options(chosen.engine_options)
        code = b""
        if chosen.code == "bundle":
            bundle = make_bundle(
                find_project(Path(errand.file) if errand.file else None, Path.cwd()), chosen.code_limit
            )
            errand, code = msgspec.structs.replace(errand, root=bundle.root), bundle.data
        spec = JobSpec(
            command=module_command(engine.python, "ropewalk.cli.submitted"),
            name="ropewalk-submit",
            environment={**import_environment(), **_environment(chosen, options)},
            stdin=msgspec.json.encode(errand) + b"\n" + code,
            folder=str(folder),
            time_limit_s=chosen.time_limit_s,
            outlives=True,
        )
        submission = msgspec.structs.replace(submission, job=engine.submit(spec, 1, submission.run_id, "launcher")[0])
        try:
            write(folder, "run.json", submission)
        except BaseException:  # a full disk, or Ctrl-C: nobody would know of the job
            with contextlib.suppress(EngineError):
                engine.cancel([submission.job])
            raise
        return submission
    finally:
        engine.close()


def _environment(chosen: Settings, options: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of this launcher for one on another host; they hold no secrets."""
    variables = {f"{PREFIX}ENGINE": chosen.engine, f"{PREFIX}ENGINE_OPTIONS": _options(options)}
    for name in set(chosen.__slots__) - {"engine", "engine_options", "origins", *_HERE_ONLY}:
        if chosen.origin(name) != "default":
            variables[PREFIX + name.upper()] = str(getattr(chosen, name))
    if os.environ.get("ROPEWALK_WORKERS"):
        variables["ROPEWALK_WORKERS"] = os.environ["ROPEWALK_WORKERS"]
    return variables | {"PYTHONUNBUFFERED": "1"}


def _options(options: Mapping[str, object]) -> str:
    return json.dumps(dict(options), default=str)
