"""The pictures of panels: one module for each, with a pure function from data to an option of ECharts.

def losses(data, style) -> Option: ...

PICTURE = Picture("loss", "Loss", losses)
"""

from __future__ import annotations

from ropewalk.page.picture import Picture
from ropewalk.page.pictures import task_counts

PICTURES: tuple[Picture, ...] = (task_counts.PICTURE,)
"""All, in the order in which a page shows them."""


def pictures_of(offers: tuple[str, ...]) -> list[Picture]:
    """Return the pictures of the panels that something offers."""
    return [picture for picture in PICTURES if picture.panel in offers]
