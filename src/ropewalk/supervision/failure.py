"""The record of a death: which process, on which host, its cause, how long it and its task had run, its last output.

Every process that ends gets such a record, and every error that a death causes
carries it. The agent fills it in; this module only puts it into words.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from signal import Signals

from ropewalk.escaping import escaped, escaped_line
from ropewalk.quantities import shown_duration
from ropewalk.user_frames import stacks_text

_MEANING = {
    Signals.SIGSEGV: "segmentation fault",
    Signals.SIGBUS: "bus error",
    Signals.SIGABRT: "abort",
    Signals.SIGFPE: "arithmetic fault",
    Signals.SIGILL: "illegal instruction",
}
"""The usual explanations of these signals: with the number alone, a user has to search for its meaning."""
_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+ .*\(most recent call first\):")
"""The heading of a thread in the stacks that a crash prints (faulthandler)."""
_STACK_LINE = re.compile(r'File "(?:[^"]*/)?([^"/]+)", line (\d+),? in ')
"""A line of such a stack, or of a traceback. Folders are long, and could push everything else out of the line."""
_NOWHERE = re.compile(r'File "[^"]*", line \?\?\? in ')
"""The line of a frame that has none: from Python 3.13 on, a crash prints it where it enters compiled code."""
_MARKS = re.compile(r"[~^]+")
"""The line of a traceback that marks a part of the line above it, and means nothing without it."""
_SHOWN_CHARACTERS = 300
"""Characters of the last output shown by `describe`; the whole output stays in the record."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeathRecord:
    """The facts of one death."""

    name: str
    """Name of the process, such as "pool-1.3"."""
    host: str
    """Host on which it ran; empty if that is not known."""
    pid: int
    """Its process id there."""
    exit_code: int | None = None
    """The exit code, or None if the process did not exit by itself."""
    signal: int | None = None
    """Number of the signal that ended it, or None."""
    out_of_memory: str = ""
    """That the kernel killed it for memory, or perhaps did, with the evidence in brackets; otherwise empty."""
    ended_by: str = ""
    """Why the agent ended it, such as a limit that it had exceeded; empty if something else did, or nothing."""
    last_output: str = ""
    """The last lines that it printed."""
    task_index: int | None = None
    """Index of the task that it was in, or None if it was in no task (or in an `apply`)."""
    task_ran_s: float | None = None
    """Seconds from the start of that task to the end of the process, or None if it was in no task."""
    ran_s: float | None = None
    """Seconds from the start of the process to its end, or None if unknown."""

    @classmethod
    def from_exit_code(cls, code: int, *, name: str, host: str, pid: int, **facts: object) -> DeathRecord:
        """Make a record from an exit code (negative for signals, as in the standard library) and further fields."""
        ending: dict[str, object] = {"exit_code": code} if code >= 0 else {"signal": -code}
        return cls(name=name, host=host, pid=pid, **ending, **facts)  # type: ignore[arg-type]

    @property
    def exit_phrase(self) -> str:
        """How the process ended, as words after its name: "was killed by SIGKILL", "exited with code 3"."""
        if self.signal is not None:
            phrase = f"was killed by {_signal_name(self.signal)}"
        elif self.exit_code is not None:
            phrase = f"exited with code {self.exit_code}"
        else:
            phrase = "is gone, and nobody saw how it ended"
        if self.ended_by:
            return f"{phrase} ({escaped(self.ended_by)})"
        return f"{phrase}, {escaped(self.out_of_memory)}" if self.out_of_memory else phrase

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would report: 128 and the number of the signal; 1 if nobody saw how it ended."""
        if self.signal is not None:
            return 128 + self.signal
        return 1 if self.exit_code is None else self.exit_code

    @property
    def ending(self) -> str:
        """How the process ended, in words that follow its name, with its last output."""
        return f"{self.exit_phrase}{self._after} (pid {self.pid}{self._place}); {self._last_words}"

    def __str__(self) -> str:
        return self.describe()

    def describe(self) -> str:
        """Return the record as one line of text.

        Example:
            >>> DeathRecord(name="pool-1.3", host="n17", pid=4711, signal=9, ran_s=9.21).describe()
            'pool-1.3 on host n17 (pid 4711) was killed by SIGKILL after 9.2 s; it printed nothing'
        """
        what = f"{self.exit_phrase}{self._after}{self._in_task}"
        return f"{self.name}{self.whereabouts} {what}; {self._last_words}"

    @property
    def whereabouts(self) -> str:
        """Its host and its pid, as words after its name, as far as they are known: " on host n17 (pid 4711)"."""
        return f"{self._place} (pid {self.pid})" if self.pid else self._place

    @property
    def _place(self) -> str:
        return f" on host {self.host}" if self.host else ""

    @property
    def _after(self) -> str:
        return "" if self.ran_s is None else f" after {_shown(self.ran_s)}"

    @property
    def _in_task(self) -> str:
        if self.task_index is None:
            return "" if self.task_ran_s is None else f", in a task that had run for {_shown(self.task_ran_s)}"
        ran = "" if self.task_ran_s is None else f", which had run for {_shown(self.task_ran_s)}"
        return f", in task {self.task_index}{ran}"

    @property
    def _last_words(self) -> str:
        words = _one_line(self.last_output)
        return f"last output: {words}" if words else "it printed nothing"


def _shown(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else shown_duration(seconds)


def _signal_name(number: int) -> str:
    try:
        known = Signals(number)
    except ValueError:  # real-time signals have no names of their own
        return f"signal {number}"
    meaning = _MEANING.get(known)
    return f"{known.name} ({meaning})" if meaning else known.name


def _one_line(output: str) -> str:
    """Return the end of an output as one line without control characters."""
    # Cut before cleaning: only the end is shown, and megabytes may have been kept.
    kept = stacks_text(output[-32 * _SHOWN_CHARACTERS :])  # our frames would push out those of the user
    ends = kept.replace("\r", "\n").split("\n")  # progress bars write over themselves
    lines = [escaped_line(line, colours=False).strip() for line in ends]
    empty = (_THREAD.match, _NOWHERE.match, _MARKS.fullmatch)
    crashed = _without_other_threads(lines)
    told = [line for line in crashed if line and not any(matches(line) for matches in empty)]
    shown = " | ".join(_STACK_LINE.sub(r"\1:\2 in ", line) for line in told)
    return shown if len(shown) <= _SHOWN_CHARACTERS else "..." + shown[-_SHOWN_CHARACTERS:]


def _without_other_threads(lines: Sequence[str]) -> list[str]:
    """Return lines without the stacks of threads other than the one that crashed, if they say which one that was."""
    if not any(line.startswith("Current thread 0x") for line in lines):
        return list(lines)
    kept: list[str] = []
    is_other = False
    for line in lines:
        if heading := _THREAD.match(line):
            is_other = heading[1] == "Thread"
        is_other = is_other and bool(heading or line.startswith(('File "', "[Previous line repeated")))
        if not is_other:
            kept.append(line)
    return kept
