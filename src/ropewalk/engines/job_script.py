"""The shell script of a batch job: it hands over the credentials and then becomes the agent.

    folder/0.stdin (0600) ── opened, then removed ──▶ standard input ──▶ exec python -m ropewalk.processes.agent_main

As the agent takes the place of the shell, signals for the batch shell reach the agent itself, and its exit code is the
job's. A job that its batch system starts a second time finds no credentials and ends: a restart is always a fresh
submission.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ropewalk.engines.engine import JobSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_CREDENTIALS = 78
"""The exit code of a job that finds no credentials (EX_CONFIG of sysexits.h)."""
SETUP_FAILED = 79
"""The exit code of a job whose lines of the option `setup` failed: others of its kind would end likewise."""


def job_script(
    engine: str,
    spec: JobSpec,
    run_id: str,
    folder: str,
    number: str,
    *,
    setup: Sequence[str] = (),
    unset: Sequence[str] = (),
    writes_log: bool = False,
) -> str:
    """Return the script of each job of a request.

    Args:
        engine: the name of the engine, for messages.
        spec: the job; its `stdin` does not appear in the script.
        run_id: the run, for the job's environment.
        folder: the folder with the files of standard inputs, if the job has one.
        number: the shell expression for the number of the job in its request.
        setup: lines of shell before the agent starts; the script is then a login shell, and the first line that
            fails ends the job with `SETUP_FAILED`.
        unset: variables of the batch system's commands that jobs must not inherit.
        writes_log: whether the job writes its output to the folder itself; otherwise the batch system does.

    Returns:
        The text of the script.

    Raises:
        ValueError: the environment has a name or value that no shell can set.
    """
    lines = [
        "#!/bin/bash -l" if setup else "#!/bin/bash",
        *([f"exec >>{shlex.quote(folder)}/{number}.log 2>&1"] if writes_log else []),
        f"# A job of Ropewalk, run {run_id}. What is secret comes on its standard input and is not part of this text.",
        f"unset LC_ALL {' '.join(unset)}".rstrip(),
        "# A notice that comes before the agent listens must not end it.",
        "trap '' USR1",
        "export PATH=${PATH:-/usr/local/bin:/usr/bin:/bin} HOME=${HOME:-~}",
        *_hand_over(engine, spec, folder, number),
        *_run_setup(engine, setup),
        *_exports({**spec.environment, "ROPEWALK_RUN_ID": run_id}),
        f"exec {shlex.join(spec.command)}" + (" <&3 3<&-" if spec.stdin else " </dev/null"),
    ]
    return "\n".join(lines) + "\n"


def not_shared(who: str, folder: str, engine: str) -> str:
    """Return the words for a job that has ended with `NO_CREDENTIALS`.

    Args:
        who: the node on which it ran, or "its node".
        folder: the folder of its files, as the launcher names it.
        engine: the name of the engine.
    """
    return (
        f"{who} cannot open the job's files in the folder {folder}, through which the launcher and the nodes exchange "
        f"scripts, credentials and output: set the option folder of the engine {engine} to one that all nodes share"
    )


def _hand_over(engine: str, spec: JobSpec, folder: str, number: str) -> list[str]:
    if not spec.stdin:
        return []
    return [
        f"credentials={shlex.quote(folder)}/{number}.stdin",
        'if ! [ -r "$credentials" ]; then',
        '    echo "ropewalk: $HOSTNAME does not see $credentials. Either hosts do not share that folder (see the option'
        f' folder of the engine {engine}), or this job was started before, which needs a fresh submission." >&2',
        f"    exit {NO_CREDENTIALS}",
        "fi",
        'exec 3<"$credentials"',
        'rm -f -- "$credentials"',
    ]


def _run_setup(engine: str, lines: Sequence[str]) -> list[str]:
    """Return the lines between traps that see how they end.

    `set -e` would also end the job where a command of a sourced file fails, such as one of `conda`, which checks it
    itself.
    """
    if not lines:
        return []
    failed = (
        f"ropewalk: the option setup of the engine {engine} ended with exit code $ropewalk_code at: $BASH_COMMAND; "
        "end a line with || true if its failure does not matter"
    )
    return [
        "ropewalk_depth=${#BASH_SOURCE[@]}",
        f"""trap 'ropewalk_code=$?; echo "{failed}" >&2; exit {SETUP_FAILED}' EXIT""",
        """trap 'ropewalk_code=$?; [ ${#BASH_SOURCE[@]} -gt $ropewalk_depth ] || exit $ropewalk_code' ERR""",
        ": setup",
        *lines,
        "trap - EXIT ERR",
    ]


def _exports(environment: dict[str, str]) -> list[str]:
    for name, value in environment.items():
        if not _NAME.fullmatch(name) or "\0" in value:
            raise ValueError(f"the variable {name!r}, or its value, cannot be set by a shell")
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def shown(argv: Sequence[str], script: str) -> str:
    """Return a command and the script on its standard input as one command that could be typed."""
    return f"{shlex.join(argv)} <<'END'\n{script}END\n"
