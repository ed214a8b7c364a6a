"""Where states are kept: a service on another host has its launcher do it, and hears what goes wrong there."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import CheckpointCorrupt, FileNotTrusted, LinkClosed
from ropewalk.program import state_stores
from ropewalk.program.checkpoints import Header, write
from ropewalk.program.forked_work import ForkedWork
from ropewalk.program.messages import PROGRAM, FindState, NodeStart, ReadState, SaveState, StateAnswer, UnitName
from ropewalk.program.node_context import NodeContext
from ropewalk.program.state_archive import StateArchive
from ropewalk.program.state_stores import FolderStore, LauncherStore, StateStore
from ropewalk.transport.frames import Part
from ropewalk.transport.serialization import Payload, dumps
from tests.program.recording import name_of


def context_of(replica: int = 0, generation: int = 0) -> NodeContext:
    nobody: Any = None  # a context that only says who it is
    start = NodeStart("store", 2, 0, None, 0)
    return NodeContext(nobody, nobody, name_of("unit", replica, generation), start, "demo")


def pickled(state: object) -> Payload:
    return dumps(state, what="state")


def save(store: StateStore, context: NodeContext, state: object, *, in_child: bool = False, **facts: Any) -> None:
    new = store.new(context)
    payload, header = pickled(state), Header(context.name, context.replica, facts)
    if in_child:
        new.expect_child()
        child = ForkedWork(lambda _: write(new.file, header, payload))
        new.follow(10.0)
        child.wait(120)
    else:
        write(new.file, header, payload)
    new.keep()
    new.discard()


class Wire:
    """A `LauncherStore` and a `StateArchive`, with messages between them that are encoded and decoded."""

    def __init__(self, folder: Path) -> None:
        self.orders: list[Any] = []
        self.largest = 0
        self.archive = StateArchive(folder, self._answer)
        self.store = LauncherStore(self._say)

    def _say(self, message: Any, parts: Sequence[Part]) -> None:
        self.orders.append(message)
        self.largest = max(self.largest, *(memoryview(part).nbytes for part in parts), 0)
        self.archive.hear(PROGRAM.decode(PROGRAM.encode(message)), [bytearray(part) for part in parts])

    def _answer(self, name: UnitName, answer: StateAnswer, parts: Sequence[Part]) -> None:
        assert name.unit == "unit"
        self.largest = max(self.largest, *(memoryview(part).nbytes for part in parts), 0)
        self.store.hear(PROGRAM.decode(PROGRAM.encode(answer)), [bytes(part) for part in parts])


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    wire = Wire(tmp_path)
    yield wire
    wire.archive.close()


def test_what_was_saved_last_is_found_by_the_next_generation_and_can_be_written_to(wire: Wire, tmp_path: Path) -> None:
    assert wire.store.find(context_of()) is None
    for value in (b"old", b"new"):
        save(wire.store, context_of(), {"weights": bytearray(value) * 1000}, generation=0)
    saved = wire.store.find(context_of(generation=1))
    assert saved and saved.facts == {"generation": 0} and not saved.note
    state = saved.unpickled()
    assert state == {"weights": bytearray(b"new") * 1000}
    state["weights"][0] = 1
    assert wire.store.find(context_of(replica=1)) is None
    kinds = [type(order) for order in wire.orders]
    assert kinds[0] is kinds[-1] is FindState and set(kinds) == {FindState, ReadState, SaveState}
    kept = FolderStore(tmp_path).find(context_of())
    assert kept and kept.unpickled()["weights"][:3] == b"new", "the files are those of services on this host"


@pytest.mark.parametrize("in_child", [False, True])
def test_a_state_of_any_size_travels_in_pieces(wire: Wire, monkeypatch: pytest.MonkeyPatch, in_child: bool) -> None:
    # It was one message, which both sides held in memory as a whole, and at most 1 GiB.
    numpy = pytest.importorskip("numpy")
    monkeypatch.setattr(state_stores, "PIECE_BYTES", 10_000)
    save(wire.store, context_of(), {"weights": numpy.arange(20_000), "name": "x" * 12_345}, in_child=in_child)
    saved = wire.store.find(context_of())
    assert saved and len(saved.parts) == 2 and len(saved.parts[0]) < 13_000
    state = saved.unpickled()
    state["weights"] += 1  # its own memory
    assert state["weights"].sum() == numpy.arange(20_001).sum() and len(state["name"]) == 12_345
    assert 0 < wire.largest <= 20_000 and len(wire.orders) > 20


def test_a_damaged_state_gives_way_to_the_one_before_it(wire: Wire, tmp_path: Path) -> None:
    for value in ("old", "new"):
        save(wire.store, context_of(), value)
    (newest,) = tmp_path.glob("*.checkpoint")
    newest.write_bytes(newest.read_bytes()[:-1])
    saved = wire.store.find(context_of())
    assert saved and saved.unpickled() == "old" and "goes back to the checkpoint before the newest" in saved.note
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".damaged", ".previous"]


def test_what_goes_wrong_with_the_launcher_is_raised_where_the_service_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wire = Wire(tmp_path / "file")  # no folder
    with pytest.raises(OSError, match="file"):
        save(wire.store, context_of(), 1)
    wire.archive.close()
    wire = Wire(tmp_path / "folder")
    save(wire.store, context_of(), 1)
    (path,) = (tmp_path / "folder").glob("*.checkpoint")
    path.write_bytes(b"rubbish")
    with pytest.raises(CheckpointCorrupt) as caught:
        wire.store.find(context_of())
    assert caught.value.path == str(path)
    path.chmod(0o666)
    with pytest.raises(FileNotTrusted, match="must not let other users write"):
        wire.store.find(context_of())
    wire.archive.close()


def test_what_was_begun_and_not_kept_was_never_there(wire: Wire, tmp_path: Path) -> None:
    save(wire.store, context_of(), "kept")
    for end in ("given up", "killed"):
        new = wire.store.new(context_of())
        new.file.write(b"half of it")
        if end == "given up":
            new.discard()
            new.discard()
    assert FolderStore(tmp_path).find(context_of()).unpickled() == "kept"  # type: ignore[union-attr]
    save(wire.store, context_of(generation=1), "next")
    assert FolderStore(tmp_path).find(context_of()).unpickled() == "next"  # type: ignore[union-attr]
    wire.archive.close()
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".checkpoint", ".previous"]


def test_who_waits_for_a_launcher_that_is_gone_is_told() -> None:
    store = LauncherStore(lambda _message, _parts: None)
    errors: list[Exception] = []

    def wait() -> None:
        try:
            store.new(context_of())
        except LinkClosed as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    store.end("it was killed")
    thread.join(120)
    assert "it was killed" in str(errors[0])
    with pytest.raises(LinkClosed):
        store.find(context_of())


def test_an_archive_has_written_everything_when_it_is_closed(tmp_path: Path) -> None:
    answers: list[StateAnswer] = []
    archive = StateArchive(tmp_path, lambda _name, answer, _parts: answers.append(answer))
    written = io.BytesIO()
    write(written, Header("store", 0, {}), pickled(19))
    steps: list[tuple[Any, list[bytes]]] = [("begin", []), ("go on", [written.getvalue()]), ("keep", [])]
    for number, (step, piece) in enumerate(steps):
        archive.hear(SaveState(number, name_of("unit"), "store", step), piece)
    archive.close()
    assert [answer.number for answer in answers] == list(range(3))
    saved = FolderStore(tmp_path).find(context_of())
    assert saved and saved.unpickled() == 19
