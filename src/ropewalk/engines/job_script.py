"""The shell script of a batch job: it hands over the credentials and then becomes the agent.

    folder/0.stdin (0600) ── opened, removed, compared ──▶ standard input ──▶ exec python -m ropewalk.processes…

The folder may lie in one of a project, where other members may rename what they cannot change, and put another folder
in its place. The batch system keeps the script itself, which has the digest of the credentials: with those of somebody
else, the agent would run the code of another launcher. As the credentials hold keys, nobody else has bytes of that
digest, or can change the file that has them; and only this user can have made a log beside that file.

As the agent takes the place of the shell, signals for the batch shell reach the agent itself, and its exit code is the
job's. A job that its batch system starts a second time finds no credentials and ends: a restart is always a fresh
submission.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Sequence

from ropewalk.engines.engine import JobSpec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NO_CREDENTIALS = 78
"""The exit code of a job that finds no credentials (EX_CONFIG of sysexits.h)."""
SETUP_FAILED = 79
"""The exit code of a job whose lines of the option `setup` failed: others of its kind would end likewise."""
NOT_OURS = 80
"""The exit code of a job whose files are not those that its launcher has written."""
SCRIPT_DESCRIPTOR = 9
"""The descriptor from which the shell of a checked script reads it."""
_CHECK = """\
script=$(<"$1") || exit
digest=$(printf %s "$script" | sha256sum) || exit
if [ "$digest" != "$2  -" ]; then
    echo "ropewalk: $1 on $HOSTNAME is not the script that the launcher has written" >&2
    exit {code}
fi
shift 2
exec {descriptor}< <(printf %s "$script")
exec /bin/bash {login}/dev/fd/{descriptor} "$@"
"""


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


def checked_script(path: str, script: str, *arguments: str, is_login: bool) -> list[str]:
    """Return the command that runs a script, of which it knows the digest, if the file still has it.

    Args:
        path: of the file.
        script: its content, without null bytes.
        arguments: of the script.
        is_login: whether a login shell runs it.
    """
    digest = hashlib.sha256(os.fsencode(script.rstrip("\n"))).hexdigest()  # the shell takes line ends away as well
    check = _CHECK.format(code=NOT_OURS, descriptor=SCRIPT_DESCRIPTOR, login="-l " if is_login else "")
    return ["/bin/bash", "-c", check, "ropewalk", path, digest, *arguments]


def not_ours(who: str, folder: str, engine: str) -> str:
    """Return the words for a job that has ended with `NOT_OURS`; the arguments are those of `not_shared`."""
    return (
        f"{who} has found files in the folder {folder} that the launcher did not write, and has run nothing: another "
        f"user has put a folder in its place. Set the option folder of the engine {engine} to one that nobody else may "
        "rename, or whose folders above are yours"
    )


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
        'exec 3<"$credentials" 4</dev/fd/3',
        "ropewalk_place=$(readlink /proc/$$/fd/3) ropewalk_output=$(readlink /proc/$$/fd/1)",
        'rm -f -- "$credentials"',
        "ropewalk_digest=$(sha256sum <&4) || exit",
        f'if [ "$ropewalk_digest" != "{hashlib.sha256(spec.stdin).hexdigest()}  -" ]; then',
        '    echo "ropewalk: $credentials on $HOSTNAME is not what the launcher has written" >&2',
        f"    exit {NOT_OURS}",
        "fi",
        "exec 4<&-",
        "# Output goes into a file beside them, and through no link into another file.",
        'case $ropewalk_output in "${ropewalk_place%/*}"/*.log | /dev/* | [!/]*) ;; *)',
        '    echo "ropewalk: the output goes to $ropewalk_output, where the launcher has no file" >&2',
        f"    exit {NOT_OURS} ;;",
        "esac",
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
