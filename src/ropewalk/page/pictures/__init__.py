"""The pictures of panels: one module for each, with a pure function from data to an option of ECharts.

def losses(data, style) -> Option: ...

PICTURE = Picture("loss", "Loss", losses)
"""

from __future__ import annotations

from ropewalk.page.picture import Picture
from ropewalk.page.pictures import (
    archive,
    exchange,
    fitness,
    graph,
    lineage,
    links,
    losses,
    memory,
    pipeline,
    replay,
    returns,
    schedules,
    snapshots,
    staleness,
    stream,
    task_counts,
    throughput,
    timeline,
    tree,
    trials,
    versions,
)

PICTURES: tuple[Picture, ...] = (
    graph.PICTURE,
    task_counts.PICTURE,
    stream.PICTURE,
    timeline.PICTURE,
    pipeline.PICTURE,
    losses.PICTURE,
    memory.PICTURE,
    versions.PICTURE,
    links.PICTURE,
    exchange.PICTURE,
    snapshots.PICTURE,
    trials.PICTURE,
    fitness.PICTURE,
    archive.PICTURE,
    schedules.PICTURE,
    lineage.PICTURE,
    tree.PICTURE,
    returns.PICTURE,
    throughput.PICTURE,
    replay.PICTURE,
    staleness.PICTURE,
)
"""All, in the order in which a page shows them."""


def pictures_of(offers: tuple[str, ...]) -> list[Picture]:
    """Return the pictures of the panels that something offers."""
    return [picture for picture in PICTURES if picture.panel in offers]
