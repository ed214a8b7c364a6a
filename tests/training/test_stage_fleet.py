from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest

from ropewalk.errors import ProgramStopped, ServiceLost
from ropewalk.processes.notifier import Notifier
from ropewalk.training.stage_fleet import SeatsLost, StageFleet


@pytest.mark.parametrize("refused", [ProgramStopped("program 'unet' has ended"), ServiceLost("it was killed")])
def test_call_that_cannot_be_answered_any_more_is_the_loss_of_its_process(
    refused: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that is stopped from outside may refuse a call before its processes are missed."""
    fleet: Any = object.__new__(StageFleet)
    fleet.present = {}
    monkeypatch.setattr(fleet, "lost_among", lambda _: {}, raising=False)
    monkeypatch.setattr(fleet, "_notifier", Notifier(), raising=False)
    future: Future[None] = Future()
    future.set_exception(refused)
    with pytest.raises(SeatsLost) as lost:
        fleet._raise({"step": future}, {"step": 3})
    assert list(lost.value.seats) == [3] and str(refused) in lost.value.seats[3]
