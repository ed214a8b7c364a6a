"""A box: one value, of which any number of calls take copies."""

from __future__ import annotations

import pytest

from ropewalk.sharing.states.box import BoxState
from tests.sharing.states.desk import Desk, Parcel, party

A, B = party("a"), party("b")


def test_the_value_stays_when_it_is_taken_and_when_its_maker_is_gone() -> None:
    state = BoxState()
    desk = Desk(state)
    desk.ask(state, "put", A, Parcel("state"))
    assert desk.ask(state, "get", A) == "state"
    desk.die("a")
    assert [desk.ask(state, "get", B) for _ in range(2)] == ["state", "state"]
    assert not desk.lent


def test_it_is_filled_once_and_not_read_before() -> None:
    state = BoxState()
    desk = Desk(state)
    with pytest.raises(ValueError, match="no value in this box"):
        desk.ask(state, "get", A)
    desk.ask(state, "put", A, Parcel("first"))
    with pytest.raises(ValueError, match="a value in this box already"):
        desk.ask(state, "put", B, Parcel("second"))
    assert desk.ask(state, "get", B) == "first"
