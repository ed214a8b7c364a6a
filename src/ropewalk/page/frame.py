"""What every page has: the header with its places, the theme, keys, and the refresh of what it shows.

The theme is in a cookie, so that pictures are made in its colours at once; without one it is that of the system. The
time zone of the browser is in another one: it may be in another country than the host of the page.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
import zoneinfo
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from urllib.parse import unquote

from nicegui import context, ui
from starlette.requests import Request

from ropewalk.page.gate import READER, ROLE, Role
from ropewalk.page.style import Style
from ropewalk.quantities import shown_moment

PLACES = (("Now", "/", "n"), ("Runs", "/runs", "r"), ("Searches", "/searches", "s"), ("Doctor", "/doctor", "d"))
"""Title, path and key of each place."""
_BELOW = {"/": ("/now",), "/runs": ("/runs/", "/compare"), "/searches": ("/search/",), "/doctor": ("/doctor/",)}
"""How the paths of the pages of each place begin, beside its own."""
_THEME_COOKIE, _ZONE_COOKIE = "ropewalk_theme", "ropewalk_zone"
_REFRESH_S = 1.0

_HEAD = """
<script>
function ropewalkPreload(name) {  // a module that an element imports is known only once that element is made
  var modules = JSON.parse(document.querySelector("script[type=importmap]").textContent).imports;
  document.head.append(Object.assign(document.createElement("link"), {rel: "modulepreload", href: modules[name]}));
}
delete Object.prototype.__proto__;  // ECharts keeps texts as keys of objects: one that is called so would change all
(function () {
  if (document.cookie.indexOf("ropewalk_theme=") < 0) {
    var dark = window.matchMedia && matchMedia("(prefers-color-scheme: dark)").matches;
    document.cookie = "ropewalk_theme=" + (dark ? "dark" : "light") + "; Path=/; SameSite=Strict; Max-Age=31536000";
    if (dark) location.reload();
  }
  var zone = "ropewalk_zone=" + encodeURIComponent(Intl.DateTimeFormat().resolvedOptions().timeZone || "");
  if (document.cookie.split("; ").indexOf(zone) >= 0) return;
  document.cookie = zone + "; Path=/; SameSite=Strict; Max-Age=31536000";
  if (-new Date().getTimezoneOffset() !== OFFSET_MIN && document.cookie.indexOf(zone) >= 0) location.reload();
})();
function ropewalkTheme() {
  var dark = document.cookie.indexOf("ropewalk_theme=dark") >= 0;
  document.cookie = "ropewalk_theme=" + (dark ? "light" : "dark") + "; Path=/; SameSite=Strict; Max-Age=31536000";
  location.reload();
}
</script>
<style>
@layer base {
  *, ::before, ::after { border: 0 solid; }
  a { color: inherit; text-decoration: inherit; }
}
@layer utilities {
  .w-full { width: 100%; }
  .items-center { align-items: center; }
  .items-baseline { align-items: baseline; }
  .justify-end { justify-content: flex-end; }
}
body { font-family: system-ui, sans-serif; font-size: 14px; }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 12px; white-space: pre-wrap; }
.muted { opacity: 0.7; }
.panel { border-radius: 6px; border: 1px solid #88888840; padding: 8px 14px 10px; gap: 6px; min-width: 0; }
.rw-head { min-height: 32px; gap: 12px; }
.rw-head > * { flex: none; }
.rw-head > .text-caption { flex: 0 1 auto; min-width: 0; line-height: 1.3; }
.rw-save { position: absolute; right: 0; top: -32px; gap: 4px; }  /* in the row of the title, which is above */
.panel:has(.rw-save) > .rw-head { padding-right: 60px; }
header .q-btn { color: inherit !important; }
.nicegui-content { padding: 12px 16px; }
a.place { color: inherit; text-decoration: none; opacity: 0.75; padding: 4px 8px; border-radius: 4px; }
@media (max-width: 600px) {
  header.nicegui-header { gap: 2px; padding: 4px 8px; }
  header .rw-brand { display: none; }
  a.place { padding: 4px 6px; }
}
a.place[aria-current=page] { opacity: 1; background: #88888833; }
:focus-visible:not(input, textarea) { outline: 2px solid #56B4E9; outline-offset: 1px; }
[class*="q-"]:focus-visible:not(input, textarea) { box-shadow: 0 0 0 2px #56B4E9; }  /* Quasar allows no outline */
</style>
"""
_NO_SCRIPT = """
<noscript><p style="padding: 24px">The page needs JavaScript, which this browser does not run. In a terminal,
<code>ropewalk top</code> shows what runs, and <code>ropewalk runs list</code> the runs.</p></noscript>
"""
_KEYS_HELP = (
    ("g n", "what runs now"),
    ("g r", "runs"),
    ("g s", "searches"),
    ("g d", "doctor"),
    ("/", "search or filter"),
    ("t", "light or dark"),
    ("Tab, Shift+Tab", "from one control to the next"),
    ("arrows, Enter", "move in a table or among tabs, and open what is chosen"),
    ("Space", "select the row of a table"),
    ("+ - arrows 0", "zoom and move a picture that has the focus, and show all of it"),
    ("Ctrl and wheel, drag", "zoom and move a picture; a drag over a curve zooms into that part"),
    ("Esc", "close a dialog, or leave a field"),
    ("?", "this help"),
)


@dataclass(frozen=True, slots=True)
class Visit:
    """The visit of one browser tab to one page.

    Attributes:
        style: the colours of its theme.
        role: of the visitor, by the token that was shown.
        client: id of the tab.
        zone: of the browser's clock; None if it is not known.
    """

    style: Style
    role: Role
    client: str
    zone: zoneinfo.ZoneInfo | None = None

    @property
    def may_act(self) -> bool:
        """Whether the visitor may stop, kill or change anything."""
        return self.role == "owner"

    def moment(self, seconds: float) -> str:
        """Format a Unix time in seconds as the date and the time of the visitor's clock."""
        return shown_moment(seconds, self.zone)

    def every(self, refresh: Callable[[], Awaitable[None] | None], seconds: float = _REFRESH_S) -> None:
        """Call a function now and then, while the tab is open and shown."""
        timer = ui.timer(seconds, refresh)
        ui.on("rw_shown", lambda e: setattr(timer, "active", e.args is True))

    def when_gone(self, call: Callable[[], object]) -> None:
        """Call a function once, when the tab is closed."""
        context.client.on_delete(lambda: call())  # pyright: ignore[reportUnknownMemberType]


def visit_of(request: Request) -> Visit:
    """Return whose visit a request begins."""
    dark = request.cookies.get(_THEME_COOKIE) == "dark"
    zone = zone_of(unquote(request.cookies.get(_ZONE_COOKIE, "")))
    return Visit(Style(dark), request.scope.get(ROLE, "reader"), context.client.id, zone)


def zone_of(name: str) -> zoneinfo.ZoneInfo | None:
    """Return a time zone by its name, which comes from a browser; None if this host does not know it."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # a path, an unknown name, a folder
        return None


@contextlib.contextmanager
def page_frame(request: Request, title: str) -> Generator[Visit]:
    """Draw what every page has; its own content is drawn in the block.

    Args:
        request: of the page.
        title: of the tab; text.
    """
    visit = visit_of(request)
    _set_dark(visit.style.dark)
    ui.page_title(f"{title} · Ropewalk")
    ui.add_body_html(_NO_SCRIPT)
    ui.add_head_html(_HEAD.replace("OFFSET_MIN", str(time.localtime().tm_gmtoff // 60)))
    style = visit.style
    ui.colors(primary=style.colors[0], positive=style.good, negative=style.bad, warning=style.warn)
    here = request.url.path.removeprefix(request.scope.get("root_path", ""))
    with (
        ui.header(elevated=False)
        .classes("items-center q-py-xs no-wrap")
        .style(f"background:{style.background};color:{style.text};border-bottom:1px solid {style.line}")
    ):
        ui.label("Ropewalk").classes("text-bold text-subtitle1 rw-brand")
        for name, path, _ in PLACES:
            link = ui.link(name, path).classes("place")
            if here == path or here.startswith(_BELOW[path]):
                link.props('aria-current="page"')
        ui.space()
        if not visit.may_act:
            ui.label("read only").classes("muted")
        if token := request.scope.get(READER):
            ui.button(icon="link", on_click=lambda: _copy_link(token)).props(
                'flat round dense aria-label="copy a link for readers" title="copy a link to this view, for readers"'
            ).style(f"color:{style.text}")
        ui.button(icon="contrast", on_click=lambda: ui.run_javascript("ropewalkTheme()")).props(
            'flat round dense aria-label="light or dark" title="light or dark (t)"'
        ).style(f"color:{style.text}")
        ui.button(icon="keyboard", on_click=lambda: _show_keys()).props(
            'flat round dense aria-label="keys" title="keys (?)"'
        ).style(f"color:{style.text}")
    _listen_to_keys()
    with ui.column().classes("w-full").style("max-width: 1800px; gap: 12px"):
        yield visit


def _set_dark(is_dark: bool) -> None:
    """Choose the theme of this page alone; `ui.dark_mode` would set it, and all styles, anew with each update."""
    page = copy.copy(context.client.page)
    page.dark = is_dark
    context.client.page = page


class Panel(ui.card):
    """A card with a title; use it with `with`.

    Args:
        title: what it shows.
        help: how to read it, beside the title.

    Attributes:
        head: the row of the title, for what stands at its right end.
    """

    def __init__(self, title: str, *, help: str = "") -> None:
        super().__init__()
        self.classes("w-full panel").props("flat")
        with self, ui.row().classes("items-center w-full no-wrap rw-head") as self.head:
            ui.label(title).classes("text-subtitle2 text-bold")
            if help:
                ui.label(help).classes("text-caption muted")


def _copy_link(token: str) -> None:
    """Copy an address of what the tab shows: its own is of the role that opened it, and nobody else gets in by it."""
    ui.run_javascript(
        f"""const here = new URL(location.href);
        here.pathname = here.pathname.slice(window.path_prefix.length);
        here.searchParams.set("token", {json.dumps(token)});
        navigator.clipboard.writeText(here.href);"""
    )
    ui.notify("A link to this view is copied. Whoever opens it may look, and not act.", position="bottom-right")


def _show_keys() -> None:
    with ui.dialog(value=True) as dialog, ui.card():
        ui.label("Keys").classes("text-bold")
        with ui.grid(columns=2).classes("q-gutter-x-md"):
            for key, what in _KEYS_HELP:
                ui.label(key).classes("mono")
                ui.label(what)
    dialog.on("hide", dialog.delete)


def _listen_to_keys() -> None:
    ui.add_body_html(
        """<script>
document.addEventListener("visibilitychange", function () { emitEvent("rw_shown", !document.hidden); });
(function tell() {  // a tab that is opened in the background is hidden from the start, and no event says so
  if (!document.hidden) return;
  if (window.did_handshake) emitEvent("rw_shown", false); else setTimeout(tell, 100);
})();
document.addEventListener("DOMContentLoaded", function () {  // by now the socket is there
  function ask() {  // a page that was started again has other tokens: this tab would try to reconnect for ever
    fetch(location.href, {method: "HEAD", cache: "no-store"}).then(function (answer) {
      if (answer.status !== 403) return;
      var words = document.querySelectorAll("#popup span");
      words[0].textContent = "The page that served this tab has ended, and another one is at its place.";
      words[1].textContent = "Open the address that it printed where it was started.";
    }, function () {});  // nobody listens: it may come back
  }
  window.socket.on("connect_error", ask);
});
(function () {
  var before = "";
  function zoomed(place, key) {  // a picture that can be zoomed by the mouse can be zoomed by keys
    var chart = getElement(parseInt(place.id.slice(1))).chart, option = chart && chart.getOption();
    var zoom = option && option.dataZoom && option.dataZoom[0];
    if (!zoom) return false;
    var span = zoom.end - zoom.start, middle = (zoom.start + zoom.end) / 2;
    if (key === "0") { span = 100; middle = 50; }
    else if (key === "+" || key === "=") span /= 2;
    else if (key === "-") span = Math.min(100, span * 2);
    else if (key === "ArrowLeft") middle -= span / 4;
    else if (key === "ArrowRight") middle += span / 4;
    else return false;
    middle = Math.min(100 - span / 2, Math.max(span / 2, middle));
    chart.dispatchAction({type: "dataZoom", start: middle - span / 2, end: middle + span / 2});
    return true;
  }
  document.addEventListener("keydown", function (e) {
    var t = e.target;
    if (e.key === "Escape" && t.tagName === "INPUT" && !t.closest(".q-dialog")) { t.blur(); return; }
    if (e.ctrlKey || e.metaKey || e.altKey) return;  // these are the browser's, such as its own zoom
    if (t.classList.contains("nicegui-echart") && zoomed(t, e.key)) { e.preventDefault(); return; }
    if (/INPUT|TEXTAREA|SELECT/.test(t.tagName) || t.isContentEditable) return;
    var places = {n: "/", r: "/runs", s: "/searches", d: "/doctor"};
    if (before === "g" && places[e.key]) { location.href = window.path_prefix + places[e.key]; }
    else if (e.key === "t") { ropewalkTheme(); }
    else if (e.key === "?") { var b = document.querySelector('[aria-label="keys"]'); if (b) b.click(); }
    else if (e.key === "/") {
      var f = document.querySelector("input[type=search], .filter input");
      if (f) { f.focus(); e.preventDefault(); }
    }
    before = e.key;
  });
})();
</script>"""
    )


__all__ = ["PLACES", "Panel", "Visit", "page_frame", "visit_of", "zone_of"]
