"""What every picture keeps: its option is plain JSON, in which names of users are data and no code or HTML.

And the wheel scrolls the page over a picture, too.
"""

from __future__ import annotations

import json
from typing import Any

from ropewalk.page.style import Option, Style

LIGHT, DARK = Style(), Style(dark=True)
EVIL = "<img src=x onerror=alert(1)>{b}"
"""A name that is HTML, and a template of ECharts."""
_ACTS = {"formatter", "renderItem", "rich", "renderMode"}
"""Entries that could make HTML or templates of a name."""


def series(option: Option, name: str) -> Option:
    """The first series of a name that has data."""
    return next(each for each in option["series"] if each["name"] == name and each["data"])


def assert_plain(option: Option) -> None:
    """The option is JSON without code, and no entry that acts has a name of a user in it."""
    assert json.loads(json.dumps(option, allow_nan=False)) == option
    _look(option, "")
    for zoom in option.get("dataZoom", ()):
        if zoom["type"] == "inside":
            assert zoom["zoomOnMouseWheel"] in (False, "ctrl") and not zoom["moveOnMouseWheel"]


def _look(value: Any, under: str) -> None:
    if isinstance(value, dict):
        for key, each in value.items():
            assert not key.startswith(":"), "NiceGUI evaluates such entries as JavaScript"
            _look(each, under if under in _ACTS else key)
    elif isinstance(value, list):
        for each in value:
            _look(each, under)
    elif isinstance(value, str):
        assert under not in _ACTS or EVIL not in value
