"""Processes of torch.distributed that stay for a whole test module, because importing torch takes seconds.

with TorchLeader("tests.module") as leader, TorchMembers(3, tmp_path, leader) as members:
    results = members.run(case, 1, 2)      case(rank, 1, 2) in each process; results by rank

pytest ── starts ──▶ leader: imports torch once ── forks ──▶ rank 0, rank 1, ... of one world after the other
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


class TorchLeader:
    """The process that has imported torch, which takes 3 s of CPU time, and from which all members are forked.

    Args:
        module: imported as well, before the first fork.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def fork(self, store: Path, descriptors: list[int]) -> None:
        """Fork a member for each of these sockets; the world before must be over."""
        if self._process is None:
            self._start()
        socket.send_fds(self._socket, [os.fsencode(store)], descriptors)

    def _start(self) -> None:
        # Not by multiprocessing: its resource tracker would have to stay between tests too.
        self._socket.close()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self._module, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )
        theirs.close()

    def wait_until_over(self) -> None:
        """Wait until all members have ended. After one that was killed, the next ones are of a new leader.

        Raises:
            TimeoutError: they do not end by themselves; they were killed.
        """
        self._socket.settimeout(PATIENCE_S)
        try:
            is_over = self._socket.recv(100) == b"over"
        except TimeoutError:
            self.kill()
            raise
        if not is_over:
            self.kill()

    def kill(self) -> None:
        """End it, with all members."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_S)

    def close(self) -> None:
        """End it."""
        self._socket.close()
        self.kill()

    def __enter__(self) -> TorchLeader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TorchMembers:
    """Processes that are ranks of one gloo world, and run what they are given, all the same.

    Args:
        size: how many.
        folder: where they find each other.
        leader: from which they are forked.
    """

    def __init__(self, size: int, folder: Path, leader: TorchLeader) -> None:
        self._leader = leader
        pairs = [socket.socketpair() for _ in range(size)]
        self._pipes = [Connection(ours.detach()) for ours, _ in pairs]
        theirs = [theirs.detach() for _, theirs in pairs]
        self._leader.fork(folder / "store", theirs)
        for descriptor in theirs:
            os.close(descriptor)
        try:
            self._answers(PATIENCE_S, "starting")
        except BaseException:
            self._leader.kill()
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
                self._leader.kill()  # they would wait for each other in what comes next, too
                raise TimeoutError(f"rank {rank} has not answered for {timeout_s} s in {what}; others said {others}")
            answers.append(pickle.loads(pipe.recv_bytes()))
        return answers

    def __enter__(self) -> TorchMembers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # which ends their loops
        self._leader.wait_until_over()


def _lead(module: str, control: socket.socket) -> None:
    import torch

    importlib.import_module(module)
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # makes torch import its compiler, once for all
    while True:
        store, descriptors, _, _ = socket.recv_fds(control, 4096, 256)
        if not store:
            os._exit(0)
        ranks: list[int] = []
        for rank, descriptor in enumerate(descriptors):
            process = os.fork()
            if process == 0:
                control.close()
                for other in descriptors:
                    if other != descriptor:
                        os.close(other)
                _serve(rank, len(descriptors), os.fsdecode(store), Connection(descriptor))
            ranks.append(process)
        for descriptor in descriptors:
            os.close(descriptor)
        for process in ranks:
            os.waitpid(process, 0)
        control.send(b"over")


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
    _lead(sys.argv[1], socket.socket(fileno=int(sys.argv[2])))
