"""What the pages need in the browser: style sheets and scripts, which come in the wheel."""

from __future__ import annotations

import functools
import importlib.resources
import json
from collections.abc import Mapping

from nicegui import ui

from ropewalk.page.style import Style


def add_now_head(style: Style) -> None:
    """Add the style sheet and the script to the page that is being made.

    Args:
        style: whose colours the style sheet uses.
    """
    page = "#0d1117" if style.dark else "#f6f8fa"
    colors = {"good": style.good, "warn": style.warn, "bad": style.bad, "muted": style.muted, "line": style.line,
              "text": style.text, "card": style.background, "blue": style.colors[0], "page": page}  # fmt: skip
    names = "".join(f"--rw-{name}:{color};" for name, color in colors.items())
    ui.add_head_html(f"<style>:root{{{names}}}body{{background:{page}}}\n{_text('now.css')}</style>")
    ui.add_head_html(f"<script>{_text('now.js')}</script>")


def call_browser(function: str, *args: object) -> int:
    """Call a function of the script in the tab of this page.

    Args:
        function: its name.
        args: plain values.

    Returns:
        How many bytes are sent.
    """
    words = ",".join(json.dumps(arg, separators=(",", ":")) for arg in args)
    ui.run_javascript(f"ropewalk.{function}({words})")
    return len(words)


def remember_entries(entries: Mapping[str, str]) -> None:
    """Put entries into the query of the address of the page, so that it leads here again; empty ones are taken out."""
    call_browser("remember", entries)


def add_runs_head(style: Style) -> None:
    """Add the style sheets and the script of pages of runs to the page that is being made.

    Args:
        style: whose colours the style sheets use.
    """
    add_now_head(style)
    ui.add_head_html(f"<style>{_text('runs.css')}</style>")
    ui.add_head_html(f"<script>{_text('runs.js')}</script>")


@functools.cache
def _text(name: str) -> str:
    return importlib.resources.files("ropewalk.page.browser").joinpath(name).read_text("utf-8")


__all__ = ["add_now_head", "add_runs_head", "call_browser", "remember_entries"]
