"""The pytest plugin of the lab: the fixture `lab`, and `require` for programs that a test needs."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab
from tests.lab.machine import MORE_PATHS, Machine

_PASSED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
    return report


def require(*binaries: str) -> None:
    """Skip this test, or this module, where one of these programs is missing; with CI=true that is a failure."""
    path = os.pathsep.join((os.environ.get("PATH", ""), MORE_PATHS))
    missing = [binary for binary in binaries if shutil.which(binary, path=path) is None]
    if missing:
        _cannot(f"needs {', '.join(missing)}: run tests/lab/install.sh as root")


def require_packages(*names: str) -> None:
    """Skip this test, or this module, where one of these Python packages is missing; with CI=true that is a failure."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        _cannot(f"needs the package {', '.join(missing)}: pip install -e '.[lab]'")


def require_file(folder: str, pattern: str) -> Path:
    """Return a file of a package of Debian; skips this test where it is missing; with CI=true that is a failure."""
    found = sorted(Path(folder).glob(pattern))
    if not found:
        _cannot(f"needs {folder}/{pattern}: run tests/lab/install.sh as root")
    return found[-1]


def require_mounts(folder: Path, *options: str) -> None:
    """Mount a file system in memory; skips this test where that is not allowed; with CI=true that is a failure."""
    done = subprocess.run(["mount", "-t", "tmpfs", *options, "none", str(folder)], capture_output=True, text=True)
    if done.returncode:
        _cannot(f"needs root and the right to mount: {done.stderr.strip()}")


def require_namespaces() -> None:
    """Skip this test where machines cannot be made; with CI=true that is a failure."""
    require("ip", "tc", "nft")
    if why_not := _why_no_machine():
        _cannot(f"needs root and the right to make namespaces: {why_not}")


@functools.cache
def _why_no_machine() -> str:
    try:
        Machine("probe").close()
    except OSError as error:
        return str(error)
    return ""


def _cannot(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (CI=true)", pytrace=False)
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A switch without machines yet; at the end everything in it is gone, or the test fails."""
    require_namespaces()
    lab = Lab()
    try:
        yield lab
        if request.node.stash.get(_PASSED, False):  # after a failure it would only add a second one
            lab.prove()
    finally:
        lab.close()
