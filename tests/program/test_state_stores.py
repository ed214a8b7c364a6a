"""Where states are kept: a service on another host has its launcher do it, and hears what goes wrong there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import CheckpointCorrupt, LinkClosed
from ropewalk.program import state_stores
from ropewalk.program.messages import PROGRAM, FindState, NodeStart, SaveState, StateAnswer, UnitName
from ropewalk.program.node_context import NodeContext
from ropewalk.program.state_stores import FolderStore, LauncherStore, StateArchive, StateTooLarge
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, dumps
from tests.program.recording import name_of


def context_of(replica: int = 0, generation: int = 0) -> NodeContext:
    nobody: Any = None  # a context that only says who it is
    start = NodeStart("store", 2, 0, None, 0)
    return NodeContext(nobody, nobody, name_of("unit", replica, generation), start, "demo")


def pickled(state: object) -> Payload:
    return dumps(state, what="state")


class Wire:
    """A `LauncherStore` and a `StateArchive`, with messages between them that are encoded and decoded."""

    def __init__(self, folder: Path) -> None:
        self.orders: list[Any] = []
        self.archive = StateArchive(folder, self._answer)
        self.store = LauncherStore(self._say)

    def _say(self, message: Any, parts: Sequence[Part]) -> None:
        self.orders.append(message)
        self.archive.hear(PROGRAM.decode(PROGRAM.encode(message)), [bytearray(part) for part in parts])

    def _answer(self, name: UnitName, answer: StateAnswer, parts: Sequence[Part]) -> None:
        assert name.unit == "unit"
        self.store.hear(PROGRAM.decode(PROGRAM.encode(answer)), [bytes(part) for part in parts])


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path)
    yield wire
    wire.archive.close()


def test_what_was_saved_last_is_found_by_the_next_generation_and_can_be_written_to(wire: Wire, tmp_path: Path) -> None:
    assert wire.store.find(context_of()) is None
    for value in (b"old", b"new"):
        wire.store.save(context_of(), pickled({"weights": bytearray(value) * 1000}), {"generation": 0})
    saved = wire.store.find(context_of(generation=1))
    assert saved and saved.facts == {"generation": 0} and not saved.note
    state = saved.unpickled()
    assert state == {"weights": bytearray(b"new") * 1000}
    state["weights"][0] = 1
    assert wire.store.find(context_of(replica=1)) is None
    assert [type(order) for order in wire.orders] == [FindState, SaveState, SaveState, FindState, FindState]
    kept = FolderStore(tmp_path).find(context_of())
    assert kept and kept.unpickled()["weights"][:3] == b"new", "the files are those of services on this host"


def test_the_buffers_of_a_state_are_not_copied_into_its_pickle(wire: Wire) -> None:
    numpy = pytest.importorskip("numpy")
    wire.store.save(context_of(), pickled({"weights": numpy.ones(1000)}), {})
    saved = wire.store.find(context_of())
    assert saved and len(saved.parts) == 2 and len(saved.parts[0]) < 1000
    weights = saved.unpickled()["weights"]
    weights += 1  # its own memory
    assert weights.sum() == 2000


def test_what_goes_wrong_with_the_launcher_is_raised_where_the_service_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wire = Wire(tmp_path / "file")  # no folder
    with pytest.raises(OSError, match="file"):
        wire.store.save(context_of(), pickled(1), {})
    wire.archive.close()
    wire = Wire(tmp_path / "folder")
    wire.store.save(context_of(), pickled(1), {})
    (path,) = (tmp_path / "folder").glob("*.checkpoint")
    path.write_bytes(b"rubbish")
    with pytest.raises(CheckpointCorrupt) as caught:
        wire.store.find(context_of())
    assert caught.value.path == str(path)
    wire.archive.close()


def test_a_state_that_is_too_large_is_not_sent_and_the_error_says_what_to_do(
    wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_stores, "MOST_BYTES", 1 << 20)
    with pytest.raises(StateTooLarge, match=r"gave 2 MiB.* at most 1 MiB.*shared folder"):
        wire.store.save(context_of(), pickled(bytes(2 << 20)), {})
    assert not wire.orders


def test_who_waits_for_a_launcher_that_is_gone_is_told() -> None:
    store = LauncherStore(lambda _message, _parts: None)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            store.save(context_of(), pickled(1), {})
        except LinkClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store.end("it was killed")
    thread.join(10)
    assert "it was killed" in str(errors[0])
    with pytest.raises(LinkClosed):
        store.find(context_of())


def test_an_archive_has_written_everything_when_it_is_closed(tmp_path: Path) -> None:
    answers: list[StateAnswer] = []
    archive = StateArchive(tmp_path, lambda _name, answer, _parts: answers.append(answer))
    for number in range(20):
        archive.hear(SaveState(number, name_of("unit"), "store", {}), [pickled(number).pickle])
    archive.close()
    assert [answer.number for answer in answers] == list(range(20))
    saved = FolderStore(tmp_path).find(context_of())
    assert saved and saved.unpickled() == 19
