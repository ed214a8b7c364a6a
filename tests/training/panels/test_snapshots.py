from __future__ import annotations

from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.schedules.streams import Cut
from ropewalk.training.assignment import PeerSnapshot
from ropewalk.training.panels.snapshots import snapshots_panel
from ropewalk.training.snapshot_history import SnapshotHistory
from ropewalk.training.snapshot_pace import SnapshotPace
from ropewalk.training.stored_snapshots import StoredSnapshot


def test_each_snapshot_says_where_its_parts_are() -> None:
    first, second, cut = PlanWorker(0, 0), PlanWorker(1, 0), Cut(0, 0, (4, 4))
    history = SnapshotHistory()
    history.asked(4, cut, (first, second), 10.0)
    history.arrived(first, PeerSnapshot(cut, 0.25, 100, 1))
    history.arrived(second, PeerSnapshot(cut, 0.5, 50, 0, StoredSnapshot("/data/1.0-0-4-4", 50, "ab")))
    history.became_whole(cut, 11.0)
    data = snapshots_panel(history, SnapshotPace(2), {0: "n1", 1: "n2"}, "launcher", "stages")
    assert (data["every"], data["cost"], data["copies"], data["num_whole"]) == (2, None, "launcher", 1)
    assert data["snapshots"] == [
        {
            "step": 4,
            "asked": 10.0,
            "whole": 11.0,
            "state": "whole",
            "size_bytes": 150,
            "took_s": 0.5,
            "places": {"0.0": "process stages.1 on n2", "1.0": "process stages.0 on n1, and /data/1.0-0-4-4"},
        }
    ]
