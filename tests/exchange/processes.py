"""Several cases in one group of real processes, because it takes torch seconds to start one.

test ── starts ──▶ one process that imports torch ── forks ──▶ ranks 0, 1, 2: each runs all cases in turn
"""

from __future__ import annotations

import importlib
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import traceback
from typing import Any

import torch
import torch.distributed as dist


class Failed(str):
    """The traceback of a case that raised."""


def run_cases(module: str, cases: list[str], size: int, folder: pathlib.Path, timeout_s: float = 150) -> dict[str, Any]:
    """Run functions of a module, one after the other, in each of `size` processes joined over gloo.

    Returns:
        By case, what it returned on each rank; `Failed` where it raised.
    """
    command = [sys.executable, "-W", "error", "-m", __name__, module, ",".join(cases), str(size), str(folder)]
    # One thread each, also so that there is nothing that a fork could lose.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    starter = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        starter.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(starter.pid, signal.SIGKILL)
        starter.wait()
    files = [folder / f"answers-{rank}" for rank in range(size)]
    answers = [pickle.loads(file.read_bytes()) if file.exists() else {} for file in files]
    return {case: [answer.get(case, Failed("this rank did not come so far")) for answer in answers] for case in cases}


def main(module: str, cases: str, size: str, folder: str) -> None:
    torch.set_num_threads(1)
    importlib.import_module(module)
    # The first optimizer makes torch import its compiler.
    torch.optim.SGD([torch.zeros(1)])
    ranks = [os.fork() or run_rank(module, cases, rank, int(size), pathlib.Path(folder)) for rank in range(int(size))]
    for rank in ranks:
        os.waitpid(rank, 0)


def run_rank(module: str, cases: str, rank: int, size: int, folder: pathlib.Path) -> int:
    try:
        dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=size)
        answers: dict[str, Any] = {}
        for case in cases.split(","):
            try:
                answers[case] = getattr(sys.modules[module], case)()
            except Exception:
                answers[case] = Failed(traceback.format_exc())
            file = folder / f"part-{rank}"
            file.write_bytes(pickle.dumps(answers))
            file.rename(folder / f"answers-{rank}")
            if isinstance(answers[case], Failed):
                break  # the others may be anywhere
    except BaseException:
        traceback.print_exc()
    # Without a farewell: a case may have left calls that hang.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
