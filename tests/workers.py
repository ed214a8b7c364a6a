"""The pytest plugin for workers of xdist: what they do next, what they tell, and that the run ends when one dies."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

OF_A_TEST = {"logstart", "testreport", "logfinish", "runtest_protocol_complete"}
"""What a worker tells of a test, the last of them when it is over."""
TOGETHER = "together"


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
    worker = next(each for each in plugins if type(each).__name__ == "WorkerInteractor")
    worker.sendevent = gathered(worker.sendevent)
    io = worker.channel.gateway._io
    pipes = [io.infile.fileno(), io.outfile.fileno()]
    nothing = os.open(os.devnull, os.O_RDWR)

    def let_go() -> None:
        for pipe in pipes:
            os.dup2(nothing, pipe, inheritable=False)

    os.register_at_fork(after_in_child=let_go)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.process_from_remote = one_by_one(node.process_from_remote)


def gathered(send: Callable[..., None]) -> Callable[..., None]:
    """Send the six messages of a test as one, when it is over.

    Each message wakes two threads of the process that receives it, which takes more CPU time than most tests do.
    """
    waiting: list[tuple[str, dict[str, Any]]] = []

    def send_later(name: str, **what: Any) -> None:
        if name not in OF_A_TEST:
            send(name, **what)
            return
        waiting.append((name, what))
        if name == "runtest_protocol_complete":
            send(TOGETHER, messages=[*waiting])
            waiting.clear()

    return send_later


def one_by_one(process: Callable[[Any], None]) -> Callable[[Any], None]:
    """Receive what `gathered` sends."""

    def process_each(message: Any) -> None:
        together = isinstance(message, tuple) and message[0] == TOGETHER
        for each in message[1]["messages"] if together else [message]:
            process(each)

    return process_each
