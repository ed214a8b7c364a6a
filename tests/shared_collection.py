"""The pytest plugin by which each worker of xdist collects a share of the tests, and more only when it is to run more.

xdist has every worker collect all tests: 16 s of CPU time in each, most of it for imports. Here each collects some
folders, in which it also begins to run (`file_order.py`), and takes the names of the other tests from the other
workers. A folder in which it comes to run tests later is collected then.

    worker 0: collects its share ──▶ names ─┐                         ┌─▶ all names ─▶ xdist, as if it had collected all
    worker 1: collects its share ──▶ names ─┴─▶ files in one folder ──┴─▶ all names ─▶ xdist

Folders are left uncollected at one point of pytest's own tree, and collected at that point later on. So each node of it
is there once, with its fixtures.

Used for a run of all tests, unless its options need to see them all in each worker.
"""

from __future__ import annotations

import gc
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from _pytest.warnings import catch_warnings_for_item

from tests.file_order import WHOLE_PROGRAMS

LOOSE = "tests"
"""The files of the folder of tests itself are collected together."""
PATIENCE_S = 900.0
"""For the names of other workers, also beside busy processes. After it a worker collects what is missing."""
_LOOK_S = 0.02
_FOLDER = pytest.StashKey[str]()
"""Of the files in which workers tell the names of their tests."""


# --- in the process that starts the workers ---------------------------------------------------------------------------


def part_of(path: Path, folder: Path) -> str:
    """Return the name of the part of all tests to which a file or a folder belongs."""
    child = path.relative_to(folder).parts[0]
    return child if (folder / child).is_dir() else LOOSE


def shares_of(folder: Path, num: int) -> list[list[str]]:
    """Deal the parts of all tests to workers: each gets the same amount of source, and a folder of long tests."""
    sizes: dict[str, int] = {}
    for child in sorted(folder.iterdir()):
        files = child.rglob("*.py") if child.is_dir() else [child] if child.suffix == ".py" else []
        if size := sum(file.stat().st_size for file in files):
            part = part_of(child, folder)
            sizes[part] = sizes.get(part, 0) + size
    long = [part for folder in WHOLE_PROGRAMS if (part := folder.rpartition("/")[2]) in sizes]
    shares: list[list[str]] = [[] for _ in range(num)]
    totals = [0] * num
    for part in sorted(sizes, key=lambda part: (part not in long, -sizes[part])):
        has_long = [part in long and not set(share).isdisjoint(long) for share in shares]
        chosen = min(range(num), key=lambda index: (has_long[index], totals[index]))
        shares[chosen].append(part)
        totals[chosen] += sizes[part]
    return shares


def is_possible(config: pytest.Config) -> bool:
    """Whether this is a run of all tests, of which no option sees all in each worker."""
    sees_all = ("--slice", "lf", "failedfirst", "newfirst", "stepwise")
    return [Path(arg).resolve() for arg in config.args] == [config.rootpath / "tests"] and not any(
        config.getoption(name, None) for name in sees_all
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker what its share is."""
    if not is_possible(node.config):
        return
    if _FOLDER not in node.config.stash:
        folder = node.config.stash[_FOLDER] = tempfile.mkdtemp(prefix="names-")
        node.config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    shares = shares_of(node.config.rootpath / "tests", node.workerinput["workercount"])
    index = int(node.gateway.id.removeprefix("gw"))
    node.workerinput["replaces"] = index >= len(shares)
    node.workerinput["share"] = [] if index >= len(shares) else shares[index]
    node.workerinput["parts"] = sorted(part for share in shares for part in share)
    node.workerinput["names"] = node.config.stash[_FOLDER]


# --- in a worker ------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if "share" in given:
        names = Path(given["names"], given["workerid"])
        config.pluginmanager.register(SharedCollection(config.rootpath / "tests", names, given))


class SharedCollection:
    """What a worker collects, and what it learns of the others."""

    def __init__(self, folder: Path, names: Path, given: Mapping[str, Any]) -> None:
        self._folder = folder
        self._names = names
        """The file for the names of the tests that are collected here."""
        self._parts: list[str] = given["parts"]
        self._replaces: bool = given["replaces"]
        """Whether it begins later than the others, in the place of one that has died."""
        self._open = set[str](given["share"])
        """Parts that are collected here now, or were."""
        self._left: dict[str, list[pytest.Collector]] = {}
        """Nodes of the other ones."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Leave the other parts where pytest goes from a node to those below it."""
        genitems = session.genitems

        def of_open_parts(node: Any) -> Iterator[pytest.Item]:
            if isinstance(node, (pytest.Directory, pytest.File)) and node.path.parent == self._folder:
                part = part_of(node.path, self._folder)
                if part not in self._open:
                    self._left.setdefault(part, []).append(node)
                    return
            yield from genitems(node)

        session.genitems = of_open_parts

    @pytest.hookimpl(tryfirst=True)  # before xdist sends the names
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Put the tests of all parts in one order, that of all workers."""
        found = {part: dict[str, pytest.Item]() for part in self._open}
        for item in session.items:
            found[part_of(item.path, self._folder)][item.nodeid] = item
        self._tell({part: list(items) for part, items in found.items()})
        names = self._hear(session, found)
        in_order = [(part, name) for part in self._parts for name in names[part]]
        setattr(session, "items", AllTests(in_order, found, self._collected_by(session)))  # noqa: B010

    def _tell(self, names: Mapping[str, list[str]]) -> None:
        new = self._names.with_suffix(".new")
        new.write_text(json.dumps(names))
        new.rename(self._names.with_suffix(".names"))

    def _hear(self, session: pytest.Session, found: dict[str, dict[str, pytest.Item]]) -> dict[str, list[str]]:
        """Wait for the names of all parts.

        Those of a worker that has died meanwhile are collected here; the worker that replaces it does so at once.
        """
        until = time.monotonic() + (0 if self._replaces else PATIENCE_S)
        while True:
            names: dict[str, list[str]] = {}
            for file in sorted(self._names.parent.glob("*.names")):
                names |= json.loads(file.read_text())
            missing = [part for part in self._parts if part not in names]
            if not missing:
                return names
            if time.monotonic() > until:
                load = self._collected_by(session)
                found |= {part: load(part) for part in missing}
                self._tell({part: list(items) for part, items in found.items()})
            else:
                time.sleep(_LOOK_S)

    def _collected_by(self, session: pytest.Session) -> Callable[[str], dict[str, pytest.Item]]:
        def collect(part: str) -> dict[str, pytest.Item]:
            """Collect another part as pytest does it: with the filters for warnings, and with what hooks do to it."""
            self._open.add(part)
            config = session.config
            gc.disable()  # nothing of it can be thrown away
            try:
                with catch_warnings_for_item(config=config, ihook=config.hook, when="collect", item=None):
                    items = [item for node in self._left.pop(part, ()) for item in session.genitems(node)]
                    config.hook.pytest_collection_modifyitems(session=session, config=config, items=items)
            finally:
                gc.enable()
            return {item.nodeid: item for item in items}

        return collect


class AllTests(Sequence[Any]):
    """All tests of a run: those of parts that are not collected here by name alone, until one of them is taken."""

    def __init__(
        self,
        names: Sequence[tuple[str, str]],
        found: dict[str, dict[str, pytest.Item]],
        collect: Callable[[str], dict[str, pytest.Item]],
    ) -> None:
        self._names = names
        """In order, each with its part."""
        self._found = found
        self._collect = collect

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: Any) -> Any:
        """Return a test, collected if it was not.

        Raises:
            RuntimeError: the worker that named it has found it, and this one has not.
        """
        part, name = self._names[index]
        if part not in self._found:
            self._found[part] = self._collect(part)
        if name not in self._found[part]:
            raise RuntimeError(f"{name} was collected by another worker, and is not found by this one")
        return self._found[part][name]

    def __iter__(self) -> Iterator[Any]:
        for part, name in self._names:
            yield self._found.get(part, {}).get(name) or Elsewhere(name)


class Elsewhere:
    """A test of a part that is not collected here."""

    fixturenames = ()

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid
