"""Programs of threads that copy nothing: the callee gets the caller's very object, whatever the way of calling."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import ropewalk as rw
from tests.patience import PATIENCE_S


class Held:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.answer: Any = None


class Keeper:
    """Keeps what it is given, and gives it back."""

    def __init__(self, own: Held, starts: threading.Event | None = None) -> None:
        if starts:
            starts.wait(120)
        self.own = own
        self.got: list[Any] = []

    def mine(self) -> Held:
        return self.own

    def keep(self, value: Any, *more: Any, name: Any = None) -> Any:
        self.got += [value, *more, name]
        return value

    def first(self) -> Any:
        return self.got[0]

    def each(self, values: list[Any]) -> Iterator[Any]:
        yield from values

    @rw.batched(max_size=4, max_wait_s=0.01)
    def many(self, values: list[Any]) -> list[Any]:
        return list(values)


def _launch(own: Held, **options: Any) -> Any:
    program = rw.Program("held")
    program.add(rw.Service(Keeper, own, **options), name="keeper")
    return program.launch("threads", copy=False)


def test_arguments_and_results_are_the_very_objects_in_every_way_of_calling() -> None:
    # `copy=False` was accepted, and all was copied nevertheless, and refused where it could not be.
    own, given = Held(), Held()
    with _launch(own) as running:
        keeper = running.client("keeper")
        assert keeper.mine() is own
        assert keeper.keep(given) is given and keeper.first() is given
        assert keeper.keep(1, name=given) == 1
        assert keeper.keep.future(given).result(120) is given

        async def call() -> Any:
            return await keeper.keep.aio(given)

        assert asyncio.run(call()) is given
        assert keeper.all.keep(given)[0] is given
        assert [item is given for item in keeper.each([given] * 40)] == [True] * 40
        keeper.keep.send(own)
        assert keeper.keep(given) is given
        with rw.deadline(PATIENCE_S):
            assert keeper.keep(given) is given
        # What was answered is forgotten; only the answer to the one that was sent is left, as nobody looks at it.
        assert list(running._hosting.handover._objects.values()) == [own]


def test_batched_methods_get_the_very_objects() -> None:
    own, given = Held(), Held()
    with _launch(own) as running:
        many = running.client("keeper").many
        assert [future.result(120) is given for future in [many.future(given) for _ in range(6)]] == [True] * 6


def test_calls_that_are_made_before_the_service_is_there_hand_over_too() -> None:
    starts, own, given = threading.Event(), Held(), Held()
    with _launch(own, starts=starts) as running:
        keeper = running.client("keeper")
        future = keeper.keep.future(given)
        starts.set()
        assert future.result(120) is given


def _ask(keeper: Any, given: Held) -> None:
    given.answer = keeper.keep(given)


def test_nodes_get_their_arguments_as_they_are_and_hand_them_on() -> None:
    own, given = Held(), Held()
    program = rw.Program("held")
    keeper = program.add(rw.Service(Keeper, own), name="keeper")
    program.add(rw.Worker(_ask, keeper, given), name="asker")
    with pytest.raises(rw.ProgramInvalid, match="lock"):
        program.launch("threads")
    with program.launch("threads", copy=False) as running:
        assert running.wait(120)
    assert given.answer is given


def test_a_program_that_copies_still_copies_beside_one_that_does_not() -> None:
    own, given = Held(), [1, 2]
    program = rw.Program("copies")
    program.add(rw.Service(Keeper, None), name="keeper")
    with _launch(own) as held, program.launch("threads") as copies:
        assert held.client("keeper").keep(given) is given
        copy = copies.client("keeper").keep(given)
        assert copy == given and copy is not given
        with pytest.raises(rw.NotPicklable):
            copies.client("keeper").keep(own)
