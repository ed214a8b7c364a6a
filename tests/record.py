"""The pytest plugin that says what became of a run, in a file that is there only if the run came to its end.

`--record FILE` writes, as JSON: with which exit code pytest ends, how many tests were collected and chosen, how many
ran to their end, and the names of those that failed, and of those in which a worker of xdist died. By it `run_tests.py`
judges whether a rerun is honest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", type=Path, metavar="FILE", help="write what became of the run")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--record")
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(path), "ropewalk-record")


class Recorder:
    """Counts tests, in the process that the user started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._collected: set[str] = set()
        self._ran: set[str] = set()
        self._failed: dict[str, None] = {}
        self._crashed: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected |= {item.nodeid for item in session.items}

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._collected |= set(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = None
        if report.when in ("setup", "call", "teardown"):
            if report.when == "teardown" or report.failed:
                self._ran.add(report.nodeid)
        else:  # what xdist says in the place of a worker
            self._crashed.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        told = {
            "exit_code": int(exitstatus),
            "collected": len(self._collected),
            "ran": len(self._ran),
            "failed": list(self._failed),
            "crashed": self._crashed,
        }
        self._path.write_text(json.dumps(told))
