"""The start of a process, from the fork to its entry function, and its end.

1. lead a session and a process group of its own (the agent ends whole groups)
2. wait to become the agent's child, then die with it (PR_SET_PDEATHSIG; the
   parent is checked again, as it may have died in between)
3. standard streams to the agent's pipes; environment, folder, import path
4. dial the owner, call the entry, leave
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import msgspec

from ropewalk import injection
from ropewalk.engines.resources import blas_threads_environment, usable_cpus
from ropewalk.errors import TransportError
from ropewalk.processes import environment
from ropewalk.processes.memory_limit import limit_this_process
from ropewalk.processes.messages import ForkRequest, StartProcess
from ropewalk.processes.page import TaskPage
from ropewalk.processes.relay_client import detour_through
from ropewalk.surroundings import as_sent
from ropewalk.transport.address import parse_address
from ropewalk.transport.barriers import join_barriers
from ropewalk.transport.credentials import Credentials
from ropewalk.transport.kernel import die_with_parent, is_running, name_thread
from ropewalk.transport.passport import Passport
from ropewalk.user_frames import shortened

_JOIN_S = 60.0
"""Timeout within which the process must become the agent's child, in seconds; after that it never will."""
_SKEW_S = 60.0
"""Clocks that differ by less are taken for equal: a process may begin some seconds after it was asked for."""


class ProcessContext(msgspec.Struct, frozen=True):
    """What a process knows of itself and of the session it runs in. Its repr does not show the key."""

    credentials: Credentials
    name: str
    host: str
    cpus: float
    owner_address: str
    agent_address: str
    folder: str
    page: TaskPage
    passport: Passport | None = None
    """Where this process is, in a run of several hosts."""
    service_key: str = ""
    """The key by which this process, if it serves others, checks their tokens; see `transport/tokens.py`."""
    records_fd: int = -1
    """The pipe for the records of runs, which the agent reads to the end also after this process was killed."""
    run: str = ""
    """The run to which this process may write records; see `ProcessSpec.run`."""
    output: str = ""
    """The name under which its output is kept."""
    clock_s: float = 0.0
    """What to add to CLOCK_BOOTTIME for the launcher's time of the day, in seconds; 0 if that is not known."""

    def __repr__(self) -> str:
        return f"ProcessContext(name={self.name!r}, host={self.host!r})"


current: ProcessContext | None = None
"""The context of this process if an agent started it; None in a launcher."""
inherited: dict[str, str] = {}
"""In a process that an agent started: the environment variables of that agent, which all of its processes begin with.
"""
default_threads: dict[str, str] = {}
"""The default thread limits in its environment, where the user has set none."""


def launcher_time() -> float:
    """Return the time of the day in seconds since the epoch: that of the launcher, if this host's is clearly another.

    Records of one run may come from several hosts, and their order follows from their times.
    """
    own_s = time.time()
    if current is None or not current.clock_s:
        return own_s
    theirs_s = time.clock_gettime(time.CLOCK_BOOTTIME) + current.clock_s
    return theirs_s if abs(theirs_s - own_s) > _SKEW_S else own_s


def run(request: ForkRequest, fds: list[int]) -> NoReturn:
    """Become the process of a request; never returns."""
    code = 1
    try:
        os.setsid()
        _join_agent(request.agent_pid)
        _arrange(request, fds)
        code = _call_entry(request, *fds[2:])
    except SystemExit as stop:
        code = _exit_code(stop)
    except BaseException as error:  # the last place that can report it: the agent keeps this output
        traceback.print_exception(shortened(error))
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """End this process: threads, exit handlers and streams; then leave without the exit handlers of the fork server."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        _leave_libraries_of_torch()
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # type: ignore[attr-defined]
    with contextlib.suppress(BaseException):
        flush_output()
    os._exit(code)


def _leave_libraries_of_torch() -> None:
    """Do not deregister torch's operators, one by one, in a process that ends now: 25 to 40 ms of CPU time.

    Torch does so because a destructor of the interpreter could otherwise call what is gone. Here none runs.
    """
    if "torch.library" not in sys.modules:
        return
    finalizers: dict[Any, Any] = getattr(weakref.finalize, "_registry", {})  # there is no other list of them
    for finalizer, facts in list(finalizers.items()):
        if getattr(facts.func, "__module__", "") == "torch.library":
            finalizer.atexit = False


on_flush: list[Callable[[], object]] = []
"""Called by `flush_output`: to wait until what this process has sent to others has arrived."""


def flush_output() -> None:
    """Hand to others what this process has printed and put, so that it lasts even if the process is killed now."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # the user may have closed or replaced it
            stream.flush()
    for flush in on_flush:
        flush()


def _exit_code(stop: SystemExit) -> int:
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    print(stop.code, file=sys.stderr)
    return 1


def _join_agent(agent_pid: int) -> None:
    deadline = time.monotonic() + _JOIN_S
    pause_s = 0.0001
    while os.getppid() != agent_pid:
        if time.monotonic() > deadline or not is_running(agent_pid):
            os._exit(1)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)  # with hundreds of processes at once, the agent needs the CPU
    die_with_parent()
    if os.getppid() != agent_pid:
        os._exit(1)


def _arrange(request: ForkRequest, fds: list[int]) -> None:
    start = request.start
    name_thread(f"rw:{start.name}")
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (fds[0], 1), (fds[1], 2)):
        os.dup2(source, target)
    for fd in (null, fds[0], fds[1]):
        os.close(fd)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable(sys.__stderr__ or 2)  # a segmentation fault leaves a stack in the last output
    faulthandler.register(signal.SIGUSR2, all_threads=True)  # the agent asks for stacks before it ends a hung task
    _set_environment(start)
    injection.load(start.name)
    with contextlib.suppress(OSError):
        os.chdir(as_sent(start.folder))
    sys.path[:] = map(as_sent, start.path)
    if start.cpu_numbers:
        os.sched_setaffinity(0, start.cpu_numbers)
    if start.bounded and start.memory_bytes:
        limit_this_process(start.memory_bytes)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # forked children would draw the same numbers
    with contextlib.suppress(OSError):  # then the tasks of this process cannot be taken back
        join_barriers()


def _set_environment(start: StartProcess) -> None:
    global default_threads
    asked = environment.changed(inherited, environment.variables_as_sent(start.changes)) | start.environment
    default_threads = blas_threads_environment(start.cpus, asked) if start.limits_threads else {}
    environment.become(default_threads | asked | {"ROPEWALK_PROCESS": start.name})
    torch: Any = sys.modules.get("torch")
    if torch:  # it was imported before the fork, limited to one thread
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cpus()))


def _passport(request: ForkRequest) -> Passport | None:
    if not request.host_id:
        return None
    start = request.start
    certificate = start.certificate.unpacked() if start.certificate else None
    credentials = Credentials(request.run_id, start.id, start.secret)
    return Passport(request.host_id, request.ip, certificate, detour_through(request.agent_address, credentials))


def _call_entry(request: ForkRequest, page_fd: int, records_fd: int) -> int:
    global current
    start = request.start
    page = TaskPage(page_fd)
    os.close(page_fd)
    current = ProcessContext(
        credentials=Credentials(request.run_id, start.id, start.secret),
        name=start.name,
        host=request.host,
        cpus=start.cpus,
        owner_address=start.address,
        agent_address=request.agent_address,
        folder=os.path.dirname(parse_address(request.agent_address).path),  # type: ignore[union-attr]
        page=page,
        passport=_passport(request),
        service_key=request.service_key,
        records_fd=records_fd,
        run=start.run,
        output=start.output or start.name,
        clock_s=start.sent - time.clock_gettime(time.CLOCK_BOOTTIME) if start.sent else 0.0,
    )
    module, _, function = start.entry.partition(":")
    try:
        getattr(importlib.import_module(module), function)(current)
    except TransportError as error:
        print(f"{start.name} lost its owner: {error}", file=sys.stderr)
        return 1
    return 0
