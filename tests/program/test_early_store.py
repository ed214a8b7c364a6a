"""The store of torch is open before the code of the ranks runs, and is theirs once they have made their group."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

import ropewalk as rw
from ropewalk.program.early_store import early_store
from ropewalk.program.preloading import names_in
from tests.patience import PATIENCE_S

pytest.importorskip("torch")


def address() -> tuple[str, int]:
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def come_late(folder: Path) -> None:
    """The first rank makes its group only when the other has found the store."""
    import torch
    import torch.distributed as dist

    found = folder / "found"
    if os.environ["RANK"] == "1":
        socket.create_connection(address(), PATIENCE_S).close()  # refused, as long as only the first rank would open it
        found.touch()
    due = time.monotonic() + PATIENCE_S
    while not found.exists():
        assert time.monotonic() < due
        time.sleep(0.01)
    dist.init_process_group("gloo")
    total = torch.tensor([1.0])
    dist.all_reduce(total)
    dist.destroy_process_group()
    (folder / f"sum of {os.environ['RANK']}").write_text(str(total.item()))


def come_again(folder: Path) -> None:
    """Each rank makes three groups, one after the other; the store of the first must be gone with it."""
    import torch.distributed as dist

    rank = os.environ["RANK"]
    for number in range(3):
        dist.init_process_group("gloo")
        dist.barrier()
        time.sleep(1.0 if number == 0 else 0.0)  # more than a look of the store that was opened early
        dist.destroy_process_group()
        # Nobody may connect to the store of a group that is about to end: with torch alone, too, that is an error.
        (folder / f"{rank} {number}").touch()
        due = time.monotonic() + PATIENCE_S
        while not all((folder / f"{each} {number}").exists() for each in (0, 1)):
            assert time.monotonic() < due
            time.sleep(0.01)


def run_ranks(function: object, folder: Path) -> None:
    program = rw.Program("ranks")
    program.add(rw.RankGroup(function, 2, folder), preload=["torch"])  # type: ignore[arg-type]
    with program.launch() as running:
        running.wait()


def test_a_rank_that_comes_before_the_first_finds_the_store(tmp_path: Path) -> None:
    run_ranks(come_late, tmp_path)
    assert [(tmp_path / f"sum of {rank}").read_text() for rank in (0, 1)] == ["2.0", "2.0"]


def test_ranks_may_make_a_group_again(tmp_path: Path) -> None:
    run_ranks(come_again, tmp_path)
    assert len(list(tmp_path.iterdir())) == 6


def test_without_torch_it_is_the_affair_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "torch.distributed", raising=False)
    assert early_store(come_late) is None


def starts_another() -> None:
    import torch.distributed

    print(torch.distributed.is_available())  # it makes no group of its own


def test_code_that_makes_no_group_keeps_the_port_to_itself(tmp_path: Path) -> None:
    # A wrapper of another script, say, in whose process the group is made.
    import torch.distributed

    assert torch.distributed.is_available()
    (tmp_path / "wrapper.py").write_text("import subprocess, torch\n")
    (tmp_path / "train.py").write_text("import torch\ntorch.distributed.init_process_group('gloo')\n")
    assert early_store(starts_another) is early_store(rw.Script(tmp_path / "wrapper.py")) is early_store(None) is None
    assert "init_process_group" in names_in(rw.Script(tmp_path / "train.py"))
