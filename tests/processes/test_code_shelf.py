"""Project files on a host: whoever asks waits until they are unpacked, and nobody else does."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ropewalk.processes import code_bundle
from ropewalk.processes.code_bundle import make_bundle, unpack
from ropewalk.processes.code_shelf import CodeShelf
from ropewalk.processes.project_files import find_project


class Turns:
    """A loop that does what it was told when the test says so."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def call_soon(self, call: Callable[[], None]) -> None:
        self._calls.put(call)

    def take_one(self) -> None:
        self._calls.get(timeout=60)()


@pytest.fixture
def turns() -> Turns:
    return Turns()


@pytest.fixture
def shelf(tmp_path: Path, turns: Turns) -> Iterator[CodeShelf]:
    shelf = CodeShelf(tmp_path / "host", turns.call_soon)
    (tmp_path / "host").mkdir()
    yield shelf
    shelf.close()


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    root = tmp_path / "project"
    root.mkdir()
    for number in range(20):
        (root / f"{number}.py").write_text(f"X = {number}\n")
    return make_bundle(find_project(root / "0.py", root), 10**6).data


def test_whoever_asks_hears_when_all_is_there_and_others_at_once(
    shelf: CodeShelf, turns: Turns, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()

    def unpack_later(*args: Any, **more: Any) -> Path:
        assert go.wait(60), "unpacked in the thread of the loop, which would be silent for that long"
        return unpack(*args, **more)

    monkeypatch.setattr(code_bundle, "unpack", unpack_later)
    heard: list[tuple[str, str]] = []
    shelf.put("ours", data)
    shelf.put("ours", data)
    for name in ("ours", "", "ours"):
        shelf.when_there(name, lambda problem, name=name: heard.append((name, problem)))
    assert heard == [("", "")]
    go.set()
    turns.take_one()
    assert heard == [("", ""), ("ours", ""), ("ours", "")]
    shelf.when_there("ours", lambda problem: heard.append(("again", problem)))
    assert heard[-1] == ("again", "")


def test_what_cannot_be_unpacked_is_told_to_all_who_ask_until_it_comes_whole(
    shelf: CodeShelf, turns: Turns, data: bytes
) -> None:
    problems: list[str] = []
    shelf.put("ours", data[:-20])
    shelf.when_there("ours", problems.append)
    turns.take_one()
    shelf.when_there("ours", problems.append)
    assert len(problems) == 2
    assert all("could not be unpacked in" in problem and "it ends too early" in problem for problem in problems)
    shelf.put("ours", data)
    shelf.when_there("ours", problems.append)
    turns.take_one()
    assert problems[2:] == [""]


def test_one_that_is_closed_stops_and_leaves_nothing_half_unpacked(
    tmp_path: Path, turns: Turns, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go = threading.Event(), threading.Event()

    def unpack_slowly(data: bytes, into: Path, *, stopped: Callable[[], bool]) -> Path:
        def look() -> bool:
            began.set()
            assert go.wait(60)
            return stopped()

        return unpack(data, into, stopped=look)

    monkeypatch.setattr(code_bundle, "unpack", unpack_slowly)
    (tmp_path / "host").mkdir()
    shelf = CodeShelf(tmp_path / "host", turns.call_soon)
    shelf.put("ours", data)
    assert began.wait(60)
    closing = threading.Thread(target=shelf.close)
    closing.start()
    assert shelf._closed.wait(60)  # pyright: ignore[reportPrivateUsage]
    go.set()
    closing.join(60)
    assert not closing.is_alive()
    assert list((tmp_path / "host/code").iterdir()) == []


def test_a_process_waits_for_files_that_are_on_their_way(shelf: CodeShelf, turns: Turns, data: bytes) -> None:
    heard: list[str] = []
    shelf.expect("code")
    shelf.when_there("code", heard.append)
    assert not heard
    shelf.put("code", data)
    shelf.put("code", data)
    turns.take_one()
    assert heard == [""]


def test_whatever_keeps_files_from_being_unpacked_is_told_to_those_who_wait(
    shelf: CodeShelf, turns: Turns, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only a few kinds of errors were told; with others, the processes of the host waited for ever.
    problems: list[str] = []

    def fail(*args: Any, **more: Any) -> Path:
        raise MemoryError

    monkeypatch.setattr(code_bundle, "unpack", fail)
    shelf.put("ours", data)
    shelf.when_there("ours", problems.append)
    turns.take_one()
    assert len(problems) == 1 and problems[0].endswith("MemoryError")


def test_where_no_thread_can_unpack_them_those_who_wait_are_told(
    shelf: CodeShelf, turns: Turns, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    shelf.expect("ours")
    shelf.when_there("ours", problems.append)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        shelf.put("ours", data)
    assert len(problems) == 1 and problems[0].endswith("can't start new thread")
    shelf.put("ours", data)
    turns.take_one()
    shelf.when_there("ours", problems.append)
    assert problems[1:] == [""]


def test_files_that_did_not_come_are_told_to_those_who_wait(shelf: CodeShelf, turns: Turns, data: bytes) -> None:
    problems: list[str] = []
    shelf.expect("ours")
    shelf.when_there("ours", problems.append)
    shelf.put("ours", b"", "n1 cannot hold it: no memory is left")
    assert len(problems) == 1 and problems[0].endswith("n1 cannot hold it: no memory is left")
    shelf.put("ours", data)
    turns.take_one()
    shelf.when_there("ours", problems.append)
    assert problems[1:] == [""]
