"""The state of a service: what was saved is given back, when it is saved, and that no failure to save ends it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from ropewalk.errors import CheckpointCorrupt
from ropewalk.program.kept_state import KeptState, has_state
from ropewalk.program.messages import NodeStart
from ropewalk.program.node_context import NodeContext
from ropewalk.program.state_stores import FolderStore
from tests.program.recording import name_of


class Weights:
    def __init__(self, value: Any = 0) -> None:
        self.value = value

    def state_dict(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value

    def load_state_dict(self, state: Any) -> None:
        self.value = state


class Kept:
    """The state of one object in a folder, and what was noted of it."""

    def __init__(self, folder: Path, value: Any = 0, checkpoint_s: float | None = 1.0, generation: int = 0) -> None:
        self.obj = Weights(value)
        self.notes: list[str] = []
        nobody: Any = None  # a context that only says who it is
        context = NodeContext(
            nobody, nobody, name_of("store", 0, generation), NodeStart("store", 1, 0, checkpoint_s, 0), "demo"
        )
        self.state = KeptState(self.obj, context, FolderStore(folder), self.notes.append)


def test_only_an_object_that_gives_and_takes_a_state_has_one() -> None:
    class Gives:
        def state_dict(self) -> int:
            return 1

    class Both(Gives):
        load_state_dict = None

    assert has_state(Weights()) and not has_state(Gives()) and not has_state(Both()) and not has_state(3)


def test_what_was_saved_last_is_given_back(tmp_path: Path) -> None:
    first = Kept(tmp_path)
    first.state.restore()
    assert first.obj.value == 0, "nothing was saved yet"
    for value in ([1], {"weights": [2]}):
        first.obj.value = value
        first.state.save()
    second = Kept(tmp_path, generation=1)
    second.state.restore()
    assert second.obj.value == {"weights": [2]} and first.notes == second.notes == []


def test_a_damaged_state_gives_way_to_the_one_before_it_with_a_note(tmp_path: Path) -> None:
    first = Kept(tmp_path)
    for value in (1, 2):
        first.obj.value = value
        first.state.save()
    (newest,) = tmp_path.glob("*.checkpoint")
    newest.write_bytes(newest.read_bytes()[:-1])
    second = Kept(tmp_path)
    second.state.restore()
    assert second.obj.value == 1 and len(second.notes) == 1 and second.notes[0].startswith("store: ")


def test_a_service_without_a_whole_state_does_not_begin_anew(tmp_path: Path) -> None:
    first = Kept(tmp_path, 1)
    first.state.save()
    (only,) = tmp_path.glob("*.checkpoint")
    only.write_bytes(b"damaged")
    with pytest.raises(CheckpointCorrupt):
        Kept(tmp_path).state.restore()


@pytest.mark.parametrize("bad", [ValueError("no state"), threading.Lock()], ids=["raises", "cannot be pickled"])
def test_a_state_that_cannot_be_saved_is_noted_and_saved_the_next_time(tmp_path: Path, bad: Any) -> None:
    kept = Kept(tmp_path, bad)
    kept.state.save()
    (note,) = kept.notes
    assert note.startswith("the state of store was not saved: ")
    kept.obj.value = 3
    kept.state.save()
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value == 3


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Kept(tmp_path / "file", 3)
    kept.state.save()
    assert len(kept.notes) == 1


def test_saving_is_due_after_calls_one_at_a_time(tmp_path: Path) -> None:
    kept = Kept(tmp_path, checkpoint_s=1.0)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]
    assert not kept.state.is_due(0, begun + 10), "nobody has called"
    assert not kept.state.is_due(3, begun + 0.5), "too soon"
    assert kept.state.is_due(3, begun + 1.5)
    assert not kept.state.is_due(9, begun + 10), "one is under way"
    kept.state.save()
    assert not kept.state.is_due(9, begun + 20), "that one holds all of them"
    assert kept.state.is_due(10, begun + 20)


def test_calls_that_come_while_a_state_is_saved_make_the_next_one_due(tmp_path: Path) -> None:
    kept = Kept(tmp_path, checkpoint_s=1.0)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]

    class Slow:
        def __reduce__(self) -> Any:
            assert not kept.state.is_due(4, begun + 5)
            return int, ()

    kept.obj.value = Slow()
    assert kept.state.is_due(3, begun + 1.5)
    kept.state.save()
    assert kept.notes == [] and kept.state.is_due(4, begun + 10)
