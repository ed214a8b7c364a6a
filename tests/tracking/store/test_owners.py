"""When the process that writes a run counts as gone."""

from __future__ import annotations

import pytest

from ropewalk.tracking.records import OwnerIs
from ropewalk.tracking.store.owners import SILENT_S, LocalProcesses

OWNER = OwnerIs("h", 7, 1000, "boot")


@pytest.mark.parametrize(
    ("started", "silence_s", "is_gone"),
    [
        (1000, 1e9, False),  # a process that is there may be silent for ever
        (1001, SILENT_S + 1, True),  # another process has the id
        (1001, SILENT_S, False),
        (0, 0.0, True),
    ],
)
def test_on_this_host_the_process_decides(started: int, silence_s: float, is_gone: bool) -> None:
    here = LocalProcesses("h", "boot", lambda _: started)
    assert here.is_gone(OWNER, silence_s) == is_gone


@pytest.mark.parametrize(
    "here",
    [
        LocalProcesses("other", "boot", lambda _: 0),
        LocalProcesses("h", "later", lambda _: 0),
        LocalProcesses("h", "", lambda _: 0),
    ],
)
def test_elsewhere_silence_decides(here: LocalProcesses) -> None:
    assert not here.is_gone(OWNER, SILENT_S)
    assert here.is_gone(OWNER, SILENT_S + 1)


def test_a_process_is_looked_up_once() -> None:
    asked: list[int] = []
    here = LocalProcesses("h", "boot", lambda pid: asked.append(pid) or 1000)
    assert not any(here.is_gone(OWNER, 0) for _ in range(3))
    assert asked == [7]
