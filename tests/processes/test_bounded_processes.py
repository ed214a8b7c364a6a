"""A process that is bound gets what it asked for and no more, on this machine as on a cluster's."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ropewalk.engines.resources import Resources, usable_cpus, usable_memory
from ropewalk.processes.messages import Exited, NotStarted
from ropewalk.processes.owner import ProcessSpec
from ropewalk.processes.session import Session
from ropewalk.quantities import shown_size
from tests.processes.entries import WORDS
from tests.processes.test_session import Listener
from tests.scenarios.launchers import wait_until_gone

ALL = sorted(os.sched_getaffinity(0))
UNLIMITED = resource.getrlimit(resource.RLIMIT_DATA)[0]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session() as session:
        yield session


def start(session: Session, entry: str, resources: Resources, *, bounded: bool = True) -> Listener:
    owner = Listener()
    spec = ProcessSpec("crew", 7, f"tests.processes.bounded_entries:{entry}", WORDS, resources, bounded)
    session.processes.start(spec, owner)
    return owner


def bounds_of(owner: Listener) -> dict[str, Any]:
    owner.next("link")
    return json.loads(owner.next("message"))


@pytest.mark.skipif(len(ALL) < 2, reason="with one CPU there is nothing to be bound to")
def test_processes_are_bound_to_the_least_used_cpus_and_to_their_memory(session: Session) -> None:
    one = bounds_of(first := start(session, "bounds", Resources(cpus=1, memory="1Gi")))
    other = bounds_of(second := start(session, "bounds", Resources(cpus=1)))
    assert (one["cpus"], one["memory"]) == ([ALL[0]], 1 << 30)
    assert (other["cpus"], other["memory"]) == ([ALL[1]], UNLIMITED)
    first.links.popitem()[1].close()  # it ends
    assert first.next("exited").exit_code == 0
    third = start(session, "bounds", Resources(cpus=0.5))
    assert bounds_of(third)["cpus"] == [ALL[0]], "what the first one had"
    assert second.heard.empty()


def test_a_process_that_is_not_bound_has_all_cpus_and_any_memory(session: Session) -> None:
    facts = bounds_of(start(session, "bounds", Resources(cpus=1, memory="1Gi"), bounded=False))
    assert (facts["cpus"], facts["memory"]) == (ALL, UNLIMITED)


def test_gpus_are_those_of_the_agent_one_process_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    with Session() as session:
        owners = [start(session, "bounds", Resources(gpus=1)) for _ in range(2)]
        assert sorted(bounds_of(owner)["gpus"] for owner in owners) == ["3", "5"]
        assert bounds_of(start(session, "bounds", Resources()))["gpus"] == "", "it asked for none"
        failure: NotStarted = start(session, "bounds", Resources(gpus=1)).next("not started")
        assert "crew.7 asks for 1 GPUs (requires(gpus=...)), and" in failure.reason
        assert "has 0 of 2 left; wait for the end of crew.7, crew.7" in failure.reason
        owners[0].links.popitem()[1].close()
        owners[0].next("exited")
        assert bounds_of(start(session, "bounds", Resources(gpus=1)))["gpus"] in ("3", "5")


@pytest.mark.parametrize(
    ("resources", "asked", "has"),
    [
        (Resources(cpus=4096), "4096 CPUs", str(usable_cpus())),
        (Resources(memory="4000Ti"), "4096000.0 GiB", shown_size(usable_memory())),
        (Resources(gpus=4096), "4096 GPUs", ""),
    ],
)
def test_what_this_machine_has_not_is_refused_by_name_with_both_numbers(
    session: Session, resources: Resources, asked: str, has: str
) -> None:
    failure: NotStarted = start(session, "bounds", resources).next("not started")
    assert failure.reason.startswith(f"crew.7 asks for {asked}") and failure.limit
    assert f"and {os.uname().nodename} has {has}" in failure.reason and "ask for less" in failure.reason


def test_an_allocation_beyond_the_limit_is_a_memory_error_of_the_user(session: Session) -> None:
    owner = start(session, "allocate_too_much", Resources(memory="256Mi"))
    owner.next("link")
    assert owner.next("message") == "MemoryError"
    exited: Exited = owner.next("exited")
    assert (exited.exit_code, exited.ended_by) == (0, "")


def test_a_process_that_uses_too_much_with_its_children_is_ended_with_them_and_says_so(session: Session) -> None:
    owner = start(session, "start_two_that_allocate", Resources(memory="256Mi"))
    owner.next("link")
    children: list[int] = json.loads(owner.next("message"))
    exited: Exited = owner.next("exited")
    assert exited.exit_code == -signal.SIGKILL
    said = re.fullmatch(r"it used (\d+) MiB, its memory limit is 256 MiB \(requires\(memory=...\)\)", exited.ended_by)
    assert said and int(said[1]) > 256, exited.ended_by  # it is seen at some moment while it grows to 320
    wait_until_gone(children)
