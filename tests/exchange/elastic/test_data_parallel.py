"""Real programs: workers join, leave, are killed and stopped while they train."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ropewalk.errors import ExchangeInvalid, ProgramFailed
from ropewalk.exchange.all_reduce import AllReduce
from ropewalk.exchange.elastic.coordinator import ExchangeTimeouts
from ropewalk.exchange.elastic.data_parallel import data_parallel
from ropewalk.exchange.elastic.membership import StepSpan
from ropewalk.exchange.groups.link_emulation import LinkEmulation
from ropewalk.exchange.parameter_server.parameter_server import ParameterServer
from ropewalk.program.restart_rule import Restart
from ropewalk.program.running import RunningProgram
from tests.exchange.elastic import training
from tests.exchange.elastic.training import Mischief, log_of
from tests.patience import PATIENCE_S
from tests.scenarios.launchers import is_alive


def wait_until(running: RunningProgram, is_so: Callable[[], bool]) -> None:
    due = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < due
        assert not running.wait(0.03)  # raises if it has failed


def check_result(folder: Path, worker: str) -> list[StepSpan]:
    """The weights of a worker are those of one process after as many steps, and each step was done once."""
    weights, history, num_steps = torch.load(folder / f"{worker}.pt", weights_only=False)
    torch.testing.assert_close(weights, training.plain(num_steps), rtol=0, atol=1e-10)
    done = [step for span in history for step in range(span.begin, span.end)]
    assert done[:num_steps] == list(range(num_steps))
    return history


def test_workers_join_and_leave_while_they_train(tmp_path: Path) -> None:
    with data_parallel(training.train, 2, args=(str(tmp_path),)).launch("threads") as running:
        wait_until(running, lambda: len(log_of(tmp_path, "workers.0#0")) > 3)
        running.scale("workers", 4)
        wait_until(running, lambda: any(line.size == 4 for line in log_of(tmp_path, "workers.3#0")))
        running.scale("workers", 1)
        wait_until(running, lambda: log_of(tmp_path, "workers.0#0")[-1].size == 1)
        (tmp_path / "enough").touch()
        assert running.wait(PATIENCE_S)
    history = check_result(tmp_path, "workers.0#0")
    assert all("left" in span.why or "joined" in span.why for span in history[1:-1]), history
    assert len(log_of(tmp_path, "workers.1#0")) < history[-1].end


def test_gradients_go_through_servers_while_workers_come_and_die(tmp_path: Path) -> None:
    mischief = (Mischief("workers.1#0", 4, training.DIE),)
    through_servers = functools.partial(ParameterServer, piece_bytes=128)  # so that each has some of this small model
    program = data_parallel(training.train, 2, through_servers, servers=2, args=(str(tmp_path), mischief))
    with program.launch("threads") as running:
        wait_until(running, lambda: any(line.size == 2 for line in log_of(tmp_path, "workers.1#1")))
        running.scale("workers", 3)
        wait_until(running, lambda: any(line.size == 3 for line in log_of(tmp_path, "workers.2#0")))
        (tmp_path / "enough").touch()
        assert running.wait(PATIENCE_S)
    history = check_result(tmp_path, "workers.0#0")
    assert "workers.1#0 died" in history[1].why
    assert (tmp_path / "workers.2#0 ParameterServer").exists()


@pytest.mark.parametrize("exchange", ["none", ParameterServer])
def test_links_to_servers_are_as_slow_as_those_between_workers(tmp_path: Path, exchange: Any) -> None:
    # `shaping` slowed the links between workers alone, through which no gradient goes where there are servers.
    slow = LinkEmulation(10 * training.GRADIENT_BYTES)
    data_parallel(training.three_steps, 1, exchange, servers=1, args=(str(tmp_path / "took"),), shaping=slow).launch(
        "threads"
    ).wait(PATIENCE_S)
    assert float((tmp_path / "took").read_text()) > 0.25, "each of three gradients takes a tenth of a second"


def test_a_mistake_of_the_user_ends_the_program_with_its_traceback() -> None:
    running = data_parallel(training.fail, 2).launch("threads")
    with pytest.raises(
        ProgramFailed, match=r"raised .*, which came from workers\.\d#0: 'a mistake of workers"
    ) as caught:
        running.wait(PATIENCE_S)
    assert "in loss_of" in str(caught.value) or "in loss_of" in str(caught.value.__cause__.__cause__)  # type: ignore[union-attr]


@pytest.mark.usefixtures("shared_session")
def test_who_is_killed_is_dropped_at_once_and_its_successor_joins_and_who_is_stopped_is_dropped(tmp_path: Path) -> None:
    mischief = (Mischief("workers.1#0", 5, signal.SIGKILL), Mischief("workers.1#1", 3, signal.SIGSTOP))

    def sizes() -> list[int]:
        return [size for size, _ in itertools.groupby(line.size for line in log_of(tmp_path, "workers.0#0"))]

    exchange = functools.partial(AllReduce, bucket_bytes=64, first_bucket_bytes=64)
    program = data_parallel(
        training.train,
        2,
        exchange,
        args=(str(tmp_path), mischief),
        timeouts=ExchangeTimeouts(quiet_s=0.3, silent_s=1.5),
        environment={"OMP_NUM_THREADS": "1"},
    )
    with program.launch("processes") as running:
        wait_until(running, lambda: sizes() == [2, 1, 2, 1])
        (tmp_path / "enough").touch()
        assert running.wait(PATIENCE_S)
    history = check_result(tmp_path, "workers.0#0")
    assert "SIGKILL" in history[1].why, "it was not waited for until it was silent"
    # After 3 s the program itself would have ended and replaced it.
    assert "workers.1#1 has not answered" in history[3].why or "workers.1#1 died" in history[3].why


@pytest.mark.soak
def test_whoever_is_killed_for_a_minute_the_weights_are_those_of_one_process(tmp_path: Path) -> None:
    chance = random.Random(7)
    patient = Restart("on_failure", max_restarts=1000, backoff_s=0.01, backoff_max_s=0.1)
    program = data_parallel(training.train, 4, args=(str(tmp_path),), restart=patient)
    with program.launch("processes") as running:
        due, num_kills = time.monotonic() + 60.0, 0
        while time.monotonic() < due or num_kills < 6:
            assert not running.wait(chance.uniform(0.0, 1.0))
            # One who has the weights must be left: the first.
            logs = [log_of(tmp_path, file.stem) for file in sorted(tmp_path.glob("workers.[123]*.log"))]
            alive = [lines[-1].pid for lines in logs if lines and is_alive(lines[-1].pid)]
            if alive:
                with contextlib.suppress(ProcessLookupError):  # it was killed a moment ago
                    os.kill(chance.choice(alive), signal.SIGKILL)
                    num_kills += 1
        (tmp_path / "enough").touch()
        assert running.wait(PATIENCE_S)
    for file in tmp_path.glob("*.pt"):
        check_result(tmp_path, file.stem)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ExchangeInvalid, match="workers must be a number of workers, 1 or more, not 0"):
        data_parallel(training.train, 0)
    with pytest.raises(ExchangeInvalid, match="servers must be a number of servers, 0 or more, not -1"):
        data_parallel(training.train, 1, servers=-1)
    with pytest.raises(ExchangeInvalid, match=r"functools\.partial\(AllReduce, \.\.\.\)"):
        data_parallel(training.train, 1, AllReduce())
    with pytest.raises(ExchangeInvalid, match="gd_sec"):
        data_parallel(training.train, 1, "gd_sek")
    with pytest.raises(ExchangeInvalid, match="a function that makes an exchange; not 3"):
        data_parallel(training.train, exchange=3)
    with pytest.raises(ExchangeInvalid, match="'recompute', 'keep', not 'again'"):
        data_parallel(training.train, redo="again")  # type: ignore[arg-type]
