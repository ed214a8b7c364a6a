"""Which file of tests a worker of xdist takes next: one of the folder that it is in.

The tests of a folder share what is expensive to start: a session whose processes have imported torch, a server of
commands. A worker ends it when its next test is of another folder. With the largest files first, whatever their
folder, that was after nearly every file: 3 s of CPU time for each file of `tests/rl`.

And what becomes of the tests of a worker that dies: the one that it was running has failed, and the others go on
elsewhere. xdist gives them all to other workers, so that one test ends worker after worker. It may also give a worker
nothing but tests that are done, or just one, and a worker begins its last test only when it hears that no other comes:
such a run never ends.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling

WHOLE_PROGRAMS = {"tests/examples": 40, "tests/scenarios": 8, "tests/docs": 8, "tests/cli": 4, "tests/mutants": 60}
"""Folders of long tests, or of one file that is long, and how many tests of others one of them counts as. They begin
first: at the end they would keep one worker busy while the others have nothing to do."""


def folder_of(file: str) -> str:
    """The folder below `tests` in which a file is, however deep."""
    parts = file.split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def next_file(
    waiting: Mapping[str, int], folder: str | None, others: Collection[str], collected: Collection[str] = ()
) -> str:
    """Choose a file for a worker.

    Args:
        waiting: the number of tests of each file that no worker has begun, in the order in which a folder's are taken.
        folder: in which the worker is.
        others: the folders in which other workers are.
        collected: the names of folders that it has collected (`shared_collection.py`).
    """
    sizes: Counter[str] = Counter()
    for file, size in waiting.items():
        sizes[folder_of(file)] += size * WHOLE_PROGRAMS.get(folder_of(file), 1)
    if folder not in sizes:
        folder = max(sizes, key=lambda each: (each not in others, each.rpartition("/")[2] in collected, sizes[each]))
    return next(file for file in waiting if folder_of(file) == folder)


def unfinished(tests: Mapping[str, bool]) -> dict[str, bool]:
    """Those tests of a file that have not run."""
    return {test: False for test, done in tests.items() if not done}


class FolderByFolder(LoadScopeScheduling):
    """The tests of a file run in one worker, and so do those that share a cluster; workers stay in their folders."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        self._folders: dict[Any, str] = {}
        """By worker, where it is."""
        self._numbers: dict[str, int] = {}
        """Of tests, in the order of the collection."""

    def _split_scope(self, nodeid: str) -> str:
        path = Path(nodeid.partition("::")[0])
        return f"engines/{path.stem.split('_')[1]}" if path.parent.name == "engines" else str(path)

    def _assign_work_unit(self, node: Any) -> None:
        waiting = {file: len(tests) for file, tests in self.workqueue.items()}
        others = {self._folders[other] for other in self.nodes if other is not node and other in self._folders}
        file = next_file(waiting, self._folders.get(node), others, node.workerinput.get("share", ()))
        self._folders[node] = folder_of(file)
        # The base class looks through the names of all tests for each of them.
        self._numbers = self._numbers or {test: number for number, test in enumerate(self.collection or ())}
        tests = self.assigned_work[node][file] = self.workqueue.pop(file)
        with contextlib.suppress(OSError):  # it has died, which is told soon; `remove_node` gives its tests to others
            node.send_runtest_some([self._numbers[test] for test, done in tests.items() if not done])

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note that a test is over; a file of which all are is forgotten, or each later test would count its tests."""
        test = self.registered_collections[node][item_index]
        file = self._split_scope(test)
        tests = self.assigned_work[node][file]
        tests[test] = True
        if all(tests.values()):
            del self.assigned_work[node][file]
        self._reschedule(node)

    def remove_node(self, node: Any) -> str | None:
        """Let others run what this worker has not; returns the test in which it died."""
        left = {file: unfinished(tests) for file, tests in self.assigned_work.pop(node).items()}
        in_order = [(file, test) for file, tests in left.items() for test in tests]
        if not in_order:
            return None
        file, crashed = in_order[0]
        del left[file][crashed]
        self.workqueue.update((file, tests) for file, tests in left.items() if tests)
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:  # one that replaces another and has not collected yet
            return
        before = -1
        while before != (before := len(self.workqueue)):  # until it has enough, or is told that this was all
            super()._reschedule(node)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Note what a worker has collected.

        Raises:
            RuntimeError: one that replaces another has collected other tests. Without an error all would wait for it.
        """
        super().add_node_collection(node, collection)
        if node not in self.registered_collections:
            raise RuntimeError(f"{node} has collected other tests than the worker that it replaces")
