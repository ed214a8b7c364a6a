"""A word on the command line means one running program, or the answer lists them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ropewalk.cli.choosing import NotChosen, choose, names_of_node
from ropewalk.control.launchers import Launcher
from ropewalk.control.server import Announcement


def launcher(name: str, pid: int, kind: str = "program", within: str = "") -> Launcher:
    at = "unix:/run/c.sock"
    announcement = Announcement(
        name=name, pid=pid, address=at, run_id="run", secret="secret", kind=kind, id=f"id{pid}", within=within
    )
    return Launcher(Path(f"/run/{pid}"), announcement)


RUNNING = [launcher("train", 11), launcher("train-large", 12), launcher("evolve", 13), launcher("11", 14)]


@pytest.mark.parametrize(
    ("word", "pid"),
    [("train", 11), ("train-", 12), ("e", 13), ("13", 13), ("12", 12), ("11", 14), ("evolve", 13), ("id12", 12)],
)
def test_a_name_comes_before_a_pid_and_a_pid_before_a_beginning(word: str, pid: int) -> None:
    assert choose(word, RUNNING).pid == pid


def test_the_only_program_need_not_be_named() -> None:
    assert choose(None, RUNNING[:1]).pid == 11
    assert choose(None, [launcher("pool-1", 11, "pool"), launcher("train", 11)]).name == "train"
    assert choose(None, [launcher("pool-1", 11, "pool")]).name == "pool-1"


def test_what_a_worker_launched_is_only_meant_if_nothing_else_can_be() -> None:
    nested = launcher("pool-1.0/pool-1", 12, "pool", within="pool-1.0")
    running = [launcher("pool-1", 11, "pool"), nested]
    assert choose(None, running).pid == choose("pool", running).pid == 11
    assert choose("pool-1.0/", running).pid == choose(None, [nested]).pid == 12


@pytest.mark.parametrize(
    ("word", "running", "message"),
    [
        ("tr", RUNNING[:3], "'tr' may be any of several programs; give the name or the pid of one:\n"
         "  train (pid 11)\n  train-large (pid 12)"),
        ("x\x1b", RUNNING[:2], "no running program is called 'x\\x1b'; give the name or the pid of one:\n"
         "  train (pid 11)\n  train-large (pid 12)"),
        (None, RUNNING[:2], "no program was named, and several run; give the name or the pid of one:\n"
         "  train (pid 11)\n  train-large (pid 12)"),
        ("train", [], "no running program is called 'train': this user runs nothing on this machine"),
        (None, [], "this user runs nothing on this machine"),
        ("a", [launcher("a", 1), launcher("a", 2), launcher("b", 3)],
         "'a' may be any of several programs; give the name or the pid of one:\n  a (pid 1)\n  a (pid 2)"),
    ],
)  # fmt: skip
def test_a_word_that_means_none_or_several_is_answered_with_a_list(
    word: str | None, running: list[Launcher], message: str
) -> None:
    with pytest.raises(NotChosen) as caught:
        choose(word, running)
    assert str(caught.value) == message


def test_a_node_means_its_replicas_and_a_replica_itself() -> None:
    names = ["actor.0", "actor.10", "actor.1", "actors.0", "a.b.0"]
    assert names_of_node("actor", names) == ["actor.0", "actor.10", "actor.1"]
    assert names_of_node("actor.1", names) == ["actor.1"]
    assert names_of_node("a", names) == [] and names_of_node("a.b", names) == ["a.b.0"]
