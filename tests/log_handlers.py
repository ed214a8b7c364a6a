"""The pytest plugin for what pytest logs with, so that it costs tests and the processes they start next to nothing."""

from __future__ import annotations

import logging
import os
from typing import Any

import _pytest.logging
import pytest


class RootCatching(_pytest.logging.catching_logs[Any]):
    """Attaches a handler to the root logger, and not to all those that keep their records from it.

    To find these, pytest 9.2 looks through all loggers, six times a test: 200 of them once torch is imported. They are
    those of torch and Optuna, which write to stderr themselves.
    """

    __slots__ = ()

    def __enter__(self) -> Any:
        if self.level is not None:  # asked for by `--log-level`
            return super().__enter__()
        root = logging.getLogger()
        root.addHandler(self.handler)
        getattr(self, "attached_loggers").append(root)  # noqa: B009
        return self.handler


@pytest.hookimpl(trylast=True)  # after pytest's own plugin for logging
def pytest_sessionstart(session: pytest.Session) -> None:
    """Give the handler of `log_file`, which is /dev/null here, a formatter of the standard library.

    Workers and nodes log with the handlers of their launcher, and each would import pytest for that formatter: 0.09 of
    the 0.2 s of CPU time that a process takes.
    """
    handler = getattr(session.config.pluginmanager.get_plugin("logging-plugin"), "log_file_handler", None)
    if isinstance(handler, logging.FileHandler) and handler.baseFilename == os.devnull:
        handler.setFormatter(logging.Formatter())


def pytest_configure() -> None:
    # Older versions attach to the root alone, and have no such slot.
    if "attached_loggers" in getattr(_pytest.logging.catching_logs, "__slots__", ()):
        _pytest.logging.catching_logs = RootCatching  # type: ignore[misc]
