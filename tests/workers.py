"""The pytest plugin for workers of xdist: what they do next, and that the run ends when one of them dies."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.file_order import FolderByFolder

    return FolderByFolder(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the pipes to the process that started this worker from forks of it.

    That process hears of a dead worker by the end of its pipe. A fork that lives on with a copy would put that off, and
    with it the end of the run, for as long as it lives.
    """
    if not hasattr(config, "workerinput"):
        return
    plugins: Iterable[Any] = config.pluginmanager.get_plugins()
    io = next(each.channel.gateway._io for each in plugins if type(each).__name__ == "WorkerInteractor")
    pipes = [io.infile.fileno(), io.outfile.fileno()]
    nothing = os.open(os.devnull, os.O_RDWR)

    def let_go() -> None:
        for pipe in pipes:
            os.dup2(nothing, pipe, inheritable=False)

    os.register_at_fork(after_in_child=let_go)
