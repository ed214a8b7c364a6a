"""Hosts on this machine that go by names of their own: an engine whose agents say that they are `host-1`, `host-2`."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

import ropewalk as rw
from ropewalk.engines import ENGINES
from ropewalk.engines.engine import JobSpec
from ropewalk.engines.resources import Resources
from tests.population.neighbours import Neighbours

_RENAMED = """
import platform, runpy, sys
name, module, *sys.argv[1:] = sys.argv[1:]
platform.node = lambda: name
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


class NamedHosts(Neighbours):
    """Each host has one process."""

    name = "named"
    numbers = itertools.count(1)

    def per_job(self, process: Resources) -> int | None:
        return 1

    def submit_one(self, spec: JobSpec, run_id: str, request_id: str, number: int) -> str:
        python, _, _, *rest = spec.command  # python -P -m module ...
        command = (python, "-P", "-c", _RENAMED, f"host-{next(self.numbers)}", *rest)
        return super().submit_one(dataclasses.replace(spec, command=command), run_id, request_id, number)


def session_of_named_hosts(monkeypatch: pytest.MonkeyPatch) -> rw.Session:
    """Two hosts."""
    monkeypatch.setitem(ENGINES, "named", f"{__name__}:NamedHosts")
    monkeypatch.setenv("ROPEWALK_CODE", "shared")  # what is under test is here: no bundle of it for each agent
    return rw.Session("named", hosts=2)
