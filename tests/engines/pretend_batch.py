"""Stand-ins for the commands of PBS and LSF, which run jobs as real processes of this machine.

    bin/qsub ──folder, words, environment, streams──▶ server ──fork──▶ qsub ──fork──▶ supervisor ─▶ script ─▶ the job
        ◀───────────────── exit code ───────────────────────────────────┘

The server has imported what the commands need: a command takes a third of the CPU time of a program of its own.
They know the flags that our engines use, no others, and refuse what they do not know: they show that the engines work
with these commands as their manuals describe them, and nothing about a real cluster. A job is a file in the folder,
`7.json` or `7.2.json`; its supervisor adopts all that the job starts, ends it with the job, and writes `7.2.end`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import glob
import json
import marshal
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

PBS = ("qsub", "qselect", "qstat", "qsig", "qdel", "pbsnodes")
LSF = ("bsub", "bjobs", "bkill", "bhosts", "bqueues", "lsid")
CPUS = 4
_SERVER = "pretend"
_ADOPT = 36  # PR_SET_CHILD_SUBREAPER
_END_S = 10.0


_REQUEST_BYTES = 1 << 20
_CLIENT = """
import marshal, posix, sys, _socket
call = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
call.connect(sys.argv[1])
streams = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
call.sendmsg(
    [marshal.dumps([posix.getcwd(), sys.argv[2:], posix.environ])], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
)
sys.exit((call.recv(1) or [1])[0])
"""
"""What a command is: it imports nothing that an interpreter without `site` does not have already."""


def install(bin: Path, folder: Path, server: str) -> None:
    """Write the commands into a folder for the PATH; their jobs are files in another, and a server runs them."""
    bin.mkdir()
    folder.mkdir()
    (bin / "client").write_text(_CLIENT)
    for name in PBS + LSF:
        command = bin / name
        words = f'"{sys.executable}" -S -E -P "{bin}/client" "{server}" "{folder}" {name}'
        command.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        command.chmod(0o755)


@contextlib.contextmanager
def serving() -> Generator[str]:
    """Run the server of the commands, and give its address, which only this user can reach."""
    place = tempfile.mkdtemp(dir="/tmp")  # the address of a socket has 107 bytes at most
    address = f"{place}/commands"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(64)
            number = listener.fileno()
            argv = [sys.executable, "-S", "-E", "-P", "-X", "utf8", __file__, str(number)]
            server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[number])
        yield address
        server.kill()
        server.wait()
    finally:
        shutil.rmtree(place)


def serve(listener: socket.socket) -> NoReturn:
    """Run each command in a fork, several at a time."""
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    while True:
        call, _ = listener.accept()
        with call:
            if not os.fork():
                listener.close()
                become_command(call)


def become_command(call: socket.socket) -> NoReturn:
    """Do what one command asks for, with its folder, environment and streams, and tell it the exit code."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        request, streams, *_ = socket.recv_fds(call, _REQUEST_BYTES, 3)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        folder, (jobs_folder, name, *words), environment = marshal.loads(request)
        os.chdir(folder)
        os.environb.clear()
        os.environb.update(environment)
        globals()[name](Path(jobs_folder), words)
        code = 0
    except SystemExit as stop:
        print(stop.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        call.send(bytes([code]))
        os._exit(code)


def wait_for_supervisors(folder: Path) -> None:
    """Wait until no job has a supervisor any more, after all jobs have ended."""
    deadline = time.monotonic() + _END_S
    for file in folder.glob("*.json"):
        pid = json.loads(file.read_text())["supervisor"]
        while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


# --- Jobs -------------------------------------------------------------------------------------------------------------


def submit(folder: Path, name: str, tasks: list[int | None], environment: dict[str, str], index: str) -> int:
    """Start the jobs of an array, or one job, whose script is on the standard input; return the number."""
    script = sys.stdin.read()
    with open(folder / "number", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        number = int(file.read() or 0) + 1
        file.truncate(0)
        file.write(str(number))
    path = folder / f"{number}.sh"
    path.write_text(script)
    for task in tasks:
        stem = f"{number}" if task is None else f"{number}.{task}"
        pid = os.fork()
        if pid == 0:
            supervise(folder / stem, path, environment | ({} if task is None else {index: str(task)}))
        (folder / f"{stem}.new").write_text(json.dumps({"name": name, "supervisor": pid}))
        os.rename(folder / f"{stem}.new", folder / f"{stem}.json")
    return number


def supervise(stem: Path, script: Path, environment: dict[str, str]) -> None:
    """Run one job to its end, in a process of its own."""
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.closerange(3, 64)  # among them the connection to the command, which ends before the job
    ctypes.CDLL(None).prctl(_ADOPT, 1, 0, 0, 0)
    code: int | None = None
    if not stem.with_name(stem.name + ".deleted").exists():
        job = subprocess.Popen(["/bin/bash", str(script)], env=environment, start_new_session=True)
        stem.with_name(stem.name + ".up").touch()
        code = job.wait()
    while processes := descendants(os.getpid()):
        send(processes, signal.SIGKILL)
        reap()
        time.sleep(0.005)
    stem.with_name(stem.name + ".ending").write_text(json.dumps(code))
    os.rename(stem.with_name(stem.name + ".ending"), stem.with_name(stem.name + ".end"))
    os._exit(0)


def reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def descendants(root: int) -> list[int]:
    parents: dict[int, int] = {}
    for stat in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(stat, errors="replace") as file:
            parents[int(stat.split("/")[2])] = int(file.read().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {root})


def send(processes: list[int], number: int) -> None:
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def jobs(folder: Path) -> dict[str, dict[str, Any]]:
    """Every job by "7" or "7.2": its name, supervisor, whether it is up and whether and how it has ended."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(folder.glob("*.json"), key=lambda file: [int(part) for part in file.stem.split(".")]):
        job = json.loads(file.read_text())
        end = folder / f"{file.stem}.end"
        job["is_over"] = end.exists()
        job["code"] = json.loads(end.read_text()) if job["is_over"] else None
        job["is_up"] = (folder / f"{file.stem}.up").exists()
        found[file.stem] = job
    return found


def tell(folder: Path, stems: list[str], number: int) -> list[str]:
    """Send a signal to all processes of running jobs; return those that do not run."""
    known = jobs(folder)
    for stem in stems:
        if stem in known and not known[stem]["is_over"]:
            send(descendants(known[stem]["supervisor"]), number)
    return [stem for stem in stems if stem not in known or known[stem]["is_over"]]


def remove(folder: Path, stems: list[str]) -> list[str]:
    """End jobs; return those that had ended before, or that are unknown."""
    gone = tell(folder, stems, signal.SIGTERM)
    for stem in set(stems) - set(gone):
        (folder / f"{stem}.deleted").touch()
        while not jobs(folder)[stem]["is_over"]:
            tell(folder, [stem], signal.SIGKILL)
            time.sleep(0.005)
    return gone


def user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def options_of(words: list[str], known: str, flags: str = "") -> tuple[dict[str, list[str]], list[str]]:
    """Read options with a value (`known`) and without one (`flags`), each a word of these texts."""
    found: dict[str, list[str]] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if word in known.split():
            found.setdefault(word, []).append(words.pop(0))
        elif word in flags.split():
            found.setdefault(word, []).append("")
        elif word.startswith("-"):
            sys.exit(f"illegal option {word}")
        else:
            rest.append(word)
    return found, rest


# --- PBS --------------------------------------------------------------------------------------------------------------


def qsub(folder: Path, words: list[str]) -> None:
    given, rest = options_of(words, "-N -S -j -o -C -J -r -l -q -A -P")
    assert not rest, rest
    if given.get("-q", ["workq"]) != ["workq"]:
        sys.exit("qsub: Unknown queue")
    last = int(given["-J"][0].removeprefix("0-")) if "-J" in given else None
    assert last is None or last > 0, "an array has at least two tasks"
    assert all(re.fullmatch(r"(select=1:ncpus=\d.*|place=pack|walltime=[\d:]+)", word) for word in given["-l"])
    environment = {name: os.environ[name] for name in ("HOME", "USER", "PATH") if name in os.environ}
    tasks: list[int | None] = [None] if last is None else list(range(last + 1))
    number = submit(folder, given["-N"][0], tasks, environment | {"PBS_ENVIRONMENT": "PBS_BATCH"}, "PBS_ARRAY_INDEX")
    print(f"{number}{'' if last is None else '[]'}.{_SERVER}")


def qselect(folder: Path, words: list[str]) -> None:
    given, rest = options_of(words, "-u", "-x")
    assert not rest and given["-u"] == [user()] and "-x" in given
    for id in dict.fromkeys(pbs_id(stem, whole=True) for stem in jobs(folder)):
        print(id)


def pbs_id(stem: str, whole: bool = False) -> str:
    number, _, task = stem.partition(".")
    return f"{number}[{'' if whole else task}].{_SERVER}" if task else f"{number}.{_SERVER}"


def pbs_stem(id: str) -> str:
    match = re.fullmatch(rf"(\d+)(?:\[(\d+)\])?\.{_SERVER}", id)
    return f"{match[1]}.{match[2]}" if match and match[2] else match[1] if match else "unknown"


def qstat(folder: Path, words: list[str]) -> None:
    if words[:1] in (["-B"], ["-Q"]):
        print(
            "pretend  0  0  0  0  0  0  0  0 Active" if words == ["-B"] else "workq  0  0 yes yes  0  0  0  0  0 Exec"
        )
        return
    if words == ["--version"]:
        print("pbs_version = pretend")
        return
    given, ids = options_of(words, "-F", "-x -t -f")
    assert set(given) == {"-F", "-x", "-t", "-f"} and ids
    listed: dict[str, Any] = {}
    for stem, job in jobs(folder).items():
        whole = pbs_id(stem, whole=True)
        if whole in ids:
            if "[]" in whole:
                listed[whole] = {"Job_Name": job["name"], "job_state": "B", "array": "True"}
            state = ("X" if "." in stem else "F") if job["is_over"] else "R" if job["is_up"] else "Q"
            record = {"Job_Name": job["name"], "Job_Owner": f"{user()}@pretend", "job_state": state}
            if job["code"] is not None:
                record["Exit_status"] = job["code"] if job["code"] >= 0 else 256 - job["code"]
            listed[pbs_id(stem)] = record
    print(json.dumps({"timestamp": 1, "pbs_version": "pretend", "pbs_server": _SERVER, "Jobs": listed}, indent=4))


def qsig(folder: Path, words: list[str]) -> None:
    given, ids = options_of(words, "-s")
    number = signal.Signals[given["-s"][0]]
    if gone := tell(folder, [pbs_stem(id) for id in ids], number):
        sys.exit(f"qsig: Request invalid for state of job {gone}")


def qdel(folder: Path, words: list[str]) -> None:
    if gone := remove(folder, [pbs_stem(id) for id in words]):
        sys.exit(f"qdel: Job has finished {gone}")


def pbsnodes(folder: Path, words: list[str]) -> None:
    assert words == ["-a", "-F", "json"]
    has = {"arch": "linux", "host": "127.0.0.1", "mem": "8388608kb", "ncpus": CPUS, "vnode": "n1"}
    print(json.dumps({"nodes": {"n1": {"Mom": "n1", "ntype": "PBS", "state": "free", "resources_available": has}}}))


# --- LSF --------------------------------------------------------------------------------------------------------------


def bsub(folder: Path, words: list[str]) -> None:
    given, rest = options_of(words, "-J -o -n -R -gpu -W -q -P -G", "-rn")
    assert not rest, rest
    if given.get("-q", ["normal"]) != ["normal"]:
        sys.exit(f"{given['-q'][0]}: No such queue. Job not submitted.")
    match = re.fullmatch(r"([^\[]+)(?:\[1-(\d+)\])?", given["-J"][0])
    assert match
    tasks: list[int | None] = [None] if match[2] is None else list(range(1, int(match[2]) + 1))
    environment = {**os.environ, "LSB_JOBINDEX": "0"}  # bsub copies the environment in which it runs
    number = submit(folder, match[1], tasks, environment, "LSB_JOBINDEX")
    print(f"Job <{number}> is submitted to default queue <normal>.")


def bjobs(folder: Path, words: list[str]) -> None:
    given, rest = options_of(words, "-u -o", "-a -json")
    assert not rest and given["-u"] == [user()] and "-a" in given and "-json" in given
    records = [lsf_record(stem, job) for stem, job in jobs(folder).items()]
    fields = [field.upper() for field in given["-o"][0].split()]
    records = [{field: record[field] for field in fields} for record in records]
    if not records:
        sys.exit("No job found")
    print(json.dumps({"COMMAND": "bjobs", "JOBS": len(records), "RECORDS": records}, indent=2))


def lsf_record(stem: str, job: dict[str, Any]) -> dict[str, str]:
    number, _, task = stem.partition(".")
    code = job["code"]
    state = ("EXIT" if code != 0 else "DONE") if job["is_over"] else "RUN" if job["is_up"] else "PEND"
    return {
        "JOBID": number,
        "JOBINDEX": task or "0",
        "JOB_NAME": job["name"] + (f"[{task}]" if task else ""),
        "STAT": state,
        "EXIT_CODE": "" if not code else str(code if code > 0 else 128 - code),
        "EXIT_REASON": "",
        "PEND_REASON": "New job is waiting for scheduling;" if state == "PEND" else "",
        "EXEC_HOST": "127.0.0.1" if state == "RUN" else "",
    }


def lsf_stem(id: str) -> str:
    return re.sub(r"\[(\d+)\]", r".\1", id)


def bkill(folder: Path, words: list[str]) -> None:
    given, ids = options_of(words, "-s")
    stems = [lsf_stem(id) for id in ids]
    gone = tell(folder, stems, signal.Signals[f"SIG{given['-s'][0]}"]) if "-s" in given else remove(folder, stems)
    if gone:
        sys.exit(f"Job <{gone}>: Job has already finished")


def bhosts(folder: Path, words: list[str]) -> None:
    assert words == ["-X", "-o", "host_name status max", "-json"]
    records = [{"HOST_NAME": "127.0.0.1", "STATUS": "ok", "MAX": str(CPUS)}]
    print(json.dumps({"COMMAND": "bhosts", "HOSTS": 1, "RECORDS": records}))


def bqueues(folder: Path, words: list[str]) -> None:
    print("normal  30  Open:Active  -  -  -  -  0  0  0  0")


def lsid(folder: Path, words: list[str]) -> None:
    print("My cluster name is pretend\nMy master name is pretend")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
