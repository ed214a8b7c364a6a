from __future__ import annotations

import pickle

import pytest

from ropewalk.tracking.interruptions import RunInterrupted, RunPaused, RunStopped, RunTerminated, outcome_of


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (None, "done", ""),
        (RunPaused("paused at step 3", 3, 3), "paused", "paused at step 3"),
        (RunStopped("by request", 3), "stopped", "by request"),
        (RunTerminated("ended by SIGTERM", 3), "stopped", "ended by SIGTERM"),
        (KeyboardInterrupt(), "stopped", "interrupted by Ctrl-C (SIGINT)"),
        (SystemExit(), "done", ""),
        (SystemExit(0), "done", ""),
        (SystemExit(3), "failed", "exited with 3"),
        (SystemExit("no data"), "failed", "exited with 'no data'"),
    ],
)
def test_an_exception_says_how_the_run_ended(error: BaseException | None, state: str, why: str) -> None:
    assert outcome_of(error) == (state, why)


def test_a_failure_is_told_with_its_traceback() -> None:
    try:
        raise ValueError("bad batch")
    except ValueError as error:
        state, why = outcome_of(error)
    assert state == "failed" and why.endswith("ValueError: bad batch\n") and "test_interruptions.py" in why


def test_ordinary_handlers_do_not_swallow_an_interruption() -> None:
    assert not issubclass(RunInterrupted, Exception)


def test_interruptions_cross_process_borders() -> None:
    paused = pickle.loads(pickle.dumps(RunPaused("paused", 4, 3)))
    assert (paused.why, paused.step, paused.checkpoint_step, paused.code) == ("paused", 4, 3, 75)
