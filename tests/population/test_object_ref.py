"""Values that stay with the workers: real ones, which die, and whose host is lost."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray

import ropewalk as rw
from ropewalk.errors import CheckpointCorrupt, FileNotTrusted, NotPicklable, ObjectLost
from ropewalk.pool.pool import Pool
from ropewalk.population.noise_table import NoiseTable
from ropewalk.population.object_ref import ObjectRef, put
from ropewalk.sharing.membership import member_of
from ropewalk.sharing.synchronize import Barrier
from tests.patience import wait_until
from tests.population.neighbours import lose_host, session_of_neighbours

SIZE = 300_000
TABLE = NoiseTable(1 << 16, seed=2)


def make(number: int) -> tuple[ObjectRef, int, int]:
    """A state of more than a megabyte, the process that made it, and its agent."""
    held = put({"weights": np.full(SIZE, number, np.float32), "bias": np.arange(3.0), "name": f"member {number}"})
    return held, os.getpid(), os.getppid()


def use(held: ObjectRef) -> tuple[float, float, str]:
    """Train on a copy."""
    state = held.get()
    state["weights"] += 1
    state["bias"] *= 2
    return float(state["weights"][SIZE // 2]), float(state["bias"][2]), state["name"]


def save(held: ObjectRef, path: Path) -> int:
    return held.save(path)


def load(path: Path) -> ObjectRef:
    return ObjectRef.load(path)


def give_back(held: ObjectRef) -> ObjectRef:
    return held


def num_held(session: rw.Session) -> int:
    member = member_of(session)
    return member.ask(member.depot(), "num_objects")


def test_a_held_value_outlives_its_worker_and_is_freed_with_the_last_who_refers_to_it(tmp_path: Path) -> None:
    with rw.Session() as session, Pool(2, session=session, preload=[__name__]) as pool:
        made = pool.map(make, [5, 6])
        helds = [held for held, _, _ in made]
        assert max(len(pickle.dumps(held.get())) for held in helds) > 4 * SIZE
        assert pool.map(use, helds * 2) == [(6, 4, "member 5"), (7, 4, "member 6")] * 2, "copies are their takers' own"
        for pid in {pid for _, pid, _ in made}:
            os.kill(pid, signal.SIGKILL)
        assert pool.map(use, helds) == [(6, 4, "member 5"), (7, 4, "member 6")]

        back = pool.apply(give_back, (helds[0],))
        assert (back, hash(back)) == (helds[0], hash(helds[0]))
        assert back != helds[1]

        path = tmp_path / "member.state"
        assert pool.apply(save, (helds[0], path)) == path.stat().st_size
        loaded = pool.apply(load, (path,))
        assert loaded != back
        assert pool.apply(use, (loaded,)) == (6, 4, "member 5")

        assert num_held(session) == 3
        del back
        helds.clear()
        made.clear()
        gc.collect()
        wait_until(lambda: num_held(session) == 1, what="two states are freed")
        for process in psutil.Process().children(recursive=True):
            if "depot" in process.name():
                process.kill()
        with pytest.raises(ObjectLost, match=f"held on {platform.node()} is lost"):
            loaded.get()


def make_together(work: tuple[int, Barrier]) -> tuple[ObjectRef, int, int]:
    number, barrier = work
    barrier.wait(120)
    return make(number)


def where(barrier: Barrier) -> tuple[str, tuple[str, ...], NDArray[np.float32]]:
    barrier.wait(120)
    noise = TABLE.slice(TABLE.index(1, 2, 100), 100).copy()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return str(os.getppid()), tuple(line.split()[4] for line in maps if "memfd:ropewalk-made" in line), noise


def test_hosts_have_one_noise_table_each_and_hand_states_to_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with session_of_neighbours(monkeypatch) as session, Pool(4, session=session) as pool:
        barrier = Barrier(4, session=session)
        found = pool.map(where, [barrier] * 4, chunksize=1)
        files = {agent: {inode for other, inode, _ in found if other == agent} for agent, _, _ in found}
        assert len(files) == 2
        assert all(len(inodes) == 1 for inodes in files.values()), "a host has more than one table"
        assert len(set.union(*files.values())) == 2
        for _, _, noise in found:
            np.testing.assert_array_equal(noise, TABLE.slice(TABLE.index(1, 2, 100), 100))

        by_agent = {agent: held for held, _, agent in pool.map(make_together, [(0, barrier)] * 4, chunksize=1)}
        before = _received_bytes(session)
        assert pool.map(use, list(by_agent.values()) * 4, chunksize=1) == [(1, 4, "member 0")] * 8
        assert _received_bytes(session) - before < 20_000, "states passed through the launcher"

        lost, kept = by_agent
        lose_host(psutil.Process(lost))
        with pytest.raises(ObjectLost, match=r"is lost: .* is gone") as caught:
            pool.apply(use, (by_agent[lost],))
        assert caught.value.host == platform.node()
        assert pool.apply(use, (by_agent[kept],))[1] == 4


def _received_bytes(session: rw.Session) -> int:
    processes = session.processes._processes.values()  # pyright: ignore[reportPrivateUsage]
    return sum(process.link.received_bytes for process in processes if process.link)


def test_where_no_agent_is_a_held_value_goes_along(tmp_path: Path) -> None:
    state: dict[str, Any] = {"weights": np.zeros(5_000), "name": "a"}
    held = put(state)
    state["weights"] += 1
    copy: ObjectRef = pickle.loads(pickle.dumps(held))
    assert copy == held
    assert hash(copy) == hash(held)
    taken = copy.get()
    assert taken["weights"].sum() == 0, "it is as it was when it was held"
    taken["weights"] += 1
    assert held.get()["weights"].sum() == 0
    held.save(tmp_path / "a")
    assert ObjectRef.load(tmp_path / "a").get()["name"] == "a"
    (tmp_path / "a").write_bytes((tmp_path / "a").read_bytes()[:-1])
    with pytest.raises(CheckpointCorrupt):
        ObjectRef.load(tmp_path / "a")
    held.save(tmp_path / "b")
    (tmp_path / "b").chmod(0o666)
    with pytest.raises(FileNotTrusted, match="chmod go-w"):
        ObjectRef.load(tmp_path / "b")
    with pytest.raises(NotPicklable, match="held value"):
        put({"lock": threading.Lock()})
