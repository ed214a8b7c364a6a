"""The agent's record of a process: its page, its pipes, its last output."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ropewalk.process_start import has_ended, stat_fields
from ropewalk.processes.messages import Sample, StartProcess
from ropewalk.processes.output import LineAssembler, output_file_name
from ropewalk.processes.page import CURRENT, IDLE, STARTED_NS, TaskPage, create_page
from ropewalk.transport.link import Link

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class HostedProcess:
    """One process of an agent, from the request to its end."""

    def __init__(
        self, start: StartProcess, owner: Link, output_folder: Path | None, *, is_bounded: bool = False
    ) -> None:
        """Open its page and pipes.

        Args:
            start: the request.
            owner: who asked.
            output_folder: where its output is kept; None: nowhere.
            is_bounded: whether only the end of its output is kept; see `bounded_output`.

        Raises:
            OSError: no descriptors or no memory are left.
        """
        self.start = start
        self.owner = owner
        self.pid: int | None = None
        self.started = time.monotonic()
        self.ended_by = ""
        self.overran: int | None = None
        """The number of the task that exceeded its time limit, for which this process was ended."""
        self.stopped_since: float | None = None
        self.paused: set[int] = set()
        self.early_signals: list[int] = []
        """Signals that came before its pid was known."""
        self._child_fds: list[int] = []
        self._own_fds: list[int] = []
        self.pipes: list[int] = []
        """For stdout and stderr."""
        self.records = -1
        """The pipe for records of runs; see `RecordForwarder`."""
        try:
            self.pipes = [self._open_pipe(), self._open_pipe()]
            page_fd = create_page()
            self._child_fds.append(page_fd)
            self.records = self._open_pipe()
            self.page = TaskPage(page_fd)
        except OSError:
            for fd in (*self._child_fds, *self._own_fds):
                os.close(fd)
            raise
        path = output_folder / output_file_name(start.output or start.name) if output_folder else None
        self._lines = {pipe: LineAssembler(path, is_bounded=is_bounded) for pipe in self.pipes}

    def _open_pipe(self) -> int:
        """Open a pipe from the child to the agent; returns the agent's end."""
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._child_fds.append(writer)
        self._own_fds.append(reader)
        os.set_blocking(reader, False)
        return reader

    def child_fds(self) -> list[int]:
        """The descriptors that the child inherits: stdout, stderr, page, records."""
        return self._child_fds

    def close_child_fds(self) -> None:
        """Close them here: the child has its own copies now."""
        for fd in self._child_fds:
            os.close(fd)
        self._child_fds = []

    def feed(self, fd: int, data: bytes) -> tuple[bool, str]:
        """Take output from a pipe; returns whether it is stderr, and the lines that are complete now."""
        return fd == self.pipes[1], self._lines[fd].feed(data)

    def output_problem(self) -> str:
        """Why output is no longer kept in a file; empty if it is."""
        return next((lines.problem for lines in self._lines.values() if lines.problem), "")

    def finish_output(self) -> list[tuple[bool, str]]:
        """Return the last lines that have no end of line."""
        rests = [(fd == self.pipes[1], self._lines[fd].finish()) for fd in self.pipes]
        return [(is_error, text) for is_error, text in rests if text]

    def last_output(self) -> str:
        """Return the last lines on stdout, then those on stderr, where the cause of death mostly is."""
        return "\n".join(filter(None, (self._lines[fd].tail() for fd in self.pipes)))

    def running_s(self) -> float:
        """Seconds since it began its current task; 0 between tasks."""
        if self.page.words[CURRENT] == IDLE:
            return 0.0
        return max(0, time.monotonic_ns() - self.page.words[STARTED_NS]) / 1e9

    def sample(self) -> Sample | None:
        """Return its current resource use; None if it does not exist (yet, or any more)."""
        if self.pid is None:
            return None
        try:
            fields = stat_fields(self.pid, 22)  # 6 µs; psutil reads three files in 50 µs
        except OSError:
            return None
        if has_ended(fields):
            return None
        return Sample(
            id=self.start.id,
            memory_bytes=int(fields[21]) * _PAGE_BYTES,
            cpu_s=(int(fields[11]) + int(fields[12])) / _TICKS_PER_S,
            state=fields[0],
        )

    def close(self) -> None:
        """Close its descriptors and the page."""
        self.close_child_fds()
        for fd in self._own_fds:
            os.close(fd)
        self.page.close()
