"""A running program answers other terminals, whatever it is doing itself."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import threading
import time
import warnings

import pytest
from msgspec.structs import replace

from ropewalk.control import server as server_module
from ropewalk.control.launchers import LauncherGone, LauncherSilent, RequestFailed
from ropewalk.control.server import (
    Act,
    ActionDone,
    ControlServer,
    LogFiles,
    LogFilesAre,
    Look,
    Stacks,
    StacksAre,
    Stop,
    ViewIs,
)
from ropewalk.errors import TransportRefused
from ropewalk.transport.address import parse_address
from ropewalk.transport.client import dial
from ropewalk.transport.credentials import Credentials
from tests.control.pretend import RUN, Pretence, controlled
from tests.patience import PATIENCE_S


def test_each_question_is_answered_away_from_the_loop() -> None:
    target = Pretence("train")
    with controlled(target) as (_, launcher), launcher.connect() as conversation:
        assert conversation.ask(Look(), ViewIs).view == target.now
        assert conversation.ask(LogFiles(), LogFilesAre).paths == {}
        assert set(conversation.ask(Stacks("actor", 1.0), StacksAre).stacks) == {"actor.0", "actor.1"}
        assert conversation.ask(Look({"graph": 7}), ViewIs).view.panels == {"graph": {"cursor": 7}}
        assert conversation.ask(Act("kill", "actor.0"), ActionDone).text == "actor.0 is killed"
        assert conversation.ask(Stop(2.5), ViewIs).view.state == "stopped"
        assert target.stopped_with == [2.5]
        assert set(target.threads) == {"ropewalk-control"}


def test_what_the_target_raises_is_told_to_whoever_asked() -> None:
    with controlled(Pretence("train")) as (_, launcher), launcher.connect() as conversation:
        with pytest.raises(RequestFailed, match=r"train \(pid \d+\): ValueError: no such node: broken"):
            conversation.ask(Stacks("broken", 1.0), StacksAre)
        with pytest.raises(RequestFailed, match="ValueError: program train has no action 'paint'"):
            conversation.ask(Act("paint"), ActionDone)
        conversation.ask(Look(), ViewIs)  # and the conversation goes on


def test_a_status_that_hangs_delays_no_stop() -> None:
    target, released = Pretence("train"), threading.Event()
    target.before_view = lambda: released.wait(PATIENCE_S)
    target.on_stop = released.set
    with controlled(target) as (_, launcher), launcher.connect() as first, launcher.connect() as second:
        with pytest.raises(LauncherSilent, match=r"has not answered for 0\.1 s"):
            first.ask(Look(), ViewIs, 0.1)
        assert second.ask(Stop(None), ViewIs).view.state == "stopped"


def test_a_target_that_hangs_does_not_gather_threads_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "MAX_UNANSWERED", 2)
    target, released = Pretence("train"), threading.Event()
    target.before_view = lambda: released.wait(PATIENCE_S)
    target.on_stop = released.set
    with controlled(target) as (_, launcher), launcher.connect() as conversation:
        for _ in range(2):
            with pytest.raises(LauncherSilent):
                conversation.ask(Look(), ViewIs, 0.05)
        with pytest.raises(RequestFailed, match=r"2 questions .* the oldest \(look\) for 0 s; it seems to hang"):
            conversation.ask(LogFiles(), LogFilesAre)
        with launcher.connect() as other:
            assert other.ask(Stop(0.0), ViewIs).view.state == "stopped"


def test_a_program_that_closes_while_it_stops_tells_how_it_ended() -> None:
    """The launcher's main thread notices the end first, and leaves before `stop` has returned in the control thread."""
    target, closed = Pretence("train"), threading.Event()
    target.on_stop = lambda: closed.wait(PATIENCE_S)
    with controlled(target) as (server, launcher), launcher.connect() as conversation:
        asked = threading.Thread(target=lambda: (server.close(), closed.set()))

        def stop_then_close() -> None:
            asked.start()
            closed.wait(PATIENCE_S)

        target.on_stop = stop_then_close
        assert conversation.ask(Stop(None), ViewIs).view.state == "stopped"
        asked.join()


def test_a_client_that_asks_for_nothing_learns_what_was_shown_last() -> None:
    target = Pretence("train")
    with controlled(target) as (server, launcher), launcher.connect() as conversation:
        assert conversation.ask(Look(), ViewIs).view.state == "running"
        assert conversation.last_view() is None
        target.now = replace(target.now, state="completed")
        server.close()
        assert conversation.last_view() == target.now


def test_a_client_that_asks_too_late_is_told_what_was_shown_last() -> None:
    target = Pretence("train")
    with controlled(target) as (server, launcher), launcher.connect() as conversation:
        conversation.ask(Look(), ViewIs)
        target.now = replace(target.now, state="completed")
        server.close()
        with pytest.raises(LauncherGone) as gone:
            conversation.ask(LogFiles(), LogFilesAre)
        assert gone.value.last == target.now


def test_stop_may_close_the_server_from_within() -> None:
    target = Pretence("train")
    with controlled(target) as (server, launcher), launcher.connect() as conversation:
        target.on_stop = server.close
        assert conversation.ask(Stop(None), ViewIs).view.state == "stopped"


def test_a_second_close_waits_for_the_first() -> None:
    """Whoever calls it stops the loop next, and the first still needs that."""
    target, released = Pretence("train"), threading.Event()
    with controlled(target) as (server, launcher), launcher.connect() as conversation:
        first, second = threading.Thread(target=server.close), threading.Thread(target=server.close)

        def close_twice() -> None:
            target.before_view = lambda: (second.start(), released.wait(PATIENCE_S))
            first.start()
            released.wait(PATIENCE_S)

        target.on_stop = close_twice
        with pytest.raises(LauncherSilent):
            conversation.ask(Stop(None), ViewIs, 0.2)
        assert second.is_alive()
        target.before_view = lambda: None
        released.set()
        first.join(PATIENCE_S)
        second.join(PATIENCE_S)
        assert list(server.file.parent.iterdir()) == []


def test_after_close_nothing_is_found_and_links_are_gone() -> None:
    with controlled(Pretence("train")) as (server, launcher), launcher.connect() as conversation:
        folder = server.file.parent
        assert {path.suffix for path in folder.iterdir()} == {".json", ".sock"}
        server.close()
        server.close()
        assert list(folder.iterdir()) == []
        with pytest.raises(LauncherGone, match=r"train \(pid \d+\) has ended"):
            conversation.ask(Look(), ViewIs)
        with pytest.raises(LauncherGone), launcher.connect():
            pass


def test_the_file_is_private_and_its_secret_is_not_printed() -> None:
    with controlled(Pretence("train")) as (server, launcher):
        assert stat.S_IMODE(os.stat(server.file).st_mode) == 0o600
        assert launcher.announcement.secret in server.file.read_text()
        assert launcher.announcement.secret not in repr(launcher)
        assert json.loads(server.file.read_text())["pid"] == os.getpid()


def test_a_forked_child_leaves_the_program_to_its_parent() -> None:
    with controlled(Pretence("train")) as (server, launcher):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside the loop's thread
            child = os.fork()
        if child == 0:
            server.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        with launcher.connect() as conversation:
            conversation.ask(Look(), ViewIs)
        assert server.file.exists()


def test_a_forked_child_keeps_no_socket_at_which_nobody_would_answer() -> None:
    with controlled(Pretence("train")) as (server, _):
        assert server._listener
        fd = server._listener._socket.fileno()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # as above
            child = os.fork()
        if child == 0:
            try:
                os.fstat(fd)
            except OSError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_what_is_opened_later_and_closed_before_is_never_seen() -> None:
    with controlled(Pretence("train")) as (server, _):
        twin = ControlServer(server._loop, server.file.parent, RUN, Pretence("twin"))
        twin.open_later(0.0)
        due = time.monotonic() + PATIENCE_S
        while not twin.file.exists():
            assert time.monotonic() < due
        twin.close_soon()
        while twin.file.exists():
            assert time.monotonic() < due
        dropped = ControlServer(server._loop, server.file.parent, RUN, Pretence("dropped"))
        dropped.open_later(0.05)
        dropped.close_soon()
        passed = threading.Event()
        server._loop.call_soon(lambda: server._loop.call_later(0.1, passed.set))
        assert passed.wait(PATIENCE_S) and not dropped.file.exists()


def test_a_server_whose_loop_has_ended_is_closed_all_the_same() -> None:
    with contextlib.ExitStack() as stack:
        server, _ = stack.enter_context(controlled(Pretence("train")))
        server._loop.stop()
        assert server._loop.ended.wait(PATIENCE_S)
        server.close_soon()
        assert not server.file.exists() and list(server.file.parent.iterdir()) == []


def test_without_the_secret_nobody_is_heard() -> None:
    target = Pretence("train")
    stranger = Credentials.create(RUN, server_module.ASKER)
    with controlled(target) as (_, launcher):
        address = parse_address(launcher.announcement.address)
        with pytest.raises(TransportRefused, match="not a member"):
            dial(address, stranger, server_module.CONTROL_CODEC, timeout_s=PATIENCE_S)
    assert target.threads == []


def test_a_script_whose_name_is_no_utf_8_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    # `program.launch` raised UnicodeEncodeError.
    monkeypatch.setattr(sys, "argv", [os.fsdecode(b"/home/tr\xe4in.py")])
    with controlled(Pretence("walk-latin")) as (_, found):
        assert str(found) == f"walk-latin (pid {os.getpid()}, tr\\udce4in.py)"
