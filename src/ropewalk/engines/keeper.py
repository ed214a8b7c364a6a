"""The keeper: starts and ends jobs on a host of the engines ssh and ray, and watches the launcher.

    launcher ── ssh ══ sshd ── keeper ──┬── job, in a session of its own
       orders, a line of JSON each ───► ├── job
       ◄─── news, a line of JSON each   └── orphans of jobs, which become the keeper's children

It arrives as text over the connection, so it is one file, imports nothing but the standard library, and leaves no file
on the host. Its standard input is a dead-man switch: when it ends (the launcher or its ssh is gone), or nothing arrives
before a timeout (the cable is cut, which sshd does not report), every job ends, with all its descendants.

One kind of job outlives the connection, the launcher of a submitted run. It has a keeper of its own, which has no
connection, and leaves in the user's state folder what a later connection asks for:

    ~/.local/state/ropewalk/jobs/<job>/     mode 0700 (XDG_STATE_HOME moves it)
        keeper                              the process of its keeper: passes SIGTERM on to the job
        output                              the whole output of the job
        ended                               how it ended
"""

from __future__ import annotations

import base64
import collections
import contextlib
import ctypes
import json
import os
import platform
import selectors
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

RUN, JOB, DOOR = "ROPEWALK_RUN_ID", "ROPEWALK_JOB", "ROPEWALK_DOOR"
MARK = "ssh-"
"""Begins the value of `JOB`, and distinguishes the jobs of this engine from those of others on the same host."""
FOLDER = "/tmp"
"""The folder of agents' sockets; another folder may have a path that is too long for a socket."""
KEPT = f"{MARK}kept-"
"""Begins the value of `JOB` of a job that outlives its connection."""
_TAIL_BYTES = 16 * 1024
_OUTPUT_BYTES = 256 * 1024
"""The most output of a job that outlives its connection, in one answer."""
_CHUNK_BYTES = 64 * 1024
_FORGET_S = 30 * 86_400.0
"""Seconds after the end of a job that outlived its connection, after which its record is removed."""
_ROOM_BYTES = 1 << 20
"""Free space that a job needs for its socket and its log; with less it would fail soon, with a worse message."""
_END_S = 2.0
"""Killed processes end within this time, unless they are stuck in the kernel."""
_UNMAPPED_UID = 65534
"""The user id that owns the folders of the machine's root as seen inside a user namespace."""
_SET_CHILD_SUBREAPER, _SET_PDEATHSIG = 36, 1


class Keeper:
    """Carries out orders until its standard input ends or falls silent."""

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._jobs: dict[str, _KeptJob] = {}
        self._news = bytearray()
        self._orders = bytearray()
        self._selector = selectors.DefaultSelector()
        self._doing: dict[str, Callable[[dict[str, Any]], object]] = {
            "beat": lambda order: None,
            "start": self._start,
            "end": lambda order: self._end(order["job"], "its launcher ended it"),
            "log": lambda order: _text(self._jobs[order["job"]].tail) if order["job"] in self._jobs else "",
            "find": lambda order: [[run, job] for run, job in {(run, job) for _, run, job in _marked()}],
            "version": lambda order: _version(),
            "kill": lambda order: _kill_marked(order["job"]),
            "detach": _detach,
            "state": lambda order: _state_of(_folder_of(order["job"])),
            "output": lambda order: _output_of(_folder_of(order["job"]), order["after"]),
            "signal": lambda order: _signal_keeper(_folder_of(order["job"])),
            "forget": _forget,
        }

    def serve(self) -> None:
        """Carry out orders until the launcher is gone, then end every job and return."""
        self._prepare()
        os.set_blocking(1, False)  # a launcher that does not read must not keep us from noticing that it is gone
        self._selector.register(0, selectors.EVENT_READ, self._hear)
        self._tell(news="ready", facts=_facts())
        self._listening, self._heard = True, time.monotonic()
        try:
            while self._listening and time.monotonic() - self._heard < self._silence_s:
                self._watch(1, selectors.EVENT_WRITE, self._speak if self._news else None)
                self._turn()
        finally:
            self._end_all()

    def _prepare(self) -> None:
        _prctl(_SET_CHILD_SUBREAPER)
        woken, wake = os.pipe()
        os.set_blocking(woken, False)
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        # With handlers, because jobs would inherit ignored signals.
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGHUP, _nothing)
        signal.signal(signal.SIGTERM, self._pass_on)
        self._selector.register(woken, selectors.EVENT_READ, lambda: os.read(woken, 4096))

    def _turn(self) -> None:
        """Wait for something to happen, for half a second at most, and act on it."""
        for key, _ in self._selector.select(0.5):
            with contextlib.suppress(BlockingIOError):
                key.data()
        self._reap()
        for name, job in list(self._jobs.items()):
            if time.monotonic() > job.deadline:
                self._end(name, "its time limit was over")

    def _hear(self) -> None:
        self._heard = time.monotonic()
        data = os.read(0, _CHUNK_BYTES)
        self._listening = bool(data)
        if b"\n" not in data:  # a large order that takes long on a slow link, during which no beat comes through
            self._tell(news="receiving")
        self._orders += data
        *lines, self._orders = self._orders.split(b"\n") if b"\n" in data else [self._orders]
        for line in lines:
            order = json.loads(line)
            try:
                answer = self._doing[order["do"]](order)
            except (OSError, ValueError) as error:  # ValueError: a null byte in a word or a variable
                is_of_host = isinstance(error, OSError)
                self._tell(news="refused", to=order["number"], why=str(error), of_host=is_of_host)
            else:
                self._tell(news="done", to=order["number"], answer=answer)

    def _tell(self, **news: object) -> None:
        self._news += json.dumps(news).encode() + b"\n"

    def _speak(self) -> None:
        try:
            del self._news[: os.write(1, self._news)]
        except BrokenPipeError:
            self._listening = False

    def _watch(self, fd: int, events: int, then: Callable[[], object] | None) -> None:
        """Call `then` when the descriptor is ready; None stops watching it."""
        with contextlib.suppress(KeyError):
            self._selector.unregister(fd)
        if then:
            self._selector.register(fd, events, then)

    # Jobs

    def _start(self, order: dict[str, Any]) -> str:
        """Start a job; the answer is the path of its door, or empty if it has none."""
        disk = shutil.disk_usage(FOLDER)
        if disk.total and disk.free < _ROOM_BYTES:  # a file system in memory without a limit says 0 for both
            raise OSError(f"the disk of {FOLDER} is full ({disk.free >> 10} KiB free); make room there")
        job = self._jobs[order["job"]] = _KeptJob(order)  # if the job cannot start, it is not added
        assert job.process.stdin and job.process.stdout
        output = job.process.stdout.fileno()
        self._watch(output, selectors.EVENT_READ, lambda: job.read() or self._watch(output, 0, None))
        stdin = job.process.stdin
        self._watch(stdin.fileno(), selectors.EVENT_WRITE, lambda: job.feed() or self._finish(stdin))
        return job.door

    def _finish(self, stdin: Any) -> None:
        if not stdin.closed:
            self._watch(stdin.fileno(), 0, None)
            with contextlib.suppress(OSError):
                stdin.close()

    def _end(self, name: str, why: str) -> None:
        job = self._jobs.get(name)
        if job is not None:
            job.why = job.why or why
            job.deadline = float("inf")
            job.kill()

    def _reap(self) -> None:
        jobs = {job.process.pid: name for name, job in self._jobs.items()}
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid in jobs:
                    self._over(jobs[ended.si_pid])
                else:  # an orphan of a job
                    os.waitpid(ended.si_pid, 0)

    def _over(self, name: str) -> None:
        job = self._jobs.pop(name)
        job.kill()  # before it is reaped: until then the number of its group is not reused
        _kill_marked(name)
        if not self._jobs:
            _kill_until_gone(lambda: _descendants(os.getpid()))  # processes without its mark
        assert job.process.stdout
        with contextlib.suppress(BlockingIOError):
            while job.read():
                pass
        self._watch(job.process.stdout.fileno(), 0, None)
        job.process.stdout.close()
        self._finish(job.process.stdin)
        job.remove_door()
        code = job.process.wait()
        self._tell(news="ended", job=name, code=code, why=job.why or job.who_killed(code), log=_text(job.tail))

    def _end_all(self) -> None:
        for job in self._jobs.values():
            job.kill()
        for name in self._jobs:
            _kill_marked(name)
        _kill_until_gone(lambda: _descendants(os.getpid()))
        for job in self._jobs.values():
            job.remove_door()

    def _pass_on(self, number: int, _: object) -> None:
        """Pass a signal on to the jobs: the host is being shut down, and they may use the remaining time."""
        for job in self._jobs.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(job.process.pid, number)


class _KeptJob:
    def __init__(self, order: dict[str, Any]) -> None:
        command, *arguments = order["command"]
        self.door = f"{_private_folder()}/door.sock" if order.get("door") else ""
        door = {DOOR: self.door} if self.door else {}
        try:
            self.process = subprocess.Popen(
                [os.path.expanduser(command), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                env={**os.environ, **order["environment"], RUN: order["run"], JOB: order["job"], **door},
                start_new_session=True,
                preexec_fn=lambda: _prctl(_SET_PDEATHSIG, signal.SIGKILL),  # we have one thread
            )
        except BaseException:
            self.remove_door()
            raise
        assert self.process.stdin and self.process.stdout
        os.set_blocking(self.process.stdin.fileno(), False)
        os.set_blocking(self.process.stdout.fileno(), False)
        self._left = memoryview(base64.b64decode(order["stdin"]))
        self._output: int | None = order.get("output")
        self._oom_kills = _oom_kills()
        self.deadline = time.monotonic() + (order["time_limit_s"] or float("inf"))
        self.tail = bytearray()
        self.why = ""

    def read(self) -> bool:
        """Read some output; False at its end. Raises BlockingIOError if there is none at the moment."""
        assert self.process.stdout
        data = os.read(self.process.stdout.fileno(), _CHUNK_BYTES)
        self.tail += data
        del self.tail[:-_TAIL_BYTES]
        if self._output is not None:
            with contextlib.suppress(OSError):  # the disk is full
                os.write(self._output, data)
        return bool(data)

    def feed(self) -> bool:
        """Write some of its standard input; False if all is written, or the job has closed it."""
        assert self.process.stdin
        try:
            self._left = self._left[os.write(self.process.stdin.fileno(), self._left[:_CHUNK_BYTES]) :]
        except BrokenPipeError:
            return False
        return bool(self._left)

    def kill(self) -> None:
        """End the job, its group and its descendants, in any session."""
        descendants = _descendants(self.process.pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        _kill(descendants)

    def remove_door(self) -> None:
        """Remove the folder that was made for its door, with the files of a killed job."""
        if self.door:
            shutil.rmtree(os.path.dirname(self.door), ignore_errors=True)

    def who_killed(self, code: int) -> str:
        """Explain the signal that ended the job; empty if none did."""
        if code >= 0:
            return ""
        if code == -signal.SIGKILL and _oom_kills() > self._oom_kills:
            return "its host ran out of memory, and the kernel killed it"
        return f"ended by signal {-code} on its host, which did not come from its launcher"


class _LoneKeeper(Keeper):
    """The keeper of a job that outlives the connection: ends with its job."""

    def __init__(self, folder: Path) -> None:
        super().__init__(float("inf"))
        self._folder = folder

    def keep(self, order: dict[str, Any], started: int) -> None:
        """Run a job to its end; writes to the descriptor `started` why it cannot start, and then closes it."""
        try:
            self._prepare()
            (self._folder / "keeper").write_text(" ".join(_identity(os.getpid())))
            self._start({**order, "output": 2})
        except (OSError, ValueError) as error:
            os.write(started, str(error).encode())
            return
        os.close(started)
        while self._jobs:
            self._turn()

    def _tell(self, **news: object) -> None:
        if news["news"] == "ended":
            (self._folder / "ending").write_text(json.dumps({"code": news["code"], "why": news["why"]}))
            os.replace(self._folder / "ending", self._folder / "ended")


# Jobs that outlive the connection


def _folder_of(job: str) -> Path:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "ropewalk", "jobs", job)


def _detach(order: dict[str, Any]) -> None:
    """Start a job with a keeper of its own; does nothing if it was started before, and the answer was lost."""
    folder = _folder_of(order["job"])
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.parent.iterdir():  # nobody has asked for their end
        with contextlib.suppress(OSError):
            if time.time() - (old / "ended").stat().st_mtime > _FORGET_S:
                shutil.rmtree(old)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return
    said, say = os.pipe()
    _prctl(_SET_CHILD_SUBREAPER, 0)  # or it would become our child, and end with us
    if (between := os.fork()) == 0:
        try:
            if os.fork() == 0:
                _become_lone(folder, say)
                _LoneKeeper(folder).keep(order, _SAY)
        except BaseException as error:
            sys.excepthook(type(error), error, error.__traceback__)  # into the output of the job, once that is there
        finally:
            os._exit(0)
    os.close(say)
    os.waitpid(between, 0)
    _prctl(_SET_CHILD_SUBREAPER)
    with open(said, "rb") as report:
        why = report.read()
    if why:
        shutil.rmtree(folder, ignore_errors=True)
        raise OSError(_text(why))


_SAY = 3
"""The descriptor on which a new keeper says why its job cannot start."""


def _become_lone(folder: Path, say: int) -> None:
    """Leave the connection: sshd keeps it open while one process has a descriptor of it."""
    os.setsid()
    os.dup2(say, _SAY, inheritable=False)
    os.dup2(os.open("/dev/null", os.O_RDWR), 0)
    os.dup2(0, 1)
    os.dup2(os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 2)
    os.closerange(_SAY + 1, 1 << 16)


def _identity(pid: int) -> list[str]:
    """Return what distinguishes a process from any other of this host, ever; raises OSError if it is gone."""
    facts = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    if facts[0] in "ZX":
        raise ProcessLookupError(pid)
    return [str(pid), facts[19], Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()]


def _keeper_of(folder: Path) -> int:
    """Return the process id of a job's keeper; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError, IndexError):  # IndexError: a crash of the host has left it empty
        known = (folder / "keeper").read_text(encoding="ascii").split()
        return int(known[0]) if known == _identity(int(known[0])) else 0
    return 0


def _state_of(folder: Path) -> dict[str, object]:
    if _keeper_of(folder):
        return {"state": "running"}
    try:
        return {"state": "ended", **json.loads((folder / "ended").read_bytes())}
    except (FileNotFoundError, ValueError):  # ValueError: as above
        return {"state": "lost" if folder.exists() else "unknown"}


def _output_of(folder: Path, after: int) -> list[object]:
    """Return the position of the end of the output, and the output after a position; of much output the last part."""
    with open(folder / "output", "rb") as file:
        file.seek(max(after, file.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        data = file.read(_OUTPUT_BYTES)
        return [file.tell(), base64.b64encode(data).decode()]


def _signal_keeper(folder: Path) -> None:
    if keeper := _keeper_of(folder):
        os.kill(keeper, signal.SIGTERM)


def _forget(order: dict[str, Any]) -> None:
    """End a job that outlives its connection, and remove what it left."""
    folder = _folder_of(order["job"])
    _kill_marked(order["job"])
    deadline = time.monotonic() + 2 * _END_S  # its keeper kills what carries no mark, and writes how the job ended
    while (keeper := _keeper_of(folder)) and time.monotonic() < deadline:
        time.sleep(0.002)
    if keeper:
        _kill([keeper])
    shutil.rmtree(folder, ignore_errors=True)


def _private_folder() -> str:
    """Make a new folder under an unguessable name, which only this user may enter."""
    facts = os.stat(FOLDER)
    trusted = {0, os.geteuid(), *([_UNMAPPED_UID] if _is_in_user_namespace() else [])}
    if facts.st_uid not in trusted or (facts.st_mode & 0o022 and not facts.st_mode & stat.S_ISVTX):
        raise PermissionError(
            f"others may take away what this user makes in {FOLDER} (it belongs to user {facts.st_uid}, mode "
            f"{stat.S_IMODE(facts.st_mode):04o}); have its administrator make it root's, with mode 1777"
        )
    folder = tempfile.mkdtemp(prefix="ropewalk-", dir=FOLDER)
    os.chmod(folder, 0o700)  # a umask may have removed our own permissions
    return folder


def _is_in_user_namespace() -> bool:
    """Return whether the machine's root is another user than root here, and appears as `_UNMAPPED_UID`."""
    try:
        return Path("/proc/self/uid_map").read_text(encoding="ascii").split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def _facts() -> dict[str, object]:
    """Return the facts about the host that the engine needs."""
    return {
        "name": platform.node(),
        "executable": sys.executable,
        "cpus": len(os.sched_getaffinity(0)),
        "gpus": len(list(Path("/dev").glob("nvidia[0-9]*"))),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "time": time.time(),
        "free": shutil.disk_usage(FOLDER).free,
    }


def _version() -> str:
    """Return the version of Ropewalk on this host; empty if it is not installed."""
    import importlib.metadata  # the import takes 40 ms, and only `ropewalk doctor` needs it

    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version("ropewalk")
    return ""


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="replace")


def _oom_kills() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _marked() -> Iterator[tuple[int, str, str]]:
    """Yield this user's processes that belong to a job of this engine: pid, run and job."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process is gone, or another user's
            if folder.stat().st_uid == os.geteuid():
                pairs = (word.partition(b"=") for word in (folder / "environ").read_bytes().split(b"\0"))
                facts = {name: value.decode(errors="replace") for name, _, value in pairs if name.startswith(b"ROPEW")}
                job = facts.get(JOB.encode(), "")
                if job.startswith(MARK):
                    yield int(folder.name), facts.get(RUN.encode(), ""), job


def _kill_marked(job: str) -> None:
    _kill_until_gone(lambda: [pid for pid, _, of in _marked() if of == job])


def _descendants(pid: int) -> list[int]:
    children: dict[int, list[int]] = collections.defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            if state not in "ZX":
                children[int(parent)].append(int(folder.name))
    found: list[int] = []
    ask = [pid]
    while ask:
        found += (more := children[ask.pop()])
        ask += more
    return found


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _kill_until_gone(find: Callable[[], list[int]]) -> None:
    """Kill the processes that `find` returns until it returns none: a process may have been starting another."""
    deadline = time.monotonic() + _END_S
    while (pids := find()) and time.monotonic() < deadline:
        _kill(pids)
        time.sleep(0.002)


def _nothing(number: int, frame: object) -> None: ...


def _prctl(option: int, value: int = 1) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    Keeper(silence_s=float(sys.argv[1])).serve()
