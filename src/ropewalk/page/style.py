"""Colours of the page, its pictures and its reports, in the palette of Okabe and Ito, which colour-blind people see.

Source: M. Okabe, K. Ito, Color Universal Design, 2008; the yellow is darker, so that it is seen on white.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Option = dict[str, Any]
"""The option of an ECharts chart: plain JSON."""


@dataclass(frozen=True, slots=True)
class Style:
    """How pictures look.

    Args:
        dark: light text on a dark background.
    """

    dark: bool = False

    @property
    def colors(self) -> list[str]:
        """Of series, in order."""
        first = "#56B4E9" if self.dark else "#0072B2"
        second = "#0072B2" if self.dark else "#56B4E9"
        return [first, "#E69F00", "#009E73", "#D55E00", "#CC79A7", second, "#B8A800", "#8C8C8C"]

    @property
    def text(self) -> str:
        """Of text."""
        return "#e6e6e6" if self.dark else "#1f2328"

    @property
    def muted(self) -> str:
        """Of text that is less important, and of axes."""
        return "#9aa4af" if self.dark else "#59636e"

    @property
    def line(self) -> str:
        """Of grid lines and borders."""
        return "#30363d" if self.dark else "#dfe3e8"

    @property
    def background(self) -> str:
        """Of pictures and cards."""
        return "#161b22" if self.dark else "#ffffff"

    @property
    def good(self) -> str:
        """Of what runs and is done."""
        return "#3fb98a" if self.dark else "#00795a"

    @property
    def warn(self) -> str:
        """Of what waits or starts again."""
        return "#e3b341" if self.dark else "#9a6700"

    @property
    def bad(self) -> str:
        """Of what failed."""
        return "#ff8a6b" if self.dark else "#b93a00"

    def base(self) -> Option:
        """What all charts share: colours, texts, a tooltip that stays inside, and no animation."""
        return {
            "animation": False,
            "color": self.colors,
            "backgroundColor": "transparent",
            "textStyle": {"color": self.text, "fontFamily": "system-ui, sans-serif"},
            "tooltip": {
                "confine": True,
                "backgroundColor": self.background,
                "borderColor": self.line,
                "textStyle": {"color": self.text},
            },
            "grid": {"left": 64, "right": 24, "top": 40, "bottom": 48},
        }

    def axis(self, name: str = "", **more: Any) -> Option:
        """An axis with a name, which holds the unit in parentheses.

        Args:
            name: such as "loss" or "memory (GiB)".
            more: further entries, such as `type="log"`.
        """
        return {
            "type": "value",
            "name": name,
            "nameLocation": "middle",
            "nameGap": 32,
            "nameTextStyle": {"color": self.muted},
            "axisLine": {"lineStyle": {"color": self.muted}},
            "axisLabel": {"color": self.muted},
            "splitLine": {"lineStyle": {"color": self.line}},
            **more,
        }

    def words(self, text: str) -> Option:
        """A sentence above a picture, in place of a title."""
        words = {"color": self.muted, "fontSize": 12, "fontWeight": "normal"}
        return {"text": text, "left": "center", "top": 6, "textStyle": words}

    def legend(self, **more: Any) -> Option:
        """A legend that scrolls where it is too long."""
        words = {"textStyle": {"color": self.text}, "pageTextStyle": {"color": self.muted}}
        return {"type": "scroll", "top": 4, **words, **more}


def clock(span_s: float) -> str:
    """Return how the labels of a time axis of a span show the time, all in one form; ECharts mixes two, one bold."""
    return "{HH}:{mm}:{ss}" if span_s < 1800 else "{HH}:{mm}" if span_s < 86400 else "{MM}-{dd} {HH}:{mm}"


def wheel_zoom(**more: Any) -> Option:
    """A zoom by Ctrl and the wheel, moved by a drag; the wheel alone scrolls the page, over a picture as well.

    Args:
        more: further entries, such as `filterMode="none"`.
    """
    return {"type": "inside", "zoomOnMouseWheel": "ctrl", "moveOnMouseWheel": False, **more}


def segments(name: str, color: str, width: float, opacity: float) -> Option:
    """A series of lines between points, without its data."""
    return {
        "name": name,
        "type": "lines",
        "coordinateSystem": "cartesian2d",
        "symbol": "none",
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": width, "opacity": opacity},
    }


_STATES = {
    "running": "good", "completed": "good", "done": "good", "idle": "good", "ready": "good",
    "starting": "warn", "restarting": "warn", "stopping": "warn", "waiting": "warn", "paused": "warn",
    "failed": "bad", "lost": "bad", "killed": "bad", "broken": "bad",
}  # fmt: skip


def state_group(state: str) -> str:
    """Return which colour a state has: "good", "warn", "bad", or "muted" for states without one."""
    return _STATES.get(state, "muted")


def state_color(state: str, style: Style) -> str:
    """Return the colour of a state; grey for states without one."""
    return str(getattr(style, state_group(state)))
