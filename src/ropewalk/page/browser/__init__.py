"""What the pages of running things need in the browser: a style sheet and a script, which come in the wheel."""

from __future__ import annotations

import functools
import importlib.resources

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


@functools.cache
def _text(name: str) -> str:
    return importlib.resources.files("ropewalk.page.browser").joinpath(name).read_text("utf-8")


__all__ = ["add_now_head"]
