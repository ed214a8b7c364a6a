"""What all kinds of states have in common."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import pytest

from ropewalk.sharing.states import KINDS
from ropewalk.sharing.states.lock import LockState
from ropewalk.sharing.states.waiting import SharedState, Waiter
from tests.sharing.states.desk import party
from tests.sharing.states.test_pipe import pretend_wires

ARGUMENTS: dict[str, tuple[object, ...]] = {
    "pipe": (pretend_wires(),),
    "condition": (LockState(),),
    "barrier": (2,),
    "memory": (100,),
}


@pytest.fixture(params=KINDS)
def state(request: pytest.FixtureRequest) -> Iterator[SharedState]:
    state = KINDS[request.param](*ARGUMENTS.get(request.param, ()))
    yield state
    if close := getattr(state, "close", None):
        close()


def test_remote_methods_exist_and_take_the_call_first(state: SharedState) -> None:
    assert state.SEALED <= state.METHODS
    for name in state.METHODS:
        parameters = list(inspect.signature(getattr(state, name)).parameters)
        assert parameters[0] == "waiter", name
    for name in state.SEALED:
        parameters = inspect.signature(getattr(state, name)).parameters
        assert [parameter for parameter in parameters if parameter != "lot"][-1] == "item"


def test_nothing_but_remote_methods_takes_a_call(state: SharedState) -> None:
    taking = {
        name
        for name, method in inspect.getmembers(state, inspect.ismethod)
        if not name.startswith("_") and next(iter(inspect.signature(method).parameters), "") == "waiter"
    }
    assert taking - state.METHODS == {"give_up", "taken"}


def test_calls_and_processes_that_are_not_known_change_nothing(state: SharedState) -> None:
    stranger = Waiter(party("stranger"))
    assert state.give_up(stranger, timed_out=True) == []
    assert state.give_up(stranger, timed_out=False) == []
    assert state.taken(stranger) == []
    assert state.party_gone("stranger", "a stranger") == []
