"""The state of a service: what was saved is given back, when it is saved, and that no failure to save ends it."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropewalk.calls.frozen import Frozen
from ropewalk.calls.markers import concurrent
from ropewalk.calls.once import CallName, CallStanding, Done, OnceTable
from ropewalk.errors import CheckpointCorrupt
from ropewalk.program import saving, snapshot_costs
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


class Works(Weights):
    """With work of its own."""

    def run(self) -> None: ...


class Locks(Works):
    """Beside which its state may be taken."""

    @concurrent(1)
    def state_dict(self) -> Any:
        return self.value


class Kept:
    """The state of one object in a folder, and what was noted of it."""

    def __init__(
        self,
        folder: Path,
        value: Any = 0,
        checkpoint_s: float | None = 1.0,
        generation: int = 0,
        kind: type[Weights] = Weights,
        forks: bool = False,
    ) -> None:
        self.obj = kind(value)
        self.notes: list[str] = []
        nobody: Any = None  # a context that only says who it is
        context = NodeContext(
            nobody, nobody, name_of("store", 0, generation), NodeStart("store", 1, 0, checkpoint_s, 0), "demo"
        )
        self.once = OnceTable()
        self.state = KeptState(self.obj, context, FolderStore(folder), self.notes.append, self.once, forks=forks)

    def save(self) -> None:
        """As when it is due."""
        self.state._is_saving = True
        finish = self.state.begin(contextlib.nullcontext(True))
        if finish:
            finish()
        assert not self.state._is_saving


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
        first.save()
    second = Kept(tmp_path, generation=1)
    second.state.restore()
    assert second.obj.value == {"weights": [2]} and first.notes == second.notes == []


@pytest.mark.parametrize("value", [[1], Frozen([1])])
def test_what_is_saved_of_an_object_says_which_calls_are_in_it(tmp_path: Path, value: Any) -> None:
    first, call = Kept(tmp_path, value), CallName("actor", 0, 1)
    first.once.arrive(call, 0)
    first.once.done(call, Done([b"answer"]))
    first.save()
    first.once.arrive(CallName("actor", 0, 2), 1)  # came after that
    second = Kept(tmp_path, generation=1)
    second.state.restore()
    assert second.obj.value == [1]
    assert second.once.arrive(call, 0) == Done([b"answer"])
    assert second.once.arrive(CallName("actor", 0, 2), 1) is CallStanding.NEW


@pytest.mark.parametrize(("generation", "checkpoint_s", "notes"), [(0, 1.0, 0), (1, 1.0, 1), (1, None, 0)])
def test_a_restart_before_the_first_checkpoint_is_noted(
    tmp_path: Path, generation: int, checkpoint_s: float | None, notes: int
) -> None:
    kept = Kept(tmp_path, generation=generation, checkpoint_s=checkpoint_s)
    kept.state.restore()
    assert len(kept.notes) == notes and all("before its first checkpoint was written" in note for note in kept.notes)


def test_a_damaged_state_gives_way_to_the_one_before_it_with_a_note(tmp_path: Path) -> None:
    first = Kept(tmp_path)
    for value in (1, 2):
        first.obj.value = value
        first.save()
    (newest,) = tmp_path.glob("*.checkpoint")
    newest.write_bytes(newest.read_bytes()[:-1])
    second = Kept(tmp_path)
    second.state.restore()
    assert second.obj.value == 1 and len(second.notes) == 1 and second.notes[0].startswith("store: ")


def test_a_service_without_a_whole_state_does_not_begin_anew(tmp_path: Path) -> None:
    first = Kept(tmp_path, 1)
    first.save()
    (only,) = tmp_path.glob("*.checkpoint")
    only.write_bytes(b"damaged")
    with pytest.raises(CheckpointCorrupt):
        Kept(tmp_path).state.restore()


@pytest.mark.parametrize("bad", [ValueError("no state"), threading.Lock()], ids=["raises", "cannot be pickled"])
def test_a_state_that_cannot_be_saved_is_noted_and_saved_the_next_time(tmp_path: Path, bad: Any) -> None:
    kept = Kept(tmp_path, bad)
    kept.save()
    (note,) = kept.notes
    assert note.startswith("the state of store was not saved: ")
    kept.obj.value = 3
    kept.save()
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value == 3


def test_a_folder_that_cannot_be_written_is_noted(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Kept(tmp_path / "file", 3)
    kept.save()
    assert len(kept.notes) == 1


def test_by_default_saving_is_due_after_calls_one_at_a_time(tmp_path: Path) -> None:
    kept = Kept(tmp_path, checkpoint_s=None)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]
    assert not kept.state.is_due(0, begun + 10), "nobody has called"
    assert not kept.state.is_due(3, begun + 0.5), "too soon"
    assert kept.state.is_due(3, begun + 1.5)
    assert not kept.state.is_due(9, begun + 10), "one is under way"
    kept.save()
    assert not kept.state.is_due(9, begun + 20), "that one holds all of them"
    assert kept.state.is_due(10, begun + 200)


def test_with_an_interval_a_service_that_nobody_calls_is_saved_as_well(tmp_path: Path) -> None:
    kept = Kept(tmp_path, checkpoint_s=1.0)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]
    assert not kept.state.is_due(0, begun + 0.5) and kept.state.is_due(0, begun + 1.5)


def test_calls_that_come_while_a_state_is_saved_make_the_next_one_due(tmp_path: Path) -> None:
    kept = Kept(tmp_path, checkpoint_s=1.0)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]

    class Slow:
        def __reduce__(self) -> Any:
            assert not kept.state.is_due(4, begun + 5)
            return int, ()

    kept.obj.value = Slow()
    assert kept.state.is_due(3, begun + 1.5)
    kept.save()
    assert kept.notes == [] and kept.state.is_due(4, begun + 10)


def test_beside_work_of_its_own_a_state_is_taken_only_where_the_work_says_or_at_the_end(tmp_path: Path) -> None:
    # 31 of 31 checkpoints were torn: `a` of one step, `b` of the one before.
    kept = Kept(tmp_path, 7, checkpoint_s=1.0, kind=Works)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]
    assert not kept.state.is_due(9, begun + 2) and not kept.state.is_due(9, begun + 3)
    (note,) = kept.notes
    assert "store is not saved while its run() works" in note
    assert "rw.checkpoint_here()" in note and "@rw.concurrent(1)" in note
    assert not kept.state.is_due_here(begun + 0.5)
    assert kept.state.is_due_here(begun + 2) and not kept.state.is_due(10, begun + 20)
    kept.save()
    again = Kept(tmp_path, kind=Works)
    again.state.restore()
    assert again.obj.value == 7
    kept.obj.value = 8
    kept.state.save_last()
    again.state.restore()
    assert again.obj.value == 8


def test_a_state_with_locks_of_its_own_is_taken_at_any_moment(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 7, checkpoint_s=1.0, kind=Locks)
    begun: float = vars(vars(kept.state)["_pace"])["_begun"]
    assert kept.state.takes_no_turn and kept.state.is_due(0, begun + 2) and kept.notes == []


def test_where_it_gets_no_turn_nothing_is_saved_and_nothing_is_wrong(tmp_path: Path) -> None:
    kept = Kept(tmp_path, 7)
    kept.state._is_saving = True
    assert kept.state.begin(contextlib.nullcontext(False)) is None
    assert kept.notes == [] and list(tmp_path.iterdir()) == [] and not kept.state._is_saving


# How it is kept as it was


@pytest.fixture
def always_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_costs, "_COPY_BYTES_PER_S", 1.0)


@pytest.mark.parametrize("forks", [False, True])
@pytest.mark.usefixtures("always_forked")
def test_a_state_is_saved_as_it_was_though_the_object_goes_on(tmp_path: Path, forks: bool) -> None:
    kept = Kept(tmp_path, {"weights": np.arange(50_000), "step": 1}, forks=forks)
    kept.save()  # so that the copy lies in memory that was used before
    kept.state._is_saving = True
    finish = kept.state.begin(contextlib.nullcontext(True))
    kept.obj.value["weights"] += 1
    kept.obj.value["step"] = 2
    assert finish
    finish()
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value["step"] == 1 and np.array_equal(again.obj.value["weights"], np.arange(50_000))


def test_what_is_frozen_is_pickled_when_calls_go_on(tmp_path: Path) -> None:
    class Pickled:
        def __reduce__(self) -> Any:
            taken.append("pickled")
            return int, (7,)

    taken: list[str] = []
    kept = Kept(tmp_path, Frozen(Pickled()), forks=True)
    kept.state._is_saving = True
    finish = kept.state.begin(contextlib.nullcontext(True))
    taken.append("taken")
    assert finish
    finish()
    assert taken == ["taken", "pickled"] and kept.notes == []
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value == 7


@pytest.mark.usefixtures("always_forked")
def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    kept = Kept(tmp_path, np.ones(5000), forks=True)
    kept.save()
    kept.save()
    assert [path.name for path in tmp_path.iterdir()] == ["store.0.checkpoint"]
    kept.obj.value[0] = 2
    kept.save()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store.0.checkpoint", "store.0.previous"]


def test_a_large_pickle_is_made_by_the_child_unless_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_costs, "_LONG_S", 0.0)
    kept = Kept(tmp_path, OnlyIn(os.getpid()), forks=True)
    seen: list[bool] = []
    for _ in range(4):
        seen.append(kept.state._costs.pickles_in_child)
        kept.save()
    assert seen == [False, True, False, False]
    (note,) = kept.notes
    assert "only in the process that made it" in note


class OnlyIn:
    """Cannot be pickled in a child, as what lies on a GPU."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def __reduce__(self) -> Any:
        if os.getpid() != self.pid:
            raise ValueError("only in the process that made it")
        return int, ()


@pytest.mark.usefixtures("always_forked")
def test_where_a_child_cannot_read_the_memory_it_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Memory of some drivers is not passed on to children, which die of reading it.
    kept = Kept(tmp_path, np.ones(5000), forks=True)
    assert not kept.state._costs.copies(1)
    monkeypatch.setattr(saving, "write", lambda *_: os._exit(9))
    kept.save()
    assert len(kept.notes) == 1 and list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    kept.save()
    assert kept.state._costs.copies(1 << 40) and len(kept.notes) == 1
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value.sum() == 5000


@pytest.mark.usefixtures("always_forked")
def test_a_full_disk_is_told_in_words_also_by_a_child_and_is_no_reason_to_copy(tmp_path: Path) -> None:
    kept = Kept(tmp_path, np.ones(5000), forks=True)
    kept.save()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        kept.obj.value[0] = 2
        kept.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    (note,) = kept.notes
    assert "File too large (this process may write files of at most 1,000 bytes)" in note and str(tmp_path) in note
    assert not kept.state._costs.copies(1)
    kept.save()
    again = Kept(tmp_path)
    again.state.restore()
    assert again.obj.value[0] == 2
