"""The end of a process."""

from __future__ import annotations

import atexit
import os
import weakref

import pytest

from ropewalk.processes import bootstrap


def test_a_process_that_ends_runs_finalizers_but_does_not_deregister_the_operators_of_torch() -> None:
    # 170 libraries, one by one: 35 ms of CPU time at the end of each process of a program.
    library = pytest.importorskip("torch.library")
    reading, writing = os.pipe()
    operators = library.Library("ropewalk_test_of_leaving", "DEF")
    operators.define("nothing(Tensor x) -> ()")
    ours = weakref.finalize(library, os.write, writing, b"ours ")
    operators._registration_handles.append(Telling(writing))
    try:
        if not (child := os.fork()):
            atexit._clear()  # what else this process would do at its end is not for the child
            for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
                finalizer.atexit = finalizer.peek()[0] in (library, operators)
            atexit.register(weakref.finalize._exitfunc)  # type: ignore[attr-defined]
            bootstrap.leave(7)
        os.close(writing)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert os.read(reading, 100) == b"ours "
    finally:
        ours.detach()
        operators._registration_handles.clear()
        operators._destroy()
        os.close(reading)


class Telling:
    """Tells of the end of the library that holds it."""

    def __init__(self, writing: int) -> None:
        self._writing = writing

    def destroy(self) -> None:
        os.write(self._writing, b"torch")
