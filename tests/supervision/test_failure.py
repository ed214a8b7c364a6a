"""Death records: what is said of a death, and that it is safe to print."""

from __future__ import annotations

import doctest
import os
import pickle
import signal
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.escaping import escaped
from ropewalk.supervision import failure
from ropewalk.supervision.failure import DeathRecord


def died(**facts: Any) -> DeathRecord:
    return DeathRecord(name="pool-1.3", host="n17", pid=4711, **facts)


def test_a_death_is_described_in_one_line() -> None:
    record = died(signal=9, ran_s=3.21, last_output="loading\nstep 7\n")
    assert record.describe() == (
        "pool-1.3 on host n17 (pid 4711) was killed by SIGKILL after 3.2 s; last output: loading | step 7"
    )


def test_no_host_is_named_before_it_is_known() -> None:
    # A worker that died before its link was up was "on host this host".
    record = DeathRecord(name="pool-1.3", host="", pid=4711, signal=9)
    assert record.describe() == "pool-1.3 (pid 4711) was killed by SIGKILL; it printed nothing"
    assert record.ending == "was killed by SIGKILL (pid 4711); it printed nothing"


def test_a_printed_death_is_its_description() -> None:
    assert str(died(signal=9)) == died(signal=9).describe()


@pytest.mark.parametrize(
    ("ending", "phrase"),
    [
        ({"exit_code": 0}, "exited with code 0"),
        ({"exit_code": 3}, "exited with code 3"),
        ({"signal": 9}, "was killed by SIGKILL"),
        ({"signal": 11}, "was killed by SIGSEGV (segmentation fault)"),
        ({"signal": signal.SIGRTMIN + 3}, f"was killed by signal {signal.SIGRTMIN + 3}"),
        (
            {"signal": 9, "out_of_memory": "out of memory (oom_kill rose)"},
            "was killed by SIGKILL, out of memory (oom_kill rose)",
        ),
        ({}, "is gone, and nobody saw how it ended"),
        # A node that exceeded its memory limit was "killed by SIGKILL", without a word of the limit.
        ({"signal": 9, "ended_by": "it used 5 GiB"}, "was killed by SIGKILL (it used 5 GiB)"),
        # The kernel may have killed another process in that moment.
        ({"signal": 9, "ended_by": "it was stopped", "out_of_memory": "x"}, "was killed by SIGKILL (it was stopped)"),
    ],
)
def test_the_ending_is_named(ending: dict[str, object], phrase: str) -> None:
    assert died(**ending).exit_phrase == phrase


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        # "after 9.2 s in task 41" was said, as if the task and not the worker had run for 9.2 s.
        ({"task_index": 41, "ran_s": 9.2, "task_ran_s": 2.04}, "after 9.2 s, in task 41, which had run for 2.0 s;"),
        ({"ran_s": 7230, "task_ran_s": 75}, "after 2h00m, in a task that had run for 1m15s;"),
        ({"task_index": 0}, "code 1, in task 0;"),
        ({"ran_s": 9.2}, "code 1 after 9.2 s;"),
    ],
)
def test_the_age_of_a_process_and_of_its_task_are_told_apart(facts: dict[str, Any], words: str) -> None:
    assert words in died(exit_code=1, **facts).describe()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"exit_code": 3, "ran_s": 1.26, "last_output": "step 7\n"},
            "exited with code 3 after 1.3 s (pid 4711 on host n17); last output: step 7",
        ),
        ({"signal": 9}, "was killed by SIGKILL (pid 4711 on host n17); it printed nothing"),
        (
            {"signal": 9, "out_of_memory": "out of memory (oom_kill rose)", "last_output": " \n\x1b[0m"},
            "was killed by SIGKILL, out of memory (oom_kill rose) (pid 4711 on host n17); it printed nothing",
        ),
        ({}, "is gone, and nobody saw how it ended (pid 4711 on host n17); it printed nothing"),
    ],
)
def test_an_ending_is_words_that_follow_the_name_of_a_node(facts: dict[str, Any], words: str) -> None:
    assert died(**facts).ending == words


@pytest.mark.parametrize(
    ("code", "exit_code", "number"),
    [("raise SystemExit(5)", 5, None), ("import os; os.kill(os.getpid(), 15)", None, 15)],
)
def test_a_real_wait_status_is_read(code: str, exit_code: int | None, number: int | None) -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    _, status = os.waitpid(pid, 0)
    record = DeathRecord.from_exit_code(os.waitstatus_to_exitcode(status), name="x", host="h", pid=pid, ran_s=1.0)
    assert (record.exit_code, record.signal, record.pid, record.ran_s) == (exit_code, number, pid, 1.0)


def test_the_marks_below_a_line_of_code_are_not_among_the_last_words() -> None:
    output = '  File "/home/me/a.py", line 3, in f\n    x = 1 / 0\n        ~~^~~\nZeroDivisionError: division by zero\n'
    line = died(exit_code=1, last_output=output).describe()
    assert line.endswith("last output: a.py:3 in f | x = 1 / 0 | ZeroDivisionError: division by zero")


def test_the_last_words_of_a_process_cannot_act_in_a_terminal() -> None:
    """A dead process's output appears in other people's terminals: colours are left out, titles and links are shown."""
    output = (
        "\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b]8;;http://evil.example\x1b\\click\x1b]8;;\x1b\\\rover\x08\u202ewritten"
    )
    line = died(exit_code=1, last_output=output).describe()
    assert line.endswith(
        r"last output: red\x1b]0;title\x07 \x1b]8;;http://evil.example\x1b\click\x1b]8;;\x1b\ | over\x08\u202ewritten"
    )


def test_what_an_agent_saw_of_memory_cannot_act_in_a_terminal() -> None:
    assert died(signal=9, out_of_memory="out of memory (\x9b2J\x85[pool-1 1] done)").exit_phrase == (
        r"was killed by SIGKILL, out of memory (\x9b2J\x85[pool-1 1] done)"
    )


@given(st.text(alphabet=st.characters() | st.sampled_from("\x1b[];\x07\n\r\x85\u2028\u202e\ud800"), max_size=3000))
def test_any_output_becomes_one_short_line_in_which_nothing_acts(output: str) -> None:
    line = died(exit_code=1, last_output=output).describe()
    assert escaped(line) == line and len(line) < 450 and len(line.splitlines()) == 1


def test_the_end_of_a_long_output_is_kept() -> None:
    record = died(exit_code=1, last_output="x" * 10**6 + "\nValueError: here")
    assert record.describe().endswith("xxx | ValueError: here")
    assert len(record.last_output) > 10**6


@pytest.mark.parametrize("of_a_traceback", [",", ""])
def test_a_stack_leaves_room_for_what_was_said_before_it_however_deep_the_files_lie(
    of_a_traceback: str,
) -> None:
    # A clone in a longer folder once pushed the user's own words out of the line.
    frames = "".join(f'  File "/{"deep/" * 20}model.py", line {line}{of_a_traceback} in step\n' for line in (3, 2))
    record = died(signal=11, last_output=f"last words\nFatal Python error: Segmentation fault\n\n{frames}")
    assert record.describe().endswith(
        "last words | Fatal Python error: Segmentation fault | model.py:3 in step | model.py:2 in step"
    )


def test_records_are_frozen_values_that_travel() -> None:
    record = died(signal=9, task_index=3)
    assert pickle.loads(pickle.dumps(record)) == record
    with pytest.raises(AttributeError):
        record.pid = 1  # type: ignore[misc]


def test_the_example_of_the_docstring_is_true() -> None:
    assert doctest.testmod(failure) == (0, 1)


def test_the_last_words_of_a_crash_are_those_of_the_thread_that_crashed() -> None:
    # The frames of threads that stand below it were the last, and pushed it out of the line.
    waits = '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n' * 40
    output = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f136230e6c0 (most recent call first):\n" + waits + "\n"
        "Current thread 0x00007f136480ab80 (most recent call first):\n"
        '  File "/home/me/count.py", line 21 in work\n\n'
        "Thread 0x00007f136230f6c0 (most recent call first):\n" + waits + "\n"
        "said at last\n"
    )
    told = died(signal=11, last_output=output).describe()
    assert told.endswith("last output: Fatal Python error: Segmentation fault | count.py:21 in work | said at last")


def test_the_last_words_of_a_crash_are_the_frames_of_the_user() -> None:
    # The frames of a thread of ours, and the beginnings of threads, once stood in their place.
    output = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x00007f136230e6c0 (most recent call first):\n"
        '  File "/venv/ropewalk/transport/loop.py", line 342 in _serve\n'
        '  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap\n\n'
        "Current thread 0x00007f136480ab80 (most recent call first):\n"
        '  File "/home/me/count.py", line 21 in work\n'
        '  File "__init__", line ??? in __init__\n'  # of Python 3.13
        '  File "/venv/ropewalk/pool/worker.py", line 270 in _run_burst\n\n'
        "Extension modules: msgspec._core (total: 1)\n"
    )
    assert died(signal=11, last_output=output).describe().endswith("Segmentation fault | count.py:21 in work")
