"""Processes of torch.distributed that stay for a whole test module, because importing torch takes seconds.

with TorchMembers(3, tmp_path) as members:
    results = members.run(case, 1, 2)      case(rank, 1, 2) in each process; results by rank

pytest ── starts ──▶ leader: imports torch once ── forks ──▶ rank 0, rank 1, ...
   └───────────── a pair of sockets to each rank: cases, answers ──────┘
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.patience import PATIENCE_S


class TorchMembers:
    """Processes that are ranks of one gloo world, and run what they are given, all the same.

    Args:
        size: how many.
        folder: where they find each other.
        module: imported before the fork, once for all.
    """

    def __init__(self, size: int, folder: Path, module: str = "torch.distributed") -> None:
        pairs = [socket.socketpair() for _ in range(size)]
        self._pipes = [Connection(ours.detach()) for ours, _ in pairs]
        theirs = [theirs.detach() for _, theirs in pairs]
        # Not by multiprocessing: its resource tracker would have to stay between tests too.
        self._leader = subprocess.Popen(
            [sys.executable, "-m", __name__, str(folder / "store"), module, *map(str, theirs)],
            pass_fds=theirs,
            start_new_session=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        for descriptor in theirs:
            os.close(descriptor)
        try:
            self._answers(PATIENCE_S, "starting")
        except BaseException:
            self._kill()
            self.__exit__(None, None, None)
            raise

    def run(self, case: Callable[..., Any], *args: Any, timeout_s: float = PATIENCE_S) -> list[Any]:
        """Run a function of a module in every process, with its rank first; raises what one of them raised."""
        for pipe in self._pipes:
            # Pickled here, because a Connection would share the memory of tensors instead of sending them.
            pipe.send_bytes(pickle.dumps((case, args)))
        answers = self._answers(timeout_s, case.__name__)
        failed = [f"rank {rank}:\n{answer}" for rank, (good, answer) in enumerate(answers) if not good]
        assert not failed, "\n".join(failed)
        return [answer for _, answer in answers]

    def _answers(self, timeout_s: float, what: str) -> list[tuple[bool, Any]]:
        answers: list[tuple[bool, Any]] = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(timeout_s):
                others = [pickle.loads(pipe.recv_bytes())[1] for pipe in self._pipes[rank + 1 :] if pipe.poll(0)]
                self._kill()  # they would wait for each other in what comes next, too
                raise TimeoutError(f"rank {rank} has not answered for {timeout_s} s in {what}; others said {others}")
            answers.append(pickle.loads(pipe.recv_bytes()))
        return answers

    def __enter__(self) -> TorchMembers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # which ends their loops, and with them the leader
        try:
            self._leader.wait(PATIENCE_S)
        finally:
            self._kill()

    def _kill(self) -> None:
        if self._leader.returncode is None:
            os.killpg(self._leader.pid, signal.SIGKILL)
            self._leader.wait(PATIENCE_S)


def _lead(store: str, module: str, descriptors: list[int]) -> None:
    import torch

    importlib.import_module(module)
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # makes torch import its compiler, once for all
    ranks: list[int] = []
    for rank, descriptor in enumerate(descriptors):
        process = os.fork()
        if process == 0:
            for other in descriptors:
                if other != descriptor:
                    os.close(other)
            _serve(rank, len(descriptors), store, Connection(descriptor))
        ranks.append(process)
    for descriptor in descriptors:
        os.close(descriptor)
    for process in ranks:
        os.waitpid(process, 0)
    os._exit(0)


def _serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    pipe.send_bytes(pickle.dumps((True, None)))
    while True:
        try:
            case, args = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)  # at once: after a stall torch would wait for the others
        try:
            answer = (True, case(rank, *args))
        except BaseException:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


if __name__ == "__main__":
    _lead(sys.argv[1], sys.argv[2], [int(descriptor) for descriptor in sys.argv[3:]])
