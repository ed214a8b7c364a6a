"""The panel "snapshots": the snapshots from which training goes on after a death.

Data, with the newest 50 snapshots, oldest first:

    {"every": 14, "cost": 0.021, "copies": "launcher", "num_whole": 8,
     "snapshots": [{"step": 112, "asked": 1764193935.2, "whole": 1764193935.4, "state": "whole",
                    "size_bytes": 3000000, "took_s": 0.004,
                    "places": {"0.0": "process stages.1 on n2", "1.0": "process stages.0 on n1"}}, ...]}

"step" is the number of steps that it holds. "state" is "under way", "whole" (training would go on from it),
"superseded" (by a newer whole one) or "dropped" (a death came before it was whole). "places" has the workers whose
parts have arrived; a part is also with the worker itself. "every" is the present number of steps between two, "cost"
their share of the time, None if it is not known; "copies" tells where further copies are: "launcher", a folder, or "".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ropewalk.training.snapshot_history import SnapshotEntry, SnapshotHistory, size_bytes
from ropewalk.training.snapshot_pace import SnapshotPace


def snapshots_panel(
    history: SnapshotHistory, pace: SnapshotPace, hosts: Mapping[int, str], copies: str, node: str
) -> dict[str, Any]:
    """Return the data of the panel.

    Args:
        history: of the snapshots.
        pace: says how often they are taken.
        hosts: by seat, the host of each process.
        copies: where further copies are.
        node: name of the node whose replicas are the seats.
    """
    return {
        "every": pace.every,
        "cost": pace.cost,
        "copies": copies,
        "num_whole": history.num_whole,
        "snapshots": [_snapshot(entry, hosts, node) for entry in history.entries],
    }


def _snapshot(entry: SnapshotEntry, hosts: Mapping[int, str], node: str) -> dict[str, Any]:
    parts = dict(entry.parts)
    places = {
        str(worker): f"process {node}.{part.keeper}"
        + (f" on {hosts[part.keeper]}" if part.keeper in hosts else "")
        + ("" if part.stored is None else f", and {part.stored.path}")
        for worker, part in sorted(parts.items())
    }
    return {
        "step": entry.step,
        "asked": entry.asked,
        "whole": entry.whole,
        "state": entry.state,
        "size_bytes": size_bytes(parts),
        "took_s": max((part.took_s for part in parts.values()), default=0.0),
        "places": places,
    }
