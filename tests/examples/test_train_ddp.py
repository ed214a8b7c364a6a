"""The DDP script runs under `ropewalk run --ranks` and under `torchrun`, and survives the death of a rank."""

from __future__ import annotations

import contextlib
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.cli.command import environment, start_ropewalk
from tests.forked_process import ForkedProcess
from tests.patience import PROGRAM_S
from tests.rest_of import rest_of

pytest.importorskip("torch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_ddp.py"
EPOCHS = 40


def losses(output: str) -> list[tuple[str, str]]:
    """Number and loss of each epoch that was printed."""
    return re.findall(r"epoch (\d+): loss (\S+),", output)


def test_a_rank_trains_and_goes_on_from_its_checkpoint(tmp_path: Path, one_thread: None) -> None:
    """Alone; what becomes of several ranks when one dies, `tests/cli/test_ranks.py` asks of a light script."""

    def train(epochs: str) -> None:
        os.chdir(tmp_path)
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
        os.environ["MASTER_PORT"] = "0"
        sys.argv = [str(EXAMPLE), "--epochs", epochs]
        with open("output.txt", "a") as output, contextlib.redirect_stdout(output):
            runpy.run_path(str(EXAMPLE), run_name="__main__")

    for epochs in ("2", "4"):
        with ForkedProcess(lambda epochs=epochs: train(epochs)) as process:  # gloo leaves descriptors in a process
            process.wait_until_done()
    told = losses((tmp_path / "output.txt").read_text())
    assert [number for number, _ in told] == ["1", "2", "3", "4"]
    assert float(told[-1][1]) < 0.8 * float(told[0][1])


@pytest.mark.soak  # four processes that import torch
def test_a_killed_rank_starts_the_group_again_from_its_checkpoint_and_training_ends(tmp_path: Path) -> None:
    process = start_ropewalk(
        "run", "--ranks", "2", "--max-restarts", "1", str(EXAMPLE), "--", "--epochs", str(EPOCHS), folder=tmp_path
    )
    assert process.stdout
    launcher, rank = psutil.Process(process.pid), None
    while rank is None:  # before the first line: at the last one it would be too late
        assert process.poll() is None
        for each in launcher.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                rank = each if each.name() == "rw:train_ddp.1" else rank
    first = process.stdout.readline()
    rank.send_signal(signal.SIGKILL)
    output, errors = rest_of(process, PROGRAM_S)
    assert process.returncode == 0, errors
    assert re.search(
        r"^train_ddp\.1 on host .* was killed by SIGKILL .*; all 2 ranks start again", errors, re.MULTILINE
    )
    told = losses(first + output)
    numbers = [int(number) for number, _ in told]
    assert numbers == sorted(numbers) and numbers[-1] == EPOCHS, "it went on where it was"
    # The last line before the death may be lost with its process, or an epoch be computed again whose line was printed.
    assert EPOCHS - 1 <= len(numbers) <= EPOCHS + 1
    assert float(told[-1][1]) < 0.5 * float(told[0][1])
    assert "2 ranks, restart 1" in output.splitlines()[-1]


@pytest.mark.soak
def test_torchrun_launches_the_same_file_to_the_same_losses(tmp_path: Path) -> None:
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(EXAMPLE)]
    theirs = subprocess.run(
        [sys.executable, *command, "--checkpoint", "theirs.pt"],
        cwd=tmp_path,
        env=environment(OMP_NUM_THREADS="1", TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=True,
    )
    ours = start_ropewalk("run", "--ranks", "2", str(EXAMPLE), "--", "--checkpoint", "ours.pt", folder=tmp_path)
    output, errors = ours.communicate(timeout=PROGRAM_S)
    assert ours.returncode == 0, errors
    assert losses(output) == losses(theirs.stdout) and len(losses(output)) == 4
